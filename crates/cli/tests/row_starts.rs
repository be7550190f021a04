//! Adapters that start from rows of the data (EVA, CorDA, LoRA-GA): ranks equal one, a run goes on, what cannot be is refused.

use std::path::{Path, PathBuf};

use burnish_weight_files::WeightFolder;
use serde_json::Value;

use crate::program::{fails, fixtures, metrics, ok, rows, sft};
use crate::ranks::close;
use crate::{online, preferences};

fn model() -> String {
    format!("--model_name_or_path={}", fixtures().join("models/llama-64").display())
}

const STEPS: [&str; 8] = [
    "--use_peft",
    "--lora_r=4",
    "--lora_dropout=0",
    "--max_steps=4",
    "--global_batch_size=8",
    "--per_device_train_batch_size=4",
    "--learning_rate=0.01",
    "--stage3_param_persistence_threshold=50",
];

const STARTS: [&[&str]; 3] = [
    &[
        "--init_lora_weights=eva",
        "--lora_target_modules=all-linear",
        "--eva_config={\"tau\": 0.8, \"use_label_mask\": false}",
    ],
    &["--init_lora_weights=corda", "--corda_config={\"corda_method\": \"kpm\"}", "--init_lora_rows=5"],
    &["--init_lora_weights=lora_ga", "--lora_target_modules=q_proj,down_proj", "--init_lora_rows=8"],
];

fn losses(output: &Path) -> Vec<f64> {
    metrics(output).iter().filter_map(|line| line["loss"].as_f64()).collect()
}

fn run(root: &Path, name: &str, words: &[&[&str]]) -> PathBuf {
    let (output, model) = (root.join(name), model());
    ok(&sft(&output, "prompt_completion.jsonl", &[&[&*model][..], &STEPS, &words.concat()].concat()));
    output
}

