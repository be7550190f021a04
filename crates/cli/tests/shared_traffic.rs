//! Traffic between ranks that share layers: as `plan` says, to the element.

use std::path::Path;

use crate::program::{fixtures, metrics, ok, run, sft, stderr};

const LORA: [&str; 4] =
    ["--use_peft", "--lora_r=3", "--lora_target_modules=all-linear", "--lora_dropout=0.1"];

/// Longer rows than any run here takes: every micro-batch is full, and every token but a row's first is predicted.
fn long_rows(root: &Path) -> String {
    let row = format!("{{\"text\": \"{}\"}}\n", "the quick brown fox jumps over the lazy dog ".repeat(8));
    let path = root.join("long.jsonl");
    std::fs::write(&path, row.repeat(48)).unwrap();
    path.display().to_string()
}

/// The number of elements that a line of the plan starting with `label` states.
pub(crate) fn stated(said: &str, label: &str) -> f64 {
    let line = said.lines().find_map(|line| line.strip_prefix(label));
    line.map_or(0.0, |rest| rest.split_whitespace().next().unwrap().parse().unwrap())
}

/// Two steps of training move what `plan` states; the plan.
#[track_caller]
pub(crate) fn check(root: &Path, words: &[&str]) -> String {
    check_steps(root, words, &["", ""])
}

/// Steps of training move what `plan` states, each with what the line of its label states besides.
#[track_caller]
fn check_steps(root: &Path, words: &[&str], steps: &[&str]) -> String {
    let data = long_rows(root);
    let count = format!("--max_steps={}", steps.len());
    let mut all = vec![&*count, "--save_strategy=no", "--max_length=12", "--logging_steps=1"];
    all.extend(["--per_device_train_batch_size=2", "--stage3_param_persistence_threshold=50"]);
    all.extend(words);
    let out = root.join("out");
    let _ = std::fs::remove_dir_all(&out);
    let mut run = sft(&out, "text.jsonl", &all);
    run[4] = data;
    ok(&run);
    run[0] = "plan".to_owned();
    let said = ok(&run);
    let kinds = ["activations and gradients: ", "weights and gradients: ", "updates: "];
    let planned: f64 = kinds.iter().map(|label| stated(&said, label)).sum();
    let records = metrics(&out);
    assert_eq!(records.len(), steps.len());
    for (record, label) in records.iter().zip(steps) {
        let besides = if label.is_empty() { 0.0 } else { stated(&said, label) };
        assert!(label.is_empty() || besides > 0.0, "{label}\n{said}");
        let moved = record["comm_elements"].as_f64();
        assert_eq!(moved, Some(planned + besides), "{words:?}, {record}\n{said}");
    }
    said
}

