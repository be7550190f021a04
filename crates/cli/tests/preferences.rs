//! DPO, KTO, CPO, ORPO and reward models: the same on any layout, stopped or not, and clear where they cannot run.

use std::path::Path;

use serde_json::Value;

use crate::program::{copy, fails, fixtures, metrics, model, ok, rows, run_example};
use crate::ranks::close;
use crate::resume::goes_on;

pub(crate) const LORA: [&str; 5] =
    ["--use_peft", "--lora_r=4", "--lora_alpha=8", "--lora_target_modules=all-linear", "--lora_dropout=0"];

pub(crate) fn words(command: &str, output: &Path, more: &[&str]) -> Vec<String> {
    let data = if command == "kto" { "unpaired" } else { "preference" };
    let mut words = vec![
        command.to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", rows(&format!("{data}.jsonl")).display()),
        format!("--eval_dataset_name={}", rows(&format!("{data}_eval.jsonl")).display()),
        format!("--output_dir={}", output.display()),
    ];
    let common = ["--per_device_train_batch_size=2", "--learning_rate=2e-3", "--logging_steps=1"];
    let beta = (command != "reward").then_some("--beta=0.3");
    words.extend(common.iter().chain(&beta).chain(more).map(|word| (*word).to_owned()));
    words
}

pub(crate) fn number(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"))
}

/// What a run on several ranks logs besides what [`close`] looks at.
#[track_caller]
fn close_rewards(what: &str, one: &Path, many: &Path) {
    for (a, b) in metrics(one).iter().zip(metrics(many)) {
        for (name, a) in a.as_object().unwrap() {
            let of_texts = ["_reward", "margin", "accuracy"].iter().any(|end| name.ends_with(end));
            if of_texts || name.contains("rewards/") || name.contains("logps/") || name.ends_with("kl") {
                let (a, b) = (a.as_f64().unwrap(), number(&b, name));
                // Differences of sums of tens, each token's value to six digits.
                assert!((a - b).abs() <= 1e-5 * a.abs().max(10.0), "{what}: {name}: {a} and {b}");
            }
        }
    }
}

#[track_caller]
fn starts_even(output: &Path, loss: f64) {
    let first = &metrics(output)[0];
    assert!((number(first, "loss") - loss).abs() < 1e-9, "{first}");
    for (name, value) in first.as_object().unwrap() {
        assert!(!name.contains("rewards/") || value.as_f64() == Some(0.0), "{name}: {value} in {first}");
    }
}

