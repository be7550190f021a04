//! N ranks equal one rank, at every stage, and go on from each other's checkpoints.

use std::path::Path;

use burnish_weight_files::WeightFolder;

use crate::program::{LORA, copy, fails, fixtures, metrics, ok, rows, sft};

/// Sums in another order, amplified over a few steps of training.
const ROUNDING: f64 = 1e-5;
/// Weights after them: near-zero entries move by whole Adam steps on rounding alone, so the rate bounds the difference.
const WEIGHTS: f32 = 2e-3;

const NUMBERS: [&str; 7] =
    ["loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens", "epoch", "eval_loss"];

fn numbers(output: &Path) -> Vec<f64> {
    metrics(output).iter().flat_map(|l| NUMBERS.map(|k| l[k].as_f64().unwrap_or(-1.0))).collect()
}

/// The last `lines` lines of the log.
#[track_caller]
pub(crate) fn close_numbers(what: &str, one: &Path, many: &Path, lines: usize) {
    numbers_within(ROUNDING, what, one, many, lines);
}

#[track_caller]
fn numbers_within(rounding: f64, what: &str, one: &Path, many: &Path, lines: usize) {
    let (a, b) = (numbers(one), numbers(many));
    let tail = |all: Vec<f64>| all[all.len() - lines * NUMBERS.len()..].to_vec();
    for (i, (x, y)) in tail(a).iter().zip(tail(b)).enumerate() {
        assert!((x - y).abs() <= rounding * x.abs().max(1e-2), "{what}: number {i}: {x} and {y}");
    }
}

#[track_caller]
pub(crate) fn close(what: &str, one: &Path, many: &Path) {
    close_within(ROUNDING, what, one, many);
}

/// As [`close`], with another relative difference of logged figures.
#[track_caller]
pub(crate) fn close_within(rounding: f64, what: &str, one: &Path, many: &Path) {
    assert_eq!(metrics(one).len(), metrics(many).len(), "{what}");
    numbers_within(rounding, what, one, many, metrics(one).len());
    let open = |path: &Path| WeightFolder::open(path).unwrap();
    let (a, b) = (open(one), open(many));
    let names = |folder: &WeightFolder| folder.names().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b), "{what}");
    for name in names(&a) {
        let (x, y) = (a.read(&name).unwrap(), b.read(&name).unwrap());
        assert_eq!((x.dtype, &x.shape), (y.dtype, &y.shape), "{what}: {name}");
        for (x, y) in x.to_f32().iter().zip(y.to_f32()) {
            assert!((x - y).abs() <= WEIGHTS, "{what}: {name}: {x} and {y}");
        }
    }
}

/// One rank, and then every stage on several.
fn check(data: &str, common: &[&str], ranks: &[usize]) {
    let root = tempfile::tempdir().unwrap();
    let mut words = vec!["--max_steps=5", "--global_batch_size=8", "--save_strategy=no"];
    words.push("--stage3_param_persistence_threshold=50");
    let eval = format!("--eval_dataset_name={}", rows("prompt_completion_eval.jsonl").display());
    words.extend(["--eval_strategy=steps", "--eval_steps=5", eval.as_str()]);
    words.extend(common);
    let one = root.path().join("one");
    ok(&sft(&one, data, &words));
    for &nproc in ranks {
        for stage in 0..4 {
            let what = format!("{nproc} ranks, stage {stage}, {common:?}");
            let many = root.path().join(format!("{nproc}-{stage}"));
            let given = [format!("--nproc={nproc}"), format!("--zero_stage={stage}")];
            let words: Vec<&str> = words.iter().copied().chain(given.iter().map(String::as_str)).collect();
            ok(&sft(&many, data, &words));
            close(&what, &one, &many);
        }
    }
}

#[test]
fn adapters_on_several_ranks_equal_one_even_with_dropout() {
    check("prompt_completion.jsonl", &LORA, &[2, 3]);
}

#[test]
fn full_training_on_several_ranks_equals_one() {
    // Micro-batches of 2 rows: 8 ranks have more places than the batch has rows.
    check("prompt_completion.jsonl", &["--learning_rate=1e-3"], &[2, 4, 8]);
}

