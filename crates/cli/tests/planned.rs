//! Plans of every trainer, held to what their steps move, to the element.

use std::path::{Path, PathBuf};

use crate::program::{fails, fixtures, metrics, model, ok};
use crate::shared_traffic::stated;

const LORA: [&str; 4] =
    ["--use_peft", "--lora_r=3", "--lora_target_modules=all-linear", "--lora_dropout=0.1"];

/// Rows whose texts fill `max_length`: a prompt of one token, so that pairs share none, and answers that are as long as a
/// row may be, in letters that are a token each.
fn full_rows(root: &Path, command: &str) -> PathBuf {
    // What is too long for a reward model is dropped; an end token follows.
    let long = "QZ".repeat(if command == "reward" { 5 } else { 20 });
    let row = match command {
        "kto" => serde_json::json!({"prompt": "Q", "completion": long, "label": true}),
        _ => serde_json::json!({"prompt": "Q", "chosen": long, "rejected": long}),
    };
    // Prompts of a token each, none twice: equal ones run once.
    let prompts =
        || ('A'..='Z').map(|letter| format!("{}\n", serde_json::json!({"prompt": letter.to_string()})));
    let sampled = matches!(command, "grpo" | "rloo");
    let text = if sampled { prompts().collect() } else { format!("{row}\n").repeat(40) };
    let path = root.join(format!("{command}.jsonl"));
    std::fs::write(&path, text).unwrap();
    path
}

/// Two steps of training move what the plan of the same words states; the plan.
#[track_caller]
fn check(command: &str, words: &[&str]) -> String {
    check_steps(command, words, 2)
}

#[track_caller]
fn check_steps(command: &str, words: &[&str], steps: usize) -> String {
    let root = tempfile::tempdir().unwrap();
    let mut run = vec![
        command.to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", full_rows(root.path(), command).display()),
        format!("--output_dir={}", root.path().join("out").display()),
    ];
    // Greedy completions of an untrained model do not end before they have to.
    let length: &[&str] = match command {
        "grpo" | "rloo" => &[
            "--max_completion_length=11",
            "--num_generations=2",
            "--reward_funcs=length_reward",
            "--top_k=1",
        ],
        _ => &["--max_length=12"],
    };
    run.extend(length.iter().map(|w| (*w).to_owned()));
    run.push(format!("--max_steps={steps}"));
    let common = ["--save_strategy=no", "--logging_steps=1"];
    let small = ["--per_device_train_batch_size=2", "--stage3_param_persistence_threshold=50"];
    run.extend(common.iter().chain(&small).chain(words).map(|w| (*w).to_owned()));
    ok(&run);
    run.insert(0, "plan".to_owned());
    let said = ok(&run);
    let kinds = ["activations and gradients: ", "weights and gradients: ", "updates: "];
    let planned: f64 = kinds.iter().map(|label| stated(&said, label)).sum();
    assert!(planned > 0.0, "{command} {words:?}\n{said}");
    for record in metrics(&root.path().join("out")) {
        if let Some(ended) = record.get("completions/clipped_ratio") {
            assert_eq!(ended.as_f64(), Some(1.0), "every completion is as long as planned");
        }
        assert_eq!(record["comm_elements"].as_f64(), Some(planned), "{command} {words:?}\n{said}");
    }
    said
}

const MESHES: [[&str; 3]; 4] = [
    ["--nproc=3", "--tp_size=1", "--zero_stage=3"],
    ["--nproc=2", "--tp_size=2", "--zero_stage=0"],
    ["--nproc=4", "--tp_size=2", "--zero_stage=3"],
    ["--nproc=2", "--tp_size=1", "--zero_stage=2"],
];

/// Each kind over two meshes, in turn with and without recomputation and accumulation.
fn every_kind(command: &str, kinds: &[&[&str]]) {
    for (turn, kind) in kinds.iter().enumerate() {
        for mesh in [MESHES[turn % 4], MESHES[(turn + 2) % 4]] {
            let accumulation = format!("--gradient_accumulation_steps={}", 1 + turn % 2);
            let again =
                if turn % 3 == 0 { "--no_gradient_checkpointing" } else { "--gradient_checkpointing" };
            let words: Vec<&str> =
                mesh.into_iter().chain([&*accumulation, again]).chain(kind.iter().copied()).collect();
            check(command, &words);
        }
    }
}

