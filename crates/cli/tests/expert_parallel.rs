//! Experts over ranks with rows of their own: every trainer takes the steps of one rank, and what cannot be divided is told.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::program::{fails, fixtures, ok, sft};
use crate::ranks::close_within;
use crate::{online, preferences};

/// A small mixture of random weights.
fn mixture(root: &Path) -> PathBuf {
    let llama = fixtures().join("models/llama");
    let blank = root.join("blank");
    std::fs::create_dir(&blank).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(llama.join(file), blank.join(file)).unwrap();
    }
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(llama.join("config.json")).unwrap()).unwrap();
    let own = json!({
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 32, "head_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 36,
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    });
    for (key, value) in own.as_object().unwrap() {
        config[key] = value.clone();
    }
    std::fs::write(blank.join("config.json"), config.to_string()).unwrap();
    let model = root.join("model");
    let from = format!("--model_name_or_path={}", blank.display());
    let more = [&*from, "--random_weights", "--max_steps=1", "--save_strategy=no"];
    ok(&sft(&model, "prompt_completion.jsonl", &more));
    model
}

const LORA: [&str; 9] = [
    "--use_peft",
    "--lora_r=4",
    "--lora_dropout=0",
    "--lora_target_modules=q_proj,o_proj",
    "--lora_target_parameters=experts.gate_up_proj,experts.down_proj",
    "--max_steps=3",
    "--save_strategy=no",
    "--router_aux_loss_coef=0",
    "--adam_epsilon=1e-4",
];

#[test]
fn every_trainer_takes_the_steps_of_one_rank() {
    let root = tempfile::tempdir().unwrap();
    let model = format!("--model_name_or_path={}", mixture(root.path()).display());
    for command in ["sft", "dpo", "kto", "orpo", "reward", "grpo", "rloo"] {
        let run = |name: &str, more: &[&str]| {
            let out = root.path().join(format!("{command}-{name}"));
            let common = [&LORA[..], &[&*model, "--global_batch_size=8"], more].concat();
            ok(&match command {
                "sft" => sft(&out, "prompt_completion.jsonl", &common),
                "grpo" | "rloo" => online::words(command, &out, &common),
                _ => preferences::words(command, &out, &common),
            });
            out
        };
        let one = run("one", &[]);
        for more in [
            &["--nproc=2", "--ep_size=2"][..],
            &["--nproc=4", "--ep_size=2", "--zero_stage=3", "--stage3_param_persistence_threshold=50"],
            &["--nproc=4", "--ep_size=2", "--tp_size=2"],
        ] {
            let many = run("many", &[more, &["--overwrite_output_dir"]].concat());
            close_within(1e-4, &format!("{command} {more:?}"), &one, &many);
        }
    }
}

#[test]
fn what_cannot_be_divided_is_told() {
    let root = tempfile::tempdir().unwrap();
    let model = format!("--model_name_or_path={}", mixture(root.path()).display());
    let out = root.path().join("out");
    let with = |more: &[&str]| sft(&out, "prompt_completion.jsonl", more);
    fails(&with(&["--nproc=3", "--ep_size=2"]), &["ep_size", "nproc: 3", "multiple"]);
    fails(&with(&["--ep_size=2"]), &["ep_size: 2 does not divide the number of ranks, 1;"]);
    fails(&with(&["--nproc=2", "--ep_size=2"]), &["ep_size 2", "no experts", "tp_size"]);
    fails(&with(&[&model, "--nproc=6", "--ep_size=6"]), &["ep_size", "5 experts", "6 ranks"]);
    fails(&with(&[&model, "--nproc=6", "--ep_size=3", "--tp_size=2"]), &["5 experts", "6 ranks"]);
}
