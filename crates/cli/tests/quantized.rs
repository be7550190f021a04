//! Adapters over a base in four or eight bits: ranks equal one, a run goes on, and what cannot be is refused.

use std::path::{Path, PathBuf};

use burnish_weight_files::WeightFolder;
use serde_json::Value;

use crate::program::{LORA, fails, fixtures, metrics, ok, rows, run, sft, stderr};
use crate::ranks::close;
use crate::{online, preferences};

/// A model whose rows are whole blocks, so that stage 3 divides it.
fn model() -> String {
    format!("--model_name_or_path={}", fixtures().join("models/llama-64").display())
}

fn words<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words =
        vec![model, "--max_steps=4", "--global_batch_size=8", "--stage3_param_persistence_threshold=50"];
    words.extend(LORA);
    words.extend(more);
    words
}

#[test]
fn ranks_equal_one_at_every_stage() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let schemes: [&[&str]; 5] = [
        &["--load_in_4bit", "--use_bnb_nested_quant", "--save_strategy=no"],
        &["--load_in_4bit", "--bnb_4bit_quant_type=fp4", "--use_dora", "--save_strategy=no"],
        &["--load_in_8bit", "--lora_bias", "--save_strategy=no"],
        &["--load_in_4bit", "--init_lora_weights=loftq", "--lora_dropout=0", "--save_strategy=no"],
        &[
            "--load_in_8bit",
            "--init_lora_weights=loftq",
            "--loftq_config={\"loftq_iter\": 2}",
            "--lora_dropout=0",
            "--save_strategy=no",
        ],
    ];
    for (number, scheme) in schemes.into_iter().enumerate() {
        let one = root.path().join(format!("one-{number}"));
        ok(&sft(&one, "prompt_completion.jsonl", &words(&model, scheme)));
        // The ranks of the mesh, those that share layers, the stage: heads and blocks in uneven parts too.
        for (nproc, tp_size, stage) in [(2, 1, 0), (3, 1, 3), (2, 2, 0), (3, 3, 0), (4, 2, 3)] {
            let many = root.path().join(format!("{number}-{nproc}-{tp_size}-{stage}"));
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
            let all: Vec<&str> =
                words(&model, scheme).into_iter().chain(given.iter().map(String::as_str)).collect();
            ok(&sft(&many, "prompt_completion.jsonl", &all));
            close(&format!("{scheme:?}, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
        }
    }
}

/// IA3 over a base as it is and over one in four bits: ranks equal one, the run goes on from its adapter, and merges.
#[test]
fn vectors_train_alike_on_every_mesh() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let all = "--lora_target_modules=k_proj,o_proj,up_proj,down_proj";
    let ia3 = [
        "--use_peft",
        "--peft_type=IA3",
        all,
        "--feedforward_modules=o_proj,down_proj",
        "--learning_rate=0.05",
    ];
    let steps = [
        "--max_steps=4",
        "--global_batch_size=8",
        "--stage3_param_persistence_threshold=50",
        "--save_strategy=no",
    ];
    for (number, scheme) in [&[][..], &["--load_in_4bit"]].into_iter().enumerate() {
        let words: Vec<&str> = [&[&*model], &ia3[..], &steps, scheme].concat();
        let one = root.path().join(format!("one-{number}"));
        ok(&sft(&one, "prompt_completion.jsonl", &words));
        for (nproc, tp_size, stage) in [(2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 2, 0), (4, 2, 3)] {
            let many = root.path().join(format!("{number}-{nproc}-{tp_size}-{stage}"));
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
            let all: Vec<&str> = words.iter().copied().chain(given.iter().map(String::as_str)).collect();
            ok(&sft(&many, "prompt_completion.jsonl", &all));
            close(&format!("{scheme:?}, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
        }
        let trained = WeightFolder::open_stem(&one, "adapter_model").unwrap();
        for name in trained.names() {
            assert!(trained.read(name).unwrap().to_f32().iter().all(|&l| l != 1.0), "{name} has not moved");
        }
        let given = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let (adapter, merged) = (
            given("adapter_name_or_path", &one),
            given("output_dir", &root.path().join(format!("merged-{number}"))),
        );
        let merge: Vec<String> =
            [&["merge", &model, &adapter, &merged], scheme].concat().into_iter().map(str::to_owned).collect();
        ok(&merge);
    }
    let refused = root.path().join("refused");
    let lora: Vec<&str> = [&[&*model], &ia3[..], &["--lora_r=4"]].concat();
    fails(&sft(&refused, "prompt_completion.jsonl", &lora), &["lora_r", "the method has no such setting"]);
    let other = [&*model, "--use_peft", "--feedforward_modules=down_proj"];
    fails(&sft(&refused, "prompt_completion.jsonl", &other), &["feedforward_modules", "set peft_type: IA3"]);
}

/// Methods that make another weight of a layer, copies of norms, and rows of the embedding beside LoRA: ranks equal one at each stage and,
/// where their parameters can be divided, under tensor parallelism; the adapter merges and answers.
#[test]
fn other_methods_train_alike_on_every_mesh() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let all = "--lora_target_modules=k_proj,o_proj,down_proj";
    let methods: [(&[&str], bool); 17] = [
        (
            &[
                "--peft_type=VBLORA",
                "--lora_r=2",
                "--peft_config={\"num_vectors\": 16, \"vector_length\": 8, \"init_vector_bank_bound\": 0.5}",
                all,
                "--load_in_4bit",
            ],
            true,
        ),
        (
            &[
                "--peft_type=RANDLORA",
                "--lora_r=8",
                "--peft_config={\"randlora_alpha\": 16, \"randlora_dropout\": 0.1}",
                all,
                "--load_in_4bit",
            ],
            true,
        ),
        (&["--peft_type=BOFT", "--lora_target_modules=k_proj,o_proj"], true),
        (
            &[
                "--peft_type=BOFT",
                "--peft_config={\"boft_block_size\": 16, \"boft_n_butterfly_factor\": 3}",
                "--lora_target_modules=k_proj,o_proj",
            ],
            false,
        ),
        (&["--peft_type=C3A", "--peft_config={\"block_size\": 8}", all], true),
        (&["--peft_type=OFT", "--peft_config={\"oft_block_size\": 4}", all], true),
        (&["--peft_type=LOHA", "--lora_r=2", all, "--load_in_4bit"], true),
        (&["--peft_type=LOKR", "--lora_r=2", all], true),
        (
            &["--peft_type=VERA", "--lora_r=4", "--peft_config={\"d_initial\": 1.0}", all, "--load_in_4bit"],
            true,
        ),
        (
            &[
                "--peft_type=ADALORA",
                "--peft_config={\"init_r\": 4, \"target_r\": 2, \"tfinal\": 1}",
                all,
                "--load_in_4bit",
            ],
            true,
        ),
        (&["--peft_type=PROMPT_TUNING", "--peft_config={\"num_virtual_tokens\": 3}"], true),
        (&["--peft_type=PREFIX_TUNING", "--peft_config={\"num_virtual_tokens\": 3}"], true),
        (
            &[
                "--peft_type=PREFIX_TUNING",
                "--peft_config={\"num_virtual_tokens\": 3, \"prefix_projection\": true, \"encoder_hidden_size\": 12}",
                "--load_in_4bit",
            ],
            true,
        ),
        (
            &[
                "--peft_type=P_TUNING",
                "--peft_config={\"num_virtual_tokens\": 3, \"encoder_hidden_size\": 12}",
                "--learning_rate=0.002",
            ],
            true,
        ),
        (
            &[
                "--peft_type=P_TUNING",
                "--peft_config={\"num_virtual_tokens\": 3, \"encoder_hidden_size\": 12, \"encoder_dropout\": 0.2, \"encoder_reparameterization_type\": \"LSTM\"}",
            ],
            true,
        ),
        (&["--peft_type=LN_TUNING", "--lora_target_modules=input_layernorm,norm"], true),
        (&["--lora_r=2", "--lora_dropout=0", "--trainable_token_indices=5,9,2", all], true),
    ];
    let steps = [
        "--max_steps=3",
        "--global_batch_size=8",
        "--stage3_param_persistence_threshold=50",
        "--save_strategy=no",
        "--learning_rate=0.02",
        "--use_peft",
    ];
    for (number, (method, divides)) in methods.into_iter().enumerate() {
        let words: Vec<&str> = [&[&*model], &steps[..], method].concat();
        let one = root.path().join(format!("one-{number}"));
        ok(&sft(&one, "prompt_completion.jsonl", &words));
        for (nproc, tp_size, stage) in [(2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 2, 0)] {
            let many = root.path().join(format!("{number}-{nproc}-{tp_size}-{stage}"));
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
            let all: Vec<&str> = words.iter().copied().chain(given.iter().map(String::as_str)).collect();
            let run = sft(&many, "prompt_completion.jsonl", &all);
            if tp_size > 1 && !divides {
                fails(&run, &["tp_size", "use tp_size 1"]);
                continue;
            }
            ok(&run);
            close(&format!("{method:?}, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
        }
        let given = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let adapter = given("adapter_name_or_path", &one);
        let merged = given("output_dir", &root.path().join(format!("merged-{number}")));
        let merge = ["merge", &model, &adapter, &merged].map(str::to_owned);
        if method.iter().any(|word| word.contains("num_virtual_tokens")) {
            fails(&merge, &["_TUNING", "changes no weight"]);
        } else {
            ok(&merge);
        }
        ok(&["generate", &model, &adapter, "--prompt=a", "--max_new_tokens=3"].map(str::to_owned));
    }
    let refused = root.path().join("refused");
    let other: Vec<&str> = vec![&*model, "--use_peft", "--peft_type=OFT", "--peft_config={\"block\": 8}"];
    fails(&sft(&refused, "prompt_completion.jsonl", &other), &["peft_config", "`block`", "oft_block_size"]);
}

/// An adapter of MiCA keeps its B, as in PEFT, on every mesh.
#[test]
fn mica_keeps_its_b() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let steps = ["--max_steps=3", "--global_batch_size=8", "--save_strategy=no", "--learning_rate=0.02"];
    let first = root.path().join("first");
    let fresh = ["--use_peft", "--lora_r=2", "--lora_dropout=0", "--lora_target_modules=all-linear"];
    ok(&sft(&first, "prompt_completion.jsonl", &[&[&*model], &steps[..], &fresh].concat()));
    let config = first.join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let kept = text.replace(r#""init_lora_weights": true"#, r#""init_lora_weights": "mica""#);
    assert_ne!(text, kept);
    std::fs::write(&config, kept).unwrap();
    let adapter = format!("--adapter_name_or_path={}", first.display());
    let words: Vec<&str> = [&[&*model, &*adapter], &steps[..]].concat();
    let one = root.path().join("one");
    ok(&sft(&one, "prompt_completion.jsonl", &words));
    let open = |path: &Path| burnish_weight_files::WeightFolder::open_stem(path, "adapter_model").unwrap();
    let (before, after) = (open(&first), open(&one));
    for name in before.names() {
        let same = before.read(name).unwrap() == after.read(name).unwrap();
        assert_eq!(same, name.contains("lora_B"), "{name}");
    }
    assert!(std::fs::read_to_string(one.join("adapter_config.json")).unwrap().contains("mica"));
    for (nproc, tp_size, stage) in [(2, 1, 3), (2, 2, 0)] {
        let many = root.path().join(format!("{nproc}-{tp_size}-{stage}"));
        let given =
            [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
        let all: Vec<&str> = words.iter().copied().chain(given.iter().map(String::as_str)).collect();
        ok(&sft(&many, "prompt_completion.jsonl", &all));
        close(&format!("mica, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
    }
}

/// A fresh one starts from the base's minor vectors, on every mesh.
#[test]
fn a_fresh_mica_trains_alike_on_every_mesh() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let fresh = [
        "--use_peft",
        "--init_lora_weights=mica",
        "--lora_r=2",
        "--lora_dropout=0",
        "--lora_target_modules=all-linear",
        "--max_steps=3",
        "--global_batch_size=8",
        "--save_strategy=no",
        "--learning_rate=0.02",
    ];
    let words: Vec<&str> = [&[&*model], &fresh[..]].concat();
    let one = root.path().join("one");
    ok(&sft(&one, "prompt_completion.jsonl", &words));
    assert!(std::fs::read_to_string(one.join("adapter_config.json")).unwrap().contains("\"mica\""));
    for (nproc, tp_size, stage) in [(2, 1, 3), (2, 2, 0)] {
        let many = root.path().join(format!("{nproc}-{tp_size}-{stage}"));
        let given =
            [format!("--nproc={nproc}"), format!("--tp_size={tp_size}"), format!("--zero_stage={stage}")];
        let all: Vec<&str> = words.iter().copied().chain(given.iter().map(String::as_str)).collect();
        ok(&sft(&many, "prompt_completion.jsonl", &all));
        close(&format!("fresh mica, {nproc} ranks, tp {tp_size}, stage {stage}"), &one, &many);
    }
    let output = root.path().join("refused");
    fails(
        &sft(&output, "prompt_completion.jsonl", &[&words[..], &["--load_in_4bit"]].concat()),
        &["load_in_4bit", "mica"],
    );
}

fn losses(output: &Path) -> Vec<f64> {
    metrics(output).iter().filter_map(|line| line["loss"].as_f64()).collect()
}

#[test]
fn a_resumed_run_is_the_same_and_the_base_counts() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let run = |name: &str, more: &[&str]| -> PathBuf {
        let output = root.path().join(name);
        ok(&sft(&output, "prompt_completion.jsonl", &words(&model, more)));
        output
    };
    let loftq = ["--load_in_4bit", "--save_steps=2", "--init_lora_weights=loftq"];
    let again = "--loftq_config={\"loftq_iter\": 2}";
    let begun = run("begun", &loftq);
    for (name, loftq) in [("once", loftq.to_vec()), ("twice", [&loftq[..], &[again]].concat())] {
        let run_once = run(name, &loftq);
        assert_eq!(losses(&begun) == losses(&run_once), name == "once");
        let from = format!("--resume_from_checkpoint={}", run_once.join("checkpoint-2").display());
        let resumed = run(&format!("{name}-resumed"), &[&loftq[..], &[&from]].concat());
        assert_eq!(losses(&run_once)[2..], losses(&resumed)[losses(&resumed).len() - 2..]);
    }

    let whole = run("whole", &["--load_in_4bit", "--save_steps=2"]);
    assert_ne!(losses(&begun), losses(&whole), "the start is another");
    let plain = run("plain", &["--save_strategy=no"]);
    assert_ne!(losses(&whole), losses(&plain), "four bits are no others");
    let checkpoint = whole.join("checkpoint-2");
    let from = format!("--resume_from_checkpoint={}", checkpoint.display());
    let resumed = run("resumed", &["--load_in_4bit", "--save_strategy=no", &from]);
    assert_eq!(losses(&whole)[2..], losses(&resumed)[losses(&resumed).len() - 2..]);
}

#[test]
fn what_cannot_be_is_refused() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let output = root.path().join("refused");
    let refused = |more: &[&str], parts: &[&str]| {
        fails(&sft(&output, "prompt_completion.jsonl", &words(&model, more)), parts);
    };
    refused(&["--load_in_4bit", "--load_in_8bit"], &["load_in_4bit", "load_in_8bit", "one of the two"]);
    refused(&["--load_in_4bit", "--init_lora_weights=pissa"], &["load_in_4bit", "init_lora_weights"]);
    refused(&["--init_lora_weights=loftq"], &["init_lora_weights", "a base in full", "load_in_4bit"]);
    let loftq = ["--load_in_4bit", "--init_lora_weights=loftq"];
    for (settings, parts) in [
        (r#"{"loftq_bits": 8}"#, ["loftq_config", "load_in_4bit: true"]),
        (r#"{"loftq_iter": 0}"#, ["loftq_config", "from 1 to 1000"]),
        (r#"{"iterations": 1}"#, ["`iterations`", "loftq_bits or loftq_iter"]),
    ] {
        refused(&[&loftq[..], &[&format!("--loftq_config={settings}")]].concat(), &parts);
    }
    refused(
        &["--load_in_4bit", "--loftq_config={\"loftq_iter\": 1}"],
        &["loftq_config", "init_lora_weights: loftq"],
    );
    let full = [model.as_str(), "--load_in_4bit", "--max_steps=1"];
    fails(&sft(&output, "prompt_completion.jsonl", &full), &["load_in_4bit", "use_peft: true"]);
}

fn eval(model: &Path, more: &[&str]) -> Value {
    let mut words = vec!["eval".to_owned(), format!("--model_name_or_path={}", model.display())];
    words.push(format!("--dataset_name={}", rows("prompt_completion.jsonl").display()));
    words.extend(more.iter().map(|word| (*word).to_owned()));
    serde_json::from_str(&ok(&words)).unwrap()
}

fn loss(model: &Path, more: &[&str]) -> f64 {
    eval(model, more)["eval_loss"].as_f64().unwrap()
}

fn path() -> PathBuf {
    fixtures().join("models/llama-64")
}

/// A folder of the model in fewer bits.
fn quantised(root: &Path, how: &[&str]) -> PathBuf {
    let out = root.join(format!("quantised{}", how.concat()));
    let mut words = vec!["quantize".to_owned(), format!("--model_name_or_path={}", path().display())];
    words.push(format!("--output_dir={}", out.display()));
    words.extend(how.iter().map(|word| (*word).to_owned()));
    ok(&words);
    out
}

#[test]
fn a_quantised_folder_is_the_base_that_options_make() {
    let root = tempfile::tempdir().unwrap();
    for how in [&["--load_in_4bit", "--use_bnb_nested_quant"][..], &["--load_in_8bit"]] {
        let folder = quantised(root.path(), how);
        let bytes = |folder: &Path| std::fs::metadata(folder.join("model.safetensors")).unwrap().len();
        assert!(bytes(&folder) < bytes(&path()) * 3 / 4);
        // Read in the dtype that the folder had: bfloat16.
        let given = [how, &["--dtype=bfloat16"]].concat();
        assert_eq!(loss(&folder, &[]), loss(&path(), &given), "{how:?}");
        assert_ne!(loss(&folder, &[]), loss(&path(), &[]), "{how:?}");
        let text = |folder: &Path, more: &[&str]| {
            let mut words = vec!["generate".to_owned(), format!("--model_name_or_path={}", folder.display())];
            words.extend(["--prompt=Name a colour.".to_owned(), "--max_new_tokens=8".to_owned()]);
            words.extend(more.iter().map(|word| (*word).to_owned()));
            ok(&words)
        };
        let one = text(&folder, &[]);
        assert_eq!(text(&path(), &given), one);
        assert_eq!(text(&folder, &["--nproc=3", "--tp_size=3"]), one);
        // A run over it, on one rank and on ranks that share layers and rows.
        let run = |name: &str, more: &[&str]| -> PathBuf {
            let (out, model) = (root.path().join(name), format!("--model_name_or_path={}", folder.display()));
            let more = [&["--save_strategy=no"], more].concat();
            ok(&sft(&out, "prompt_completion.jsonl", &words(&model, &more)));
            out
        };
        let one = run(&format!("one{}", how[0]), &[]);
        for (name, mesh) in [
            ("tp", &["--nproc=2", "--tp_size=2"][..]),
            ("both", &["--nproc=4", "--tp_size=2", "--zero_stage=3"]),
        ] {
            let many = run(&format!("{name}{}", how[0]), mesh);
            close(&format!("{how:?} {name}"), &one, &many);
        }
    }
    let folder = quantised(root.path(), &["--load_in_4bit"]);
    let model = format!("--model_name_or_path={}", folder.display());
    let output = root.path().join("refused");
    let full = [model.as_str(), "--max_steps=1"];
    fails(&sft(&output, "prompt_completion.jsonl", &full), &["quantised already (nf4)", "use_peft"]);
    fails(
        &sft(&output, "prompt_completion.jsonl", &words(&model, &["--load_in_8bit"])),
        &["quantised already (nf4)", "leave load_in_4bit and load_in_8bit out"],
    );
    let again = ["quantize", "--load_in_4bit", &model, &format!("--output_dir={}", output.display())];
    fails(&again.map(str::to_owned), &["not quantised twice"]);
}

/// Rows of 32 elements, so that blocks reach over two rows.
#[test]
fn every_trainer_shares_a_quantised_base_among_ranks() {
    let held = [&preferences::LORA[..], &["--load_in_4bit", "--use_bnb_nested_quant"]].concat();
    for command in ["dpo", "kto", "reward"] {
        preferences::check(command, &held, &[(2, 2, 0), (3, 1, 3)]);
    }
    for command in ["grpo", "rloo"] {
        online::check(command, &held, &[(2, 2, 0), (2, 1, 3)]);
    }
}

#[test]
fn merging_says_what_is_lost() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let adapter = root.path().join("adapter");
    let held = ["--load_in_4bit", "--use_bnb_nested_quant"];
    ok(&sft(
        &adapter,
        "prompt_completion.jsonl",
        &words(&model, &[&held[..], &["--save_strategy=no"]].concat()),
    ));
    let over = format!("--adapter_name_or_path={}", adapter.display());
    let trained = loss(&path(), &[&held[..], &[&over]].concat());
    assert_ne!(trained, loss(&path(), &[&over]), "the base in four bits is another");
    let merge = |name: &str, more: &[&str]| -> (PathBuf, String) {
        let out = root.path().join(name);
        let mut words = vec!["merge".to_owned(), model.clone(), over.clone()];
        words.push(format!("--output_dir={}", out.display()));
        words.extend(held.iter().chain(more).map(|word| (*word).to_owned()));
        let output = run(&words);
        assert!(output.status.success(), "{}", stderr(&output));
        (out, stderr(&output))
    };
    let (whole, said) = merge("whole", &["--dtype=float32"]);
    assert!(
        said.contains(
            "the base was in nf4, the merged model is in float32: on a sample its logits differ by "
        ),
        "{said}"
    );
    assert!((loss(&whole, &[]) - trained).abs() <= 1e-5, "{said}");
    let (again, said) = merge("again", &["--requantize"]);
    assert!(said.contains("quantised again, the merged model is not the adapter over its base"), "{said}");
    assert!(
        said.contains("most likely tokens are others; without --requantize a dequantised folder"),
        "{said}"
    );
    let lost = (loss(&again, &[]) - trained).abs();
    assert!(lost > 1e-5 && lost < 0.5, "{lost}");
    let names = WeightFolder::open(&again).unwrap();
    assert!(names.contains("model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"));
    // Over a folder that is quantised already the same, without saying how.
    let folder = quantised(root.path(), &held);
    let words = |more: &[&str]| {
        let mut words =
            vec!["merge".to_owned(), format!("--model_name_or_path={}", folder.display()), over.clone()];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    };
    let out = root.path().join("of-folder");
    ok(&words(&[&format!("--output_dir={}", out.display())]));
    assert!(!std::fs::read_to_string(out.join("config.json")).unwrap().contains("quantization_config"));
    let base = loss(&folder, &[&over]);
    assert!((loss(&out, &[]) - base).abs() < 0.02, "bfloat16's rounding");
    let plain = [
        "merge".to_owned(),
        model.clone(),
        over.clone(),
        "--requantize".to_owned(),
        format!("--output_dir={}", out.join("no").display()),
    ];
    fails(&plain, &["--requantize: the base is not quantised", "--load_in_4bit"]);
}

/// One adapter of two: the sum of their changes, which merges; factors pruned; and what is not one request.
#[test]
fn several_adapters_become_one() {
    let (root, model) = (tempfile::tempdir().unwrap(), model());
    let mut parts = Vec::new();
    for seed in ["--seed=1", "--seed=2"] {
        let out = root.path().join(seed.trim_start_matches('-'));
        let words = [
            &*model,
            "--use_peft",
            "--lora_r=2",
            "--max_steps=2",
            "--learning_rate=0.05",
            "--save_strategy=no",
            seed,
        ];
        ok(&sft(&out, "prompt_completion.jsonl", &words));
        parts.push(out);
    }
    let adapters = format!("--adapters={}:0.7,{}:-0.4", parts[0].display(), parts[1].display());
    let out = |name: &str| format!("--output_dir={}", root.path().join(name).display());
    let merge = |more: &[&str]| -> Vec<String> {
        [&["merge", &*model], more].concat().into_iter().map(str::to_owned).collect()
    };
    ok(&merge(&[&adapters, &out("cat"), "--combination_type=cat"]));
    let ties = ["--combination_type=ties", "--density=0.5", "--majority_sign_method=frequency"];
    ok(&merge(&[&[&adapters, &*out("ties")], &ties[..]].concat()));
    ok(&merge(&[&adapters, &out("svd"), "--svd_rank=1"]));
    let whole = ["--combination_type=dare_ties_svd", "--density=0.5", "--majority_sign_method=frequency"];
    ok(&merge(&[&[&adapters, &*out("whole"), "--svd_rank=3", "--seed=5"], &whole[..]].concat()));
    for (name, rank) in [("cat", 4), ("ties", 2), ("svd", 1), ("whole", 3)] {
        let made = root.path().join(name);
        let file = WeightFolder::open_stem(&made, "adapter_model").unwrap();
        let key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
        assert_eq!(file.read(key).unwrap().shape[0], rank, "{name}");
        let adapter = format!("--adapter_name_or_path={}", made.display());
        ok(&merge(&[&adapter, &out(&format!("{name}-merged"))]));
    }
    for (more, why) in [
        (&[&*adapters, "--combination_type=ties"][..], &["density", "how much of each factor is kept"][..]),
        (&[&*adapters, "--density=0.5"], &["density", "take it out"]),
        (&[&*adapters, "--dtype=bfloat16"], &["dtype", "an adapter is written"]),
        (&["--adapters=here"], &["adapters", "folder:weight"]),
        (&["--combination_type=cat"], &["adapter_name_or_path", "name the adapters"]),
    ] {
        fails(&merge(&[more, &[&out("refused")]].concat()), why);
    }
}