#[test]
fn preferences_move_what_their_plan_states() {
    let other = format!("--ref_model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    let own = format!("--ref_model_name_or_path={}", model().display());
    let dora: Vec<&str> = LORA.iter().copied().chain(["--use_dora"]).collect();
    let copies = ["--use_peft", "--lora_target_modules=v_proj", "--lora_modules_to_save=lm_head,norm"];
    let with_other: Vec<&str> = LORA.iter().copied().chain([&*other]).collect();
    every_kind(
        "dpo",
        &[
            &LORA,
            &dora,
            &copies,
            &["--dtype=bfloat16"],
            &with_other,
            &["--loss_type=aot", &other, "--no_stage3_keep_root", "--no_stage3_prefetch"],
            &["--sync_ref_model", &own],
            &["--precompute_ref_log_probs", "--loss_type=aot_unpaired"],
        ],
    );
}

#[test]
fn answers_pairs_and_reward_models_move_what_their_plan_states() {
    every_kind("kto", &[&LORA, &[], &["--loss_type=apo_zero_unpaired"], &["--precompute_ref_log_probs"]]);
    every_kind("cpo", &[&LORA, &["--loss_type=alphapo", "--alpha=0.1"]]);
    every_kind("orpo", &[&LORA, &[]]);
    every_kind("reward", &[&LORA, &["--no_stage3_prefetch"], &["--center_rewards_coefficient=0.1"]]);
}

#[test]
fn sampled_completions_move_what_their_plan_states() {
    let own = format!("--ref_model_name_or_path={}", model().display());
    let dora: Vec<&str> = LORA.iter().copied().chain(["--use_dora", "--beta=0.1"]).collect();
    let base: Vec<&str> = LORA.iter().copied().chain(["--beta=0.1"]).collect();
    let twice = ["--num_iterations=2", "--beta=0.1", &*own];
    let sorted: Vec<&str> = LORA.iter().copied().chain(["--top_entropy_quantile=0.5"]).collect();
    every_kind("grpo", &[&LORA, &base, &["--dtype=bfloat16"], &dora, &sorted]);
    every_kind("rloo", &[&LORA, &[], &["--generation_max_sequences=1"]]);
    for mesh in [MESHES[0], MESHES[2]] {
        // The step that samples; the one after it trains on the same completions.
        check_steps("grpo", &mesh.into_iter().chain(twice).collect::<Vec<_>>(), 1);
    }
}

/// The words of a reference's row of the table.
fn reference(said: &str) -> Option<Vec<&str>> {
    let line = said.lines().find(|line| line.starts_with("reference "))?;
    Some(line.split_whitespace().skip(1).collect())
}

#[test]
fn a_reference_is_in_the_plan_where_it_is_in_memory() {
    let plan = |more: &[&str]| {
        let words =
            ["plan".to_owned(), "dpo".to_owned(), format!("--model_name_or_path={}", model().display())];
        ok(&words.into_iter().chain(more.iter().map(|w| (*w).to_owned())).collect::<Vec<_>>())
    };
    let weights = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("weights ")).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    // No rows are needed. A copy of all that trains is as large as that, a fresh adapter needs none.
    let full = plan(&[]);
    assert_eq!(reference(&full).unwrap(), weights(&full), "{full}");
    assert_eq!(reference(&plan(&["--use_peft"])), None);
    assert_eq!(reference(&plan(&["--precompute_ref_log_probs"])), None);
    // In its own dtype: the fixtures are bf16 on disk.
    let own = format!("--ref_model_name_or_path={}", model().display());
    let frozen = plan(&["--use_peft", &own]);
    assert_eq!(reference(&frozen).unwrap()[1], "kB", "{frozen}");
    let sharded =
        plan(&["--use_peft", &own, "--nproc=4", "--zero_stage=3", "--stage3_param_persistence_threshold=50"]);
    let size = |said: &str| reference(said).unwrap()[0].parse::<f64>().unwrap();
    assert!(size(&sharded) < 0.5 * size(&frozen), "{sharded}\n{frozen}");
    fails(&["plan".to_owned(), "grpoo".to_owned()], &["no plan of `grpoo`", "sft|dpo|kto|cpo|orpo|reward"]);
}

/// Beside the optimizer's two moments of an adapter's parameters AdaLoRA keeps two averages, of the same rows.
#[test]
fn averages_of_importance_are_in_the_plan() {
    let optimizer = |more: &[&str]| {
        let adapter = ["--use_peft", "--peft_type=ADALORA", r#"--peft_config={"init_r": 12, "tfinal": 2}"#];
        let model = format!("--model_name_or_path={}", model().display());
        let words = ["plan", "sft", model.as_str(), "--max_steps=6"];
        let said =
            ok(&[&words[..], &adapter, more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>());
        let line =
            said.lines().find(|line| line.starts_with("optimizer ")).unwrap_or_else(|| panic!("{said}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.len() - 2].parse::<f64>().unwrap()
    };
    let (adam, momentum) = (optimizer(&[]), optimizer(&["--optim=lion_32bit"]));
    assert!((adam / momentum - 4.0 / 3.0).abs() < 0.01, "{adam} {momentum}");
}