/// One rank, then others: (ranks, tp_size, zero_stage).
pub(crate) fn check(command: &str, common: &[&str], meshes: &[(usize, usize, u8)]) {
    let root = tempfile::tempdir().unwrap();
    let mut all =
        vec!["--max_steps=5", "--global_batch_size=8", "--save_strategy=no", "--eval_strategy=steps"];
    all.extend(["--stage3_param_persistence_threshold=50", "--eval_steps=5"]);
    all.extend(common);
    let one = root.path().join("one");
    ok(&words(command, &one, &all));
    let other = common.iter().any(|word| word.starts_with("--ref_model_name_or_path"));
    let loss = match command {
        _ if other => None,
        "dpo" => Some(std::f64::consts::LN_2),
        "kto" => Some(0.5),
        _ => None,
    };
    if let Some(loss) = loss {
        starts_even(&one, loss);
    }
    for &(nproc, tp, stage) in meshes {
        let many = root.path().join(format!("{nproc}-{tp}-{stage}"));
        let given = [format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")];
        let given: Vec<&str> = all.iter().copied().chain(given.iter().map(String::as_str)).collect();
        ok(&words(command, &many, &given));
        let what = format!("{command} {common:?} on {nproc} ranks, tp {tp}, stage {stage}");
        if let Some(loss) = loss {
            starts_even(&many, loss);
        }
        close(&what, &one, &many);
        close_rewards(&what, &one, &many);
    }
}

const MESHES: [(usize, usize, u8); 3] = [(2, 1, 2), (2, 2, 0), (4, 2, 3)];

#[test]
fn a_fresh_adapter_is_compared_with_its_base_on_every_layout() {
    check("dpo", &LORA, &MESHES);
    check("dpo", &[&LORA[..], &["--use_dora"]].concat(), &MESHES[2..]);
}

/// Adapters that act from a token on, which prompts have, and some answers again; the reference is the base.
#[test]
fn an_adapter_that_waits_is_compared_with_its_base_on_every_layout() {
    let waits = [&LORA[..], &["--alora_invocation_tokens=71"]].concat();
    check("dpo", &waits, &MESHES);
    check("kto", &waits, &MESHES[2..]);
    check("reward", &waits, &MESHES[2..]);
}

#[test]
fn an_adapter_that_changes_its_base_is_compared_with_its_copy() {
    check("dpo", &[&LORA[..], &["--init_lora_weights=pissa"]].concat(), &MESHES[2..]);
}

#[test]
fn the_whole_model_is_compared_with_its_copy_on_every_layout() {
    // Elements whose gradients cancel move by rounding alone, if the epsilon does not stop them.
    let common = ["--adam_epsilon=1e-4", "--no_gradient_checkpointing"];
    check("dpo", &common, &MESHES);
}

#[test]
fn losses_that_look_at_the_whole_step_do_not_depend_on_its_layout() {
    let common = ["--loss_type=sigmoid,aot_unpaired", "--loss_weights=1,0", "--adam_epsilon=1e-4"];
    check("dpo", &common, &[(3, 1, 0), (4, 2, 3)]);
}

#[test]
fn a_reference_that_moves_or_was_scored_before_is_the_same_on_every_layout() {
    let moving = ["--sync_ref_model", "--ref_model_sync_steps=2", "--adam_epsilon=1e-4"];
    check("dpo", &moving, &[(2, 1, 1), (4, 2, 3)]);
    check("dpo", &["--precompute_ref_log_probs", "--adam_epsilon=1e-4"], &[(3, 1, 0), (4, 2, 3)]);
}

#[test]
fn another_model_as_reference_is_the_same_on_every_layout() {
    let other = format!("--ref_model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    check("dpo", &[&LORA[..], &[&other]].concat(), &MESHES);
    check("dpo", &["--adam_epsilon=1e-4", &other, "--precompute_ref_log_probs"], &[(4, 2, 3)]);
    check("kto", &["--adam_epsilon=1e-4", &other], &MESHES[2..]);
}

/// The policy's own folder as the other model: the same sums, and in a copy the same bits.
#[test]
fn a_models_own_folder_is_its_reference() {
    let root = tempfile::tempdir().unwrap();
    let own = format!("--ref_model_name_or_path={}", model().display());
    let common = ["--max_steps=4", "--save_strategy=no", "--adam_epsilon=1e-4"];
    let moving = ["--sync_ref_model", "--ref_model_sync_steps=2"];
    for (at, more) in [&LORA[..], &moving, &["--dtype=bfloat16"]].into_iter().enumerate() {
        let (built_in, named) = (root.path().join(format!("{at}")), root.path().join(format!("{at} named")));
        let words_of = |out, own: &[&str]| words("dpo", out, &[&common[..], more, own].concat());
        ok(&words_of(&built_in, &[]));
        ok(&words_of(&named, &[&own]));
        starts_even(&named, std::f64::consts::LN_2);
        let (a, b) = (metrics(&built_in), metrics(&named));
        assert_eq!(a.len(), 4);
        for (a, b) in a.iter().zip(&b) {
            for (name, a) in a.as_object().unwrap() {
                let (a, b) = (a.as_f64().unwrap(), number(b, name));
                assert!((a - b).abs() <= 1e-6 * a.abs().max(1.0), "{more:?}: {name}: {a} and {b}");
            }
        }
    }
}

/// A model of the same shapes moves from where it is, on every layout and after a stop.
#[test]
fn another_model_that_moves_is_the_same_on_every_layout_and_resumed() {
    let root = tempfile::tempdir().unwrap();
    let tuned = root.path().join("tuned");
    ok(&words("dpo", &tuned, &["--max_steps=2", "--save_strategy=no"]));
    let other = format!("--ref_model_name_or_path={}", tuned.display());
    let moving = ["--sync_ref_model", "--ref_model_sync_steps=2", "--adam_epsilon=1e-4", &other];
    check("dpo", &moving, &[(4, 2, 3)]);
    resumes("dpo", &moving);
    let elsewhere = fixtures().join("models/qwen3-tied");
    let elsewhere = format!("--ref_model_name_or_path={}", elsewhere.display());
    let out = root.path().join("out");
    let refused = words("dpo", &out, &["--sync_ref_model", &elsewhere]);
    fails(&refused, &["sync_ref_model", "qwen3-tied", "same shapes"]);
    // Another tokenizer: two tokens have changed places.
    copy(&model(), &tuned);
    let file = tuned.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let at = |id: u64| vocab.iter().find(|(_, i)| i.as_u64() == Some(id)).unwrap().0.clone();
    let (a, b) = (at(40), at(41));
    vocab.insert(a, 41.into());
    vocab.insert(b, 40.into());
    std::fs::write(&file, json.to_string()).unwrap();
    fails(&words("dpo", &out, &[&other]), &["ref_model_name_or_path", "id 40 is", "same tokenizer"]);
}

#[test]
fn answers_that_are_desirable_or_not_train_alike_on_every_layout() {
    check("kto", &LORA, &MESHES);
    check("kto", &["--adam_epsilon=1e-4", "--precompute_ref_log_probs"], &MESHES[2..]);
}

#[test]
fn preferences_without_a_reference_train_alike_on_every_layout() {
    check("cpo", &["--loss_type=simpo", "--cpo_alpha=0.5", "--adam_epsilon=1e-4"], &MESHES);
    check("orpo", &LORA, &MESHES);
}

#[test]
fn a_reward_model_is_the_same_on_every_layout() {
    check("reward", &["--center_rewards_coefficient=0.01", "--adam_epsilon=1e-4"], &MESHES);
    check("reward", &LORA, &MESHES[1..]);
}

#[test]
fn a_reward_model_is_left_as_transformers_and_peft_have_it() {
    let root = tempfile::tempdir().unwrap();
    let (full, adapter) = (root.path().join("full"), root.path().join("adapter"));
    let json = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    ok(&words("reward", &full, &["--max_steps=2", "--save_strategy=no"]));
    let config = json(&full.join("config.json"));
    assert_eq!(config["architectures"][0], "LlamaForSequenceClassification");
    assert_eq!(config["id2label"]["0"], "LABEL_0");
    let names = burnish_weight_files::WeightFolder::open(&full).unwrap();
    assert!(names.contains("score.weight") && !names.contains("lm_head.weight"));
    // It is trained further as it is.
    let mut again = words("reward", &root.path().join("again"), &["--max_steps=1", "--save_strategy=no"]);
    again[1] = format!("--model_name_or_path={}", full.display());
    ok(&again);
    ok(&words("reward", &adapter, &[&LORA[..], &["--max_steps=2", "--save_strategy=no"]].concat()));
    let config = json(&adapter.join("adapter_config.json"));
    assert_eq!(config["task_type"], "SEQ_CLS");
    assert!(config["modules_to_save"].to_string().contains("score"), "{config}");
    let card = std::fs::read_to_string(adapter.join("README.md")).unwrap();
    assert!(card.contains("pipeline_tag: text-classification") && card.contains("num_labels=1"), "{card}");
    // Texts score the same with the adapter and with what it is merged into.
    let merged = root.path().join("merged");
    let (base, of) = (format!("--model_name_or_path={}", model().display()), |option: &str, path: &Path| {
        format!("--{option}={}", path.display())
    });
    let given = of("adapter_name_or_path", &adapter);
    let into = [of("output_dir", &merged), "--dtype=float32".to_owned()];
    ok(&[&["merge".to_owned(), base.clone(), given.clone()][..], &into].concat());
    assert_eq!(json(&merged.join("config.json"))["architectures"][0], "LlamaForSequenceClassification");
    assert!(json(&merged.join("config.json"))["pad_token_id"].is_u64());
    let scores = |words: &[String]| -> Vec<f64> {
        let said =
            ok(&[&["score".to_owned()][..], words, &[of("dataset_name", &rows("text.jsonl"))]].concat());
        let score = |line: &str| serde_json::from_str::<Value>(line).unwrap()["score"].as_f64().unwrap();
        said.lines().map(score).collect()
    };
    let one = scores(&[base.clone(), given.clone()]);
    assert!(one.len() > 5 && one.iter().any(|score| (score - one[0]).abs() > 1e-3), "{one:?}");
    let ranks = text(&["--nproc=2", "--tp_size=2"]);
    for other in
        [scores(&[of("model_name_or_path", &merged)]), scores(&[&[base, given][..], &ranks].concat())]
    {
        assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-4), "{one:?} {other:?}");
    }
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// An adapter in bf16's company: fp32 factors over a bf16 base, gathered together.
#[test]
fn adapters_over_a_bf16_base_equal_one_rank_after_ten_steps() {
    for command in ["dpo", "kto", "reward"] {
        check(command, &[&LORA[..], &["--max_steps=10", "--dtype=auto"]].concat(), &[(4, 2, 3)]);
    }
}

fn resumes(command: &str, more: &[&str]) {
    goes_on(|output, more| words(command, output, more), more, None);
}

#[test]
fn stopping_and_going_on_equals_never_stopping() {
    resumes("dpo", &[&LORA[..], &["--no_disable_dropout", "--lora_dropout=0.1"]].concat());
    resumes("dpo", &[]);
    resumes("dpo", &["--dtype=bfloat16", "--precompute_ref_log_probs"]);
    resumes("dpo", &["--sync_ref_model", "--ref_model_sync_steps=2"]);
    let other = format!("--ref_model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    resumes("dpo", &[&LORA[..], &[&other]].concat());
    resumes("kto", &LORA);
    resumes("orpo", &[]);
    resumes("reward", &LORA);
    resumes("reward", &["--nproc=2", "--tp_size=2"]);
    resumes("kto", &["--sync_ref_model", "--ref_model_sync_steps=2", "--nproc=2", "--zero_stage=3"]);
}

#[test]
fn scores_of_the_reference_are_found_by_what_they_depend_on() {
    let root = tempfile::tempdir().unwrap();
    let scores = root.path().join("scores");
    let dir = format!("--precompute_ref_dir={}", scores.display());
    let common = ["--max_steps=2", "--save_strategy=no", "--precompute_ref_log_probs", &dir];
    let run = |name: &str, more: &[&str]| {
        let out = root.path().join(name);
        ok(&words("dpo", &out, &common.iter().chain(more).copied().collect::<Vec<_>>()));
        (std::fs::read_dir(&scores).unwrap().count(), metrics(&out))
    };
    let (files, first) = run("first", &[]);
    assert_eq!(files, 1);
    // Found again, whatever the rate or the batch.
    let (files, again) = run("again", &["--precompute_ref_batch_size=5"]);
    assert_eq!(files, 1);
    assert_eq!(first, again);
    let file = std::fs::read_dir(&scores).unwrap().next().unwrap().unwrap().path();
    // A damaged file is made anew.
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(run("damaged", &[]).1, first);
    assert_eq!(std::fs::read(&file).unwrap(), whole);
    assert_eq!(run("shorter", &["--max_length=20"]).0, 2);
    assert_eq!(run("of another start", &["--random_weights"]).0, 3);
    // What another model says does not depend on the policy's start.
    let other = format!("--ref_model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    assert_eq!(run("of another model", &[&other]).0, 4);
    assert_eq!(run("of another model, another start", &[&other, "--random_weights"]).0, 4);
}

#[test]
fn what_cannot_be_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let mut of_sft = words("dpo", &out, &[]);
    of_sft[2] = format!("--dataset_name={}", rows("prompt_completion.jsonl").display());
    fails(&of_sft, &["prompt_completion.jsonl, line 1", "preference optimisation needs", "chosen"]);
    of_sft[0] = "kto".into();
    fails(&of_sft, &["prompt_completion.jsonl, line 1", "label"]);
    fails(&words("dpo", &out, &["--max_length=2"]), &["max_length"]);
    ok(&words("dpo", &out, &["--max_steps=2", "--save_steps=1"]));
    let mut other = words("kto", &out, &["--max_steps=4", "--resume_from_checkpoint=true"]);
    other[2] = words("dpo", &out, &[])[2].clone();
    fails(&other, &["cannot resume", "the command was \"dpo\""]);
}

/// A shipped example, shorter, and its first line about held-out rows.
fn example(command: &str, config: &str, out: &Path, more: &[&str]) -> Value {
    run_example(command, config, out, &[&["--max_steps=16", "--eval_steps=16"][..], more].concat());
    metrics(out).into_iter().find(|line| line["eval_loss"].is_number()).unwrap()
}

/// The preference is there on held-out pairs after a few steps.
#[test]
fn the_example_learns_the_preference() {
    let out = tempfile::tempdir().unwrap();
    let held_out = example("dpo", "examples/dpo-lora.yaml", out.path(), &[]);
    assert!(number(&held_out, "eval_rewards/accuracies") > 0.95, "{held_out}");
    assert!(number(&held_out, "eval_rewards/margins") > 1.0, "{held_out}");
    assert!(out.path().join("adapter_model.safetensors").is_file());
}

/// The adapter of one example is where the next one starts, and what its rewards are measured from.
#[test]
fn the_example_of_marked_answers_tells_good_from_bad() {
    let root = tempfile::tempdir().unwrap();
    let (pirate, out) = (root.path().join("pirate"), root.path().join("kto"));
    let short = ["--max_steps=60", "--eval_strategy=no", "--save_strategy=no"];
    run_example("sft", "examples/sft-lora.yaml", &pirate, &short);
    let adapter = format!("--adapter_name_or_path={}", pirate.display());
    let held_out = example("kto", "examples/kto-lora.yaml", &out, &[&adapter, "--logging_steps=1"]);
    starts_even(&out, 0.5);
    assert!(number(&held_out, "eval_rewards/chosen") > 0.5, "{held_out}");
    assert!(number(&held_out, "eval_rewards/rejected") < -0.3, "{held_out}");
    assert!(out.join("adapter_model.safetensors").is_file());
}

#[test]
fn the_example_of_a_reward_model_scores_held_out_pairs() {
    let out = tempfile::tempdir().unwrap();
    let held_out = example("reward", "examples/reward.yaml", out.path(), &[]);
    assert!(number(&held_out, "eval_accuracy") > 0.9, "{held_out}");
}