/// Each kind of tuning on `model`, over each mesh (ranks, tp_size, zero_stage), in turn with and without recomputation
/// and accumulation.
fn every_kind(model: &str, meshes: &[(usize, usize, u8)]) {
    let root = tempfile::tempdir().unwrap();
    let model = format!("--model_name_or_path={}", fixtures().join("models").join(model).display());
    let dora: Vec<&str> = LORA.iter().copied().chain(["--use_dora"]).collect();
    let vocabulary = ["--use_peft", "--lora_r=2", "--lora_target_modules=embed_tokens,o_proj,k_proj,lm_head"];
    // The tied model's row of padding is zero, which has no direction: its magnitude stays zero.
    let dora_vocabulary = [
        "--use_peft",
        "--use_dora",
        "--lora_r=2",
        "--lora_target_modules=embed_tokens,o_proj,k_proj,lm_head",
    ];
    let copies = ["--use_peft", "--lora_target_modules=v_proj", "--lora_modules_to_save=lm_head,norm"];
    let kinds: [&[&str]; 7] =
        [&LORA, &dora, &vocabulary, &dora_vocabulary, &copies, &[], &["--dtype=bfloat16"]];
    for (turn, kind) in kinds.iter().enumerate() {
        for (mesh_turn, (nproc, tp, stage)) in meshes.iter().enumerate() {
            let given =
                [format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")];
            // Neighbours in the list of meshes take different pairs, and so do kinds.
            let turn = turn + mesh_turn;
            let recompute =
                if turn % 2 == 0 { "--gradient_checkpointing" } else { "--no_gradient_checkpointing" };
            let accumulation = format!("--gradient_accumulation_steps={}", 1 + turn / 2 % 2);
            let mut words = vec![model.as_str(), recompute, &accumulation];
            words.extend(given.iter().map(String::as_str).chain(kind.iter().copied()));
            check(root.path(), &words);
        }
    }
}

const MESHES: [(usize, usize, u8); 6] = [(2, 2, 0), (3, 3, 0), (4, 4, 0), (4, 2, 0), (4, 2, 2), (4, 2, 3)];

#[test]
fn an_untied_model_moves_what_its_plan_states() {
    every_kind("llama", &MESHES);
}

#[test]
fn a_tied_model_with_head_norms_moves_what_its_plan_states() {
    every_kind("qwen3-tied", &MESHES);
}

/// Methods whose parameters each rank has whole, factors that are pulled, adapters that wait, and layers that stand several
/// times.
#[test]
fn other_adapters_move_what_their_plans_state() {
    let root = tempfile::tempdir().unwrap();
    let targets = "--lora_target_modules=k_proj,o_proj,up_proj,down_proj";
    let singular =
        "--peft_config={\"init_r\": 3, \"target_r\": 1, \"tinit\": 50, \"tfinal\": 10, \"total_step\": 100}";
    let kinds: [&[&str]; 6] = [
        &["--use_peft", "--peft_type=VERA", "--lora_r=4", targets],
        &["--use_peft", "--peft_type=LOKR", "--lora_r=2", targets],
        &["--use_peft", "--peft_type=OFT", "--peft_config={\"oft_block_size\": 4}", targets],
        &["--use_peft", "--peft_type=ADALORA", singular, targets],
        &["--use_peft", "--lora_r=2", "--alora_invocation_tokens=71", targets],
        &["--use_peft", "--lora_r=2", "--layer_replication=[[0, 2], [1, 2]]", targets],
    ];
    for kind in kinds {
        for (mesh, recompute) in [
            (&["--nproc=2", "--tp_size=2"][..], "--gradient_checkpointing"),
            (&["--nproc=4", "--tp_size=2", "--zero_stage=3"], "--no_gradient_checkpointing"),
        ] {
            check(root.path(), &[mesh, &[recompute], kind].concat());
        }
    }
}

/// Steps that allot AdaLoRA's ranks sum importance over all ranks besides: after `tinit` every `deltaT` of them, until `tfinal`
/// before the end.
#[test]
fn steps_that_allot_ranks_move_what_their_plan_states() {
    let root = tempfile::tempdir().unwrap();
    let own = "--peft_config={\"init_r\": 3, \"target_r\": 1, \"tinit\": 1, \"tfinal\": 2, \"deltaT\": 2, \"total_step\": 7}";
    let common = ["--use_peft", "--peft_type=ADALORA", own, "--lora_target_modules=k_proj,o_proj,down_proj"];
    // After steps 2, 4 and 5, counted from 0: the fifth is the last allotment.
    let steps = ["", "", "importance: ", "", "importance: ", "importance: ", ""];
    for mesh in [
        &["--nproc=2"][..],
        &["--nproc=2", "--zero_stage=3"],
        &["--nproc=2", "--tp_size=2"],
        &["--nproc=4", "--tp_size=2", "--zero_stage=2"],
    ] {
        let said = check_steps(root.path(), &[mesh, &common].concat(), &steps);
        // Three singular values of each of two layers' modules.
        assert_eq!(stated(&said, "importance: "), 18.0, "{said}");
    }
    let one = ok(&{
        let mut words = sft(&root.path().join("one"), "text.jsonl", &common);
        words[0] = "plan".to_owned();
        words
    });
    assert!(!one.contains("importance: "), "{one}");
}

/// Inside their layers or beside them: what is planned is moved, the numbers are the same, and `auto` takes what moves
/// less.
#[test]
fn sums_of_adapters_are_chosen_by_what_they_move() {
    let root = tempfile::tempdir().unwrap();
    for (mesh, length, best) in [("--nproc=2", 12, "rank_r"), ("--nproc=4", 40, "fused")] {
        let length = format!("--max_length={length}");
        let mut found = Vec::new();
        for reduce in ["auto", "fused", "rank_r"] {
            let reduce = format!("--tp_adapter_reduce={reduce}");
            let mut words = vec![mesh, "--tp_size=2", &length, "--no_gradient_checkpointing", &reduce];
            words.extend(LORA);
            let said = check(root.path(), &words);
            let loss: Vec<f64> =
                metrics(&root.path().join("out")).iter().map(|r| r["loss"].as_f64().unwrap()).collect();
            let adapters = said.lines().find(|l| l.starts_with("adapters: ")).unwrap().to_owned();
            found.push((stated(&said, "activations and gradients: "), adapters, loss));
        }
        let [auto, fused, rank_r] = &found[..] else { panic!("three") };
        assert!(fused.1.contains("fused with column") && rank_r.1.contains("rank_r with row"), "{found:?}");
        assert_eq!(auto, if best == "fused" { fused } else { rank_r });
        assert_eq!(auto.0, fused.0.min(rank_r.0), "{found:?}");
        assert_ne!(fused.0, rank_r.0);
        for (a, b) in fused.2.iter().zip(&rank_r.2) {
            assert!((a - b).abs() < 1e-5 * a, "{found:?}");
        }
    }
}

/// Both of two settings, on one mesh.
#[test]
fn recomputation_repeats_the_sums_of_forward_and_accumulation_those_of_a_pass() {
    let root = tempfile::tempdir().unwrap();
    let mut planned = Vec::new();
    for recompute in ["--gradient_checkpointing", "--no_gradient_checkpointing"] {
        for accumulation in ["--gradient_accumulation_steps=1", "--gradient_accumulation_steps=2"] {
            let mut words = vec!["--nproc=2", "--tp_size=2", recompute, accumulation];
            words.extend(LORA);
            let said = check(root.path(), &words);
            planned.push(stated(&said, "activations and gradients: "));
        }
    }
    let [again_1, again_2, once_1, once_2] = planned[..] else { panic!("{planned:?}") };
    // What is summed once a step is not doubled.
    assert!(again_2 < 2.0 * again_1 && once_2 < 2.0 * once_1, "{planned:?}");
    assert!((again_2 - again_1) > (once_2 - once_1), "{planned:?}");
}

/// A head that stays its embedding has that one's factors, or its trained copy.
#[test]
fn tied_heads_move_what_their_plan_states() {
    let root = tempfile::tempdir().unwrap();
    let model = format!("--model_name_or_path={}", fixtures().join("models/qwen3-tied").display());
    let tied = [&*model, "--use_peft", "--ensure_weight_tying", "--lora_r=2"];
    for (nproc, tp, stage) in [(2, 1, 3), (2, 2, 0), (4, 2, 2), (4, 2, 3)] {
        let given = [format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")];
        for kind in [
            ["--lora_target_modules=o_proj", "--lora_modules_to_save=lm_head"],
            ["--lora_target_modules=lm_head,o_proj", "--gradient_checkpointing"],
        ] {
            let words: Vec<&str> =
                tied.iter().chain(&kind).copied().chain(given.iter().map(String::as_str)).collect();
            check(root.path(), &words);
        }
    }
}

/// Virtual tokens go through the blocks, and not through the embedding.
#[test]
fn virtual_tokens_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let model = format!("--model_name_or_path={}", fixtures().join("models/llama").display());
    let activations = |said: &str| {
        let line = said.lines().find(|line| line.contains("activations")).unwrap_or_default().to_owned();
        assert!(!line.is_empty(), "{said}");
        line
    };
    let (prompt, prefix) = ("--peft_type=PROMPT_TUNING", "--peft_type=PREFIX_TUNING");
    for (method, nproc, tp, stage, recompute) in [
        (prompt, 2, 2, 0, "--gradient_checkpointing"),
        (prompt, 4, 2, 3, "--no_gradient_checkpointing"),
        (prefix, 2, 2, 0, "--gradient_checkpointing"),
        (prefix, 4, 2, 3, "--no_gradient_checkpointing"),
    ] {
        let prompt = ["--use_peft", method, "--peft_config={\"num_virtual_tokens\": 3}"];
        let given = [format!("--nproc={nproc}"), format!("--tp_size={tp}"), format!("--zero_stage={stage}")];
        let words: Vec<&str> =
            [&model, recompute].into_iter().chain(given.iter().map(String::as_str)).chain(prompt).collect();
        let with = check(root.path(), &words);
        let few: Vec<&str> = words
            .iter()
            .map(|w| if w.contains('{') { "--peft_config={\"num_virtual_tokens\": 1}" } else { w })
            .collect();
        let fewer = check(root.path(), &few);
        assert_ne!(activations(&with), activations(&fewer));
    }
}

/// Ranks that are to have experts of a model without any are told so, once.
#[test]
fn experts_of_a_dense_model_are_noted() {
    let root = tempfile::tempdir().unwrap();
    let noted = |words: &[String]| {
        let output = run(words);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).matches("the model has no experts").count()
    };
    let ranks = ["--nproc=2", "--tp_size=2", "--max_steps=1", "--save_strategy=no"];
    let expert = [&ranks[..], &["--enable_expert_parallel"]].concat();
    assert_eq!(noted(&sft(&root.path().join("one"), "text.jsonl", &expert)), 1);
    assert_eq!(noted(&sft(&root.path().join("two"), "text.jsonl", &ranks)), 0);
    let model = format!("--model_name_or_path={}", fixtures().join("models/llama").display());
    let words = ["generate", &model, "--prompt=a", "--max_new_tokens=1", "--nproc=2", "--tp_size=2"];
    let mut words = words.map(str::to_owned).to_vec();
    assert_eq!(noted(&words), 0);
    words.push("--enable_expert_parallel".to_owned());
    assert_eq!(noted(&words), 1);
}