/// Whatever the mesh, and not as without a start.
#[test]
fn ranks_equal_one_at_every_stage() {
    let root = tempfile::tempdir().unwrap();
    let plain = run(root.path(), "plain", &[&["--save_strategy=no"]]);
    for (number, start) in STARTS.into_iter().enumerate() {
        let one = run(root.path(), &format!("one-{number}"), &[start, &["--save_strategy=no"]]);
        assert_ne!(losses(&one), losses(&plain), "{start:?}");
        for (nproc, tp_size, stage) in [(2, 1, 1), (2, 1, 3), (2, 2, 0)] {
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            let name = format!("{number}-{nproc}-{tp_size}-{stage}");
            let many = run(
                root.path(),
                &name,
                &[start, &["--save_strategy=no", "--per_device_train_batch_size=4"], &given],
            );
            close(&format!("{start:?}, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
        }
    }
}

/// From a checkpoint it goes on with the start that it had, whatever rows are read.
#[test]
fn a_resumed_run_keeps_its_start() {
    let root = tempfile::tempdir().unwrap();
    for (number, start) in STARTS.into_iter().enumerate() {
        let whole = run(root.path(), &format!("whole-{number}"), &[start, &["--save_steps=2"]]);
        let from = format!("--resume_from_checkpoint={}", whole.join("checkpoint-2").display());
        let resumed =
            run(root.path(), &format!("resumed-{number}"), &[start, &[&from, "--init_lora_rows=1"]]);
        let last = losses(&resumed);
        assert_eq!(losses(&whole)[2..], last[last.len() - 2..], "{start:?}");
        let open = |path: &Path| WeightFolder::open_stem(path, "adapter_model").unwrap();
        let (whole, resumed) = (open(&whole), open(&resumed));
        for name in whole.names() {
            assert!(whole.read(name).unwrap() == resumed.read(name).unwrap(), "{start:?}: {name}");
        }
    }
}

/// CorDA's files are written once, by whatever mesh, and later runs read no rows.
#[test]
fn files_of_corda_stand_for_rows() {
    let root = tempfile::tempdir().unwrap();
    let files = root.path().join("files");
    let file =
        |key: &str| format!("\"{key}\": \"{}\"", files.join(key).with_extension("safetensors").display());
    let own = format!("--corda_config={{{}, {}}}", file("cache_file"), file("covariance_file"));
    let common = ["--init_lora_weights=corda", "--save_strategy=no", &own];
    let one = run(root.path(), "one", &[&common, &["--init_lora_rows=5", "--nproc=2"]]);
    assert!(root.path().join("files/cache_file.safetensors").is_file());
    let again = run(root.path(), "again", &[&common, &["--init_lora_rows=1", "--nproc=2"]]);
    assert_eq!(losses(&one), losses(&again));
    std::fs::remove_file(root.path().join("files/cache_file.safetensors")).unwrap();
    let covariance = run(root.path(), "covariance", &[&common, &["--init_lora_rows=1", "--nproc=2"]]);
    assert_eq!(losses(&one), losses(&covariance));
    let other = run(
        root.path(),
        "other",
        &[&["--init_lora_weights=corda", "--init_lora_rows=1", "--nproc=2", "--save_strategy=no"]],
    );
    assert_ne!(losses(&one), losses(&other));
}

#[test]
fn what_cannot_be_is_refused() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let output = root.path().join("refused");
    let refused = |words: &[&str], parts: &[&str]| {
        fails(&sft(&output, "prompt_completion.jsonl", &[&[&*model], &STEPS[..], words].concat()), parts);
    };
    refused(&["--eva_config={\"rho\": 1.0}"], &["eva_config", "init_lora_weights: true"]);
    refused(&["--init_lora_weights=eva", "--eva_config={\"rh\": 1.0}"], &["eva_config.rh"]);
    refused(&["--init_lora_weights=corda", "--load_in_4bit"], &["load_in_4bit", "init_lora_weights"]);
    refused(&["--init_lora_weights=eva", "--init_lora_rows=0"], &["init_lora_rows", "at least 1"]);
    let ga = ["--use_peft", "--init_lora_weights=lora_ga"];
    let reference = format!("--ref_model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    let words = preferences::words("dpo", &output, &[&ga[..], &[&reference]].concat());
    fails(&words, &["init_lora_weights", "ref_model_name_or_path", "eva or corda", "adapter_name_or_path"]);
    for command in ["grpo", "rloo"] {
        let words = online::words(command, &output, &ga);
        fails(&words, &["init_lora_weights", "completions", "eva or corda", "adapter_name_or_path"]);
    }
}

/// Factors of a module as a run that does not move has left them, without what the base has lost: A `[r, in]` and B `[out, r]`.
fn left(folder: &WeightFolder, module: &str, r: usize) -> (Vec<f32>, Vec<f32>) {
    let read = |part: &str| folder.read(&format!("base_model.model.{module}.lora_{part}.weight")).unwrap();
    let (a, b) = (read("A"), read("B"));
    let (input, all) = (a.shape[1], b.shape[1]);
    let b = b.to_f32().chunks_exact(all).flat_map(|row| row[..r].to_vec()).collect();
    (a.to_f32()[..r * input].to_vec(), b)
}

/// `[rows, n]` by `[n, columns]`.
fn product(left: &[f32], right: &[f32], n: usize) -> Vec<f32> {
    let columns = right.len() / n;
    let of = |row: &[f32], column: usize| (0..n).map(|i| row[i] * right[i * columns + column]).sum();
    left.chunks_exact(n).flat_map(|row| (0..columns).map(|c| of(row, c)).collect::<Vec<f32>>()).collect()
}

fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
}

/// What PEFT starts from on batches of TRL's trainers, LoRA-GA with their losses; the same over two ranks that share layers.
#[test]
fn preference_trainers_start_as_with_trl_and_peft() {
    let (root, folder) = (tempfile::tempdir().unwrap(), fixtures().join("trl-starts"));
    let mut cases: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    cases.retain(|path| path.extension().is_some_and(|end| end == "json"));
    assert_eq!(cases.len(), 10);
    for case in cases {
        let name = case.file_stem().unwrap().to_str().unwrap();
        let of: Value = serde_json::from_slice(&std::fs::read(&case).unwrap()).unwrap();
        let text = |key: &str| of[key].as_str().unwrap();
        let word = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Array(all) => {
                all.iter().map(|v| v.as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        let lora = of["lora"].as_object().unwrap();
        let init = lora["init_lora_weights"].as_str().unwrap();
        let recorded = WeightFolder::open_stem(&folder, name).unwrap();
        for mesh in [&["--nproc=1"][..], &["--nproc=2", "--tp_size=2"]] {
            let output = root.path().join(format!("{name}-{}", mesh.len()));
            let mut words = vec![
                text("trainer").to_owned(),
                format!("--model_name_or_path={}", fixtures().join(text("model")).display()),
                format!("--dataset_name={}", rows(text("data")).display()),
                format!("--output_dir={}", output.display()),
                format!("--init_lora_rows={}", of["rows"]),
                format!("--per_device_train_batch_size={}", of["batch"]),
            ];
            words
                .extend(of["options"].as_object().unwrap().iter().map(|(k, v)| format!("--{k}={}", word(v))));
            words.extend(lora.iter().map(|(key, value)| match key.as_str() {
                "r" | "target_modules" => format!("--lora_{key}={}", word(value)),
                _ => format!("--{key}={}", word(value)),
            }));
            // Nothing moves.
            let still = ["--use_peft", "--lora_dropout=0", "--max_steps=1", "--learning_rate=1e-30"];
            let other = ["--max_length=48", "--train_sampling_strategy=sequential"];
            words.extend(still.iter().chain(&other).chain(mesh).map(|word| (*word).to_owned()));
            ok(&words);
            let written = WeightFolder::open_stem(&output, "adapter_model").unwrap();
            let mut modules = 0;
            for module in recorded.names().filter_map(|name| name.strip_suffix(".a")) {
                let a = recorded.read(&format!("{module}.a")).unwrap();
                let (r, input) = (a.shape[0], a.shape[1]);
                let (own_a, own_b) = left(&written, module, r);
                let want_a = a.to_f32();
                let want_b = recorded.read(&format!("{module}.b")).map(|b| b.to_f32()).unwrap_or_default();
                // Of vectors whose signs are free what is not: those of LoRA-GA are of different triplets on the two sides.
                let of = |a: &[f32], b: &[f32]| match init {
                    "eva" => product(&transposed(a, input), a, r),
                    "corda" => product(b, a, r),
                    _ => [product(&transposed(a, input), a, r), product(b, &transposed(b, r), r)].concat(),
                };
                let (got, want) = (of(&own_a, &own_b), of(&want_a, &want_b));
                assert_eq!(got.len(), want.len(), "{name}: {module}");
                let largest = want.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
                for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                    let near = (got - want).abs() <= 5e-4 * largest;
                    assert!(near, "{name}: {module}[{at}]: {got} and PEFT's {want}, of {largest}");
                }
                modules += 1;
            }
            let factors = written.names().filter(|name| name.ends_with("lora_A.weight")).count();
            assert_eq!(factors, modules, "{name}");
        }
    }
}

/// On every mesh the runs of other trainers are one rank's, the first loss is that of a policy that is its reference, and a run
/// goes on with its start.
#[test]
fn other_trainers_train_alike_on_every_layout() {
    let of = |start: &'static str| [&preferences::LORA[..], &[start, "--init_lora_rows=6"]].concat();
    let (corda, ga) = (of("--init_lora_weights=corda"), of("--init_lora_weights=lora_ga"));
    let eva = [&of("--init_lora_weights=eva")[..], &["--eva_config={\"rho\": 1.0, \"tau\": 0.5}"]].concat();
    let meshes = [(2, 1, 2), (2, 2, 0), (4, 2, 3)];
    preferences::check("dpo", &ga, &meshes);
    preferences::check("dpo", &eva, &meshes[2..]);
    preferences::check("kto", &corda, &meshes[2..]);
    preferences::check("reward", &ga, &meshes[1..]);
    preferences::check("orpo", &eva, &meshes[2..]);
    online::check("grpo", &corda, &meshes[2..]);
    for (command, start) in [("dpo", &ga), ("kto", &eva), ("reward", &corda)] {
        let more = [&start[..], &["--per_device_train_batch_size=2"]].concat();
        crate::resume::goes_on(|output, more| preferences::words(command, output, more), &more, None);
    }
}

/// Prompts are what trainers that sample start from.
#[test]
fn trainers_that_sample_start_from_prompts() {
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let output = root.path().join(name);
        let words =
            ["--use_peft", "--lora_r=4", "--max_steps=1", "--global_batch_size=8", "--learning_rate=1e-30"];
        ok(&online::words("grpo", &output, &[&words[..], more].concat()));
        WeightFolder::open_stem(&output, "adapter_model").unwrap()
    };
    let eva = ["--init_lora_weights=eva", "--eva_config={\"rho\": 1.0, \"tau\": 0.5}"];
    let [few, more] = ["4", "8"].map(|rows| {
        run(&format!("eva-{rows}"), &[&eva[..], &[&format!("--init_lora_rows={rows}")]].concat())
    });
    let module = "model.layers.0.self_attn.q_proj";
    let (a, b) = left(&few, module, 4);
    // Of whatever prompts, vectors stand on each other.
    let input = a.len() / 4;
    for (at, x) in product(&a, &transposed(&a, input), input).iter().enumerate() {
        assert!((x - f32::from(u8::from(at % 5 == 0))).abs() < 1e-5, "{at}: {x}");
    }
    assert!(b.iter().all(|x| x.abs() < 1e-20), "B is zero");
    assert_ne!(left(&more, module, 4).0, a, "of other prompts");
    let corda = run("corda", &["--init_lora_weights=corda", "--init_lora_rows=4"]);
    assert!(left(&corda, module, 4).1.iter().any(|x| x.abs() > 1e-4));
}

/// An adapter that waits for tokens which no row has learns nothing, and one whose rows lack them in part as much less.
#[test]
fn rows_without_the_tokens_that_an_adapter_waits_for_are_named() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let said = |words: &[String]| {
        let output = crate::program::run(words);
        assert!(output.status.success(), "{}", crate::program::stderr(&output));
        let said = crate::program::stderr(&output);
        said.lines().filter(|line| line.contains("alora_invocation_tokens")).map(str::to_owned).collect()
    };
    let of_sft = |name: &str, more: &[&str]| -> Vec<String> {
        let common = [&[&*model, "--save_strategy=no"][..], &STEPS, more].concat();
        said(&sft(&root.path().join(name), "prompt_completion.jsonl", &common))
    };
    // Nothing moves without them.
    let none = of_sft("none", &["--alora_invocation_tokens=1,2"]);
    assert!(none.len() == 1 && none[0].contains("none of 39 rows has"), "{none:?}");
    let written = WeightFolder::open_stem(root.path().join("none"), "adapter_model").unwrap();
    let b = written.names().find(|name| name.ends_with("lora_B.weight")).unwrap();
    assert!(written.read(b).unwrap().to_f32().iter().all(|x| *x == 0.0));
    let some = of_sft("some", &["--alora_invocation_tokens=71"]);
    assert!(
        some.len() == 1 && some[0].contains("of 39 rows have no") && some[0].contains("row "),
        "{some:?}"
    );
    // Over ranks once, and in training on.
    let more = ["--alora_invocation_tokens=71", "--nproc=2", "--tp_size=2"];
    assert_eq!(of_sft("ranks", &more), some);
    let again = format!("--adapter_name_or_path={}", root.path().join("some").display());
    let common = [&model, "--save_strategy=no", "--max_steps=1", &again];
    assert_eq!(said(&sft(&root.path().join("on"), "prompt_completion.jsonl", &common)), some);
    let dpo = ["--use_peft", "--max_steps=1", "--alora_invocation_tokens=1,2"];
    let none: Vec<String> = said(&preferences::words("dpo", &root.path().join("dpo"), &dpo));
    assert!(none.len() == 1 && none[0].contains("none of 28 rows has"), "{none:?}");
}