#[test]
fn tied_bf16_weights_without_recompute_equal_one_rank() {
    let tied = format!("--model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    let words = [tied.as_str(), "--dtype=bfloat16", "--no_gradient_checkpointing", "--learning_rate=1e-3"];
    check("prompt_completion.jsonl", &words, &[3]);
}

/// Sums in another order move a weight by some 1e-7, and with it now and then what a product's operand rounds to.
#[test]
fn bf16_products_on_several_ranks_equal_one_to_their_rounding() {
    let root = tempfile::tempdir().unwrap();
    let words =
        ["--max_steps=5", "--global_batch_size=8", "--save_strategy=no", "--bf16", "--learning_rate=1e-3"];
    let one = root.path().join("one");
    ok(&sft(&one, "prompt_completion.jsonl", &words));
    for (given, what) in [
        (&["--nproc=2", "--zero_stage=3"][..], "stage 3"),
        (&["--nproc=2", "--tp_size=2"][..], "tensor parallel"),
    ] {
        let (many, again) = (root.path().join(what), root.path().join(format!("{what} again")));
        let words = [&words[..], given].concat();
        ok(&sft(&many, "prompt_completion.jsonl", &words));
        ok(&sft(&again, "prompt_completion.jsonl", &words));
        for (a, b) in metrics(&one).iter().zip(metrics(&many)) {
            for key in ["loss", "grad_norm"] {
                let (Some(x), Some(y)) = (a[key].as_f64(), b[key].as_f64()) else { continue };
                assert!((x - y).abs() <= 5e-3 * x, "{what}: {key} {x} and {y}");
            }
        }
        let bytes = |path: &Path| std::fs::read(path.join("model.safetensors")).unwrap();
        assert!(bytes(&many) == bytes(&again), "{what}: the same run again has other bits");
    }
}

#[test]
fn packed_rows_and_summing_every_micro_batch_equal_one_rank() {
    let root = tempfile::tempdir().unwrap();
    let common = ["--packing", "--max_steps=3", "--global_batch_size=8", "--learning_rate=1e-3"];
    let one = root.path().join("one");
    ok(&sft(&one, "text.jsonl", &common));
    for (stage, when) in [(2, "micro_batch"), (2, "step"), (3, "step"), (3, "micro_batch")] {
        let many = root.path().join(format!("{stage}-{when}"));
        let given = [format!("--zero_stage={stage}"), format!("--zero_reduce={when}")];
        let mut words: Vec<&str> = common.iter().copied().chain(given.iter().map(String::as_str)).collect();
        words.extend(["--nproc=2", "--stage3_param_persistence_threshold=0", "--no_stage3_keep_root"]);
        ok(&sft(&many, "text.jsonl", &words));
        close(&format!("stage {stage}, {when}"), &one, &many);
    }
}

/// The batch of Transformers: rows per device times ranks times accumulation.
#[test]
fn more_ranks_are_as_more_rows_per_device() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (root.path().join("one"), root.path().join("two"));
    let common = ["--max_steps=4", "--learning_rate=1e-3"];
    let words = |more: &[&'static str]| -> Vec<&'static str> { common.iter().chain(more).copied().collect() };
    ok(&sft(&one, "text.jsonl", &words(&["--per_device_train_batch_size=4"])));
    ok(&sft(&two, "text.jsonl", &words(&["--nproc=2", "--per_device_train_batch_size=2"])));
    close("two ranks", &one, &two);
}

#[test]
fn half_precision_with_a_loss_scale_trains_alike_on_every_layout() {
    check("prompt_completion.jsonl", &["--fp16", "--learning_rate=1e-3"], &[2]);
}

/// Four steps on one layout, four on another, against eight on one rank.
fn resumes(data: &str, common: &[&str], layouts: &[[(usize, u8); 2]], files: &str) {
    let root = tempfile::tempdir().unwrap();
    let mut words = vec!["--max_steps=8", "--global_batch_size=6", "--save_steps=4"];
    words.extend(common);
    let run = |out: &Path, (nproc, stage): (usize, u8), more: &[&str]| {
        let given = [format!("--nproc={nproc}"), format!("--zero_stage={stage}")];
        let words: Vec<&str> = words
            .iter()
            .copied()
            .chain(given.iter().map(String::as_str))
            .chain(more.iter().copied())
            .collect();
        ok(&sft(out, data, &words));
    };
    let one = root.path().join("one");
    run(&one, (1, 0), &[]);
    for [before, after] in layouts {
        let what = format!("{before:?} to {after:?}");
        let (first, then) = (root.path().join(format!("{what} a")), root.path().join(format!("{what} b")));
        run(&first, *before, &[]);
        close(&what, &one, &first);
        copy(&first.join("checkpoint-4"), &then.join("checkpoint-4"));
        run(&then, *after, &["--resume_from_checkpoint=true"]);
        if before == after {
            let bytes = |dir: &Path| std::fs::read(dir.join(files)).unwrap();
            assert!(bytes(&first) == bytes(&then), "{what}: {files} differs");
            let (a, b) = (metrics(&first), metrics(&then));
            assert_eq!(a[a.len() - b.len()..], b[..], "{what}");
        } else {
            std::fs::copy(one.join("metrics.jsonl"), first.join("metrics.jsonl")).unwrap();
            let (a, b) = (numbers(&one), numbers(&then));
            for (x, y) in a[a.len() - b.len()..].iter().zip(&b) {
                assert!((x - y).abs() <= ROUNDING * x.abs().max(1e-2), "{what}: {x} and {y}");
            }
        }
    }
}

#[test]
fn an_adapter_run_goes_on_at_any_layout() {
    let layouts = [[(2, 2), (2, 2)], [(1, 0), (3, 3)], [(3, 3), (2, 1)], [(4, 2), (1, 0)], [(2, 3), (2, 3)]];
    resumes("prompt_completion.jsonl", &LORA, &layouts, "adapter_model.safetensors");
}

#[test]
fn a_full_bf16_run_goes_on_at_any_layout() {
    let layouts = [[(2, 1), (2, 1)], [(2, 3), (4, 2)], [(1, 0), (2, 2)], [(3, 3), (3, 3)], [(4, 1), (1, 0)]];
    let words = ["--dtype=bfloat16", "--learning_rate=1e-3", "--stage3_param_persistence_threshold=50"];
    resumes("text.jsonl", &words, &layouts, "model.safetensors");
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let with = |more: &[&str]| sft(&out, "text.jsonl", more);
    fails(&with(&["--nproc=0"]), &["nproc", "at least 1"]);
    fails(&with(&["--zero_stage=4"]), &["zero_stage", "0, 1, 2 or 3"]);
    fails(&with(&["--zero_stage=1", "--zero_reduce=micro_batch"]), &["zero_reduce", "zero_stage: 1"]);
    fails(&with(&["--transport=mpi", "--nproc=2"]), &["mpirun"]);
    fails(&with(&["--transport=mpi", "--ddp_encryption"]), &["ddp_encryption", "mpi", "--transport tcp"]);
    fails(&with(&["--deepspeed=zero3.json"]), &["deepspeed", "zero_stage"]);
    fails(
        &with(&["--global_batch_size=8", "--gradient_accumulation_steps=2"]),
        &["global_batch_size", "gradient_accumulation_steps"],
    );
    let local = with(&["--transport=local"]);
    let launched = crate::program::burnish().args(local).env("WORLD_SIZE", "4").output().unwrap();
    let said = crate::program::stderr(&launched);
    assert!(
        !launched.status.success() && said.contains("WORLD_SIZE=4") && said.contains("--nproc 4"),
        "{said}"
    );
    assert!(!out.exists(), "nothing was written");
}

/// What `plan` says of a step's traffic is what a step moves, to the element.
#[test]
fn a_run_moves_the_elements_that_its_plan_states() {
    let root = tempfile::tempdir().unwrap();
    let full: [&str; 1] = ["--dtype=bfloat16"];
    let cases: [(&[&str], &[&str]); 4] = [
        (&LORA, &["--stage3_param_persistence_threshold=0"]),
        (&LORA, &["--gradient_accumulation_steps=3", "--no_stage3_keep_root", "--no_stage3_prefetch"]),
        (&full, &["--stage3_param_persistence_threshold=50", "--gradient_accumulation_steps=2"]),
        (&full, &["--no_gradient_checkpointing", "--stage3_param_persistence_threshold=50"]),
    ];
    for (case, (kind, more)) in cases.iter().enumerate() {
        for stage in 0..4 {
            let given = [format!("--zero_stage={stage}"), "--nproc=3".to_owned()];
            let mut words: Vec<&str> = vec!["--max_steps=2", "--save_strategy=no", "--max_length=48"];
            words.extend(kind.iter().chain(*more).copied().chain(given.iter().map(String::as_str)));
            let out = root.path().join(format!("{case}-{stage}"));
            // Full steps only: 40 rows are enough for two.
            let mut run = sft(&out, "prompt_completion.jsonl", &words);
            ok(&run);
            run[0] = "plan".to_owned();
            let said = ok(&run);
            let line = said.lines().last().unwrap();
            let planned: f64 = line
                .strip_prefix("weights and gradients: ")
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            for record in metrics(&out) {
                assert_eq!(record["comm_elements"].as_f64(), Some(planned), "{words:?}\n{said}");
            }
        }
    }
}

/// Planning needs no such machine.
#[test]
fn a_plan_is_made_for_any_number_of_ranks() {
    let words: Vec<String> = ["plan", "--model_name_or_path"]
        .into_iter()
        .map(str::to_owned)
        .chain([crate::program::model().display().to_string()])
        .chain(["--nproc=512", "--zero_stage=3", "--global_batch_size=1024"].map(str::to_owned))
        .collect();
    let said = ok(&words);
    assert!(said.contains("512 ranks, ZeRO stage 3"), "{said}");
}

/// As torchrun starts processes.
#[test]
fn processes_that_meet_by_master_addr_give_the_bits_of_threads() {
    let root = tempfile::tempdir().unwrap();
    let (threads, processes) = (root.path().join("threads"), root.path().join("processes"));
    let words = ["--max_steps=3", "--global_batch_size=6", "--zero_stage=3", "--save_strategy=no"];
    let local: Vec<&str> = words.iter().copied().chain(["--nproc=2"]).collect();
    ok(&sft(&threads, "text.jsonl", &local));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let children: Vec<_> = (0..2)
        .map(|rank| {
            crate::program::burnish()
                .args(sft(&processes, "text.jsonl", &words))
                .envs([("MASTER_ADDR", "127.0.0.1"), ("WORLD_SIZE", "2")])
                .env("MASTER_PORT", port.to_string())
                .env("RANK", rank.to_string())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", crate::program::stderr(&output));
    }
    let [a, b] = [&threads, &processes].map(|dir| std::fs::read(dir.join("model.safetensors")).unwrap());
    assert!(a == b, "model.safetensors differs");
    assert_eq!(metrics(&threads), metrics(&processes));
}

/// Cores of their own change where ranks run, and no bit.
#[test]
fn ranks_that_keep_to_cores_compute_the_same() {
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let out = root.path().join(name);
        let common = ["--max_steps=3", "--zero_stage=3", "--save_strategy=no", "--global_batch_size=8"];
        ok(&sft(&out, "prompt_completion.jsonl", &[&common, more].concat()));
        numbers(&out)
    };
    let (bind, two) = ("--bind_cores_to_rank", "--nproc=2");
    assert_eq!(run("one", &[]), run("bound", &[bind]));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores >= 2 {
        assert_eq!(run("two", &[two]), run("two-bound", &[two, bind]));
    }
    let refused = |more: &[&str], parts: &[&str]| {
        fails(&sft(&root.path().join("refused"), "prompt_completion.jsonl", more), parts);
    };
    refused(&[two, bind, "--threads=2"], &["threads", "bind_cores_to_rank"]);
    refused(&["--bind_core_list=0"], &["bind_core_list", "bind_cores_to_rank"]);
    refused(&[bind, "--bind_core_list=3-1"], &["bind_core_list", "`3-1`", "0-27,32-59"]);
    if cores < 256 {
        refused(&[bind, "--nproc=256"], &["256 ranks on this machine", "bind_cores_to_rank"]);
    }
}
