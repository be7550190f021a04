//! Configs written for TRL: every name it has is known, with TRL's default, and asking for nothing is accepted.

use burnish_config::table::{Raw, Source};
use burnish_config::values::ReportTo;
use burnish_config::{Command, SftOptions};
use burnish_data::Strategy;
use burnish_losses::TokenLoss;
use burnish_peft::Targets;

use crate::scratch::Scratch;

/// Names and defaults of TRL 1.16 with Transformers 5.23.
const TRL: &str = include_str!("trl_defaults.json");

/// Where burnish deliberately differs; each is in docs/decisions.md.
const DIFFERENT_DEFAULTS: &[&str] = &["report_to", "output_dir"];

fn trl_fields() -> Vec<(String, serde_json::Value)> {
    let parsed: serde_json::Value = serde_json::from_str(TRL).unwrap();
    let groups = parsed.as_object().unwrap().values();
    groups.flat_map(|group| group.as_object().unwrap().clone()).collect()
}

#[test]
fn defaults_are_those_of_trl() {
    let entries = SftOptions::entries();
    let mut different = Vec::new();
    for (name, default) in trl_fields() {
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else { continue };
        assert_ne!(entry.source, Source::Burnish, "{name} is a name of TRL's");
        // Read both through the option itself, so that 0 and 0.0, or null and [], compare by meaning.
        let theirs = Raw::from_json(&default.to_string()).unwrap();
        let mut options = SftOptions::default();
        if theirs != Raw::Null {
            options.set(entry.name, &theirs).unwrap().unwrap();
        }
        if options != SftOptions::default()
            || (theirs == Raw::Null) != entry.default.is_nothing() && name != "bf16"
        {
            different.push(name);
        }
    }
    different.retain(|name| !DIFFERENT_DEFAULTS.contains(&name.as_str()));
    assert_eq!(different, [""; 0]);
}

#[test]
fn a_file_of_all_defaults_is_accepted() {
    let scratch = Scratch::new();
    let skipped = ["model_name_or_path", "dataset_name", "output_dir"];
    let mut text = String::from("use_peft: false\n");
    for (name, default) in trl_fields() {
        if !skipped.contains(&name.as_str()) && name != "use_peft" && !default.is_null() {
            text.push_str(&format!("{name}: {default}\n"));
        }
    }
    let resolved = scratch.yaml(&text, &[]).unwrap();
    assert_eq!(
        resolved.options.logging.report_to,
        ReportTo { tensorboard: false, mlflow: false, wandb: false }
    );
    assert_eq!(resolved.options.training.learning_rate, 2e-5);
}

#[test]
fn a_trl_config_runs() {
    let scratch = Scratch::new();
    let text = "
# Model
model_revision: main
torch_dtype: bfloat16
attn_implementation: flash_attention_2
use_peft: true
lora_r: 8
lora_alpha: 16
lora_target_modules: all-linear
lora_task_type: CAUSAL_LM

# Training
learning_rate: 2.0e-4
weight_decay: 1e-2
num_train_epochs: 1
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
lr_scheduler_type: cosine
warmup_steps: 0.03
max_length: 2048
packing: yes
packing_strategy: bfd
eval_strategy: no
save_strategy: \"no\"
report_to: [none]
bf16: true
push_to_hub: false
deepspeed: null
fsdp: ''
dataset_num_proc: 8
logging_steps: 5
seed: 7
";
    let resolved = scratch.yaml(text, &["--learning-rate", "1e-3"]).unwrap();
    let options = &resolved.options;
    assert_eq!(options.training.learning_rate, 1e-3, "flags win");
    assert_eq!(options.training.weight_decay, 1e-2);
    assert_eq!(options.lora.lora_target_modules, Some(Targets::Pattern("all-linear".into())));
    assert_eq!(options.model.dtype.to_string(), "bfloat16");
    assert_eq!(options.training.warmup_of(1000), 30);
    assert_eq!(options.packing.packing_strategy, Strategy::Bfd);
    assert!(options.packing.packing && options.packing.packs_evaluation());
    assert_eq!(options.training.save_strategy.name(), "no");
    assert_eq!(options.loss.loss_type, TokenLoss::Nll);
    assert!(resolved.notes.iter().any(|note| note.contains("bf16")), "{:?}", resolved.notes);
}

#[test]
fn toml_says_the_same() {
    let scratch = Scratch::new();
    let path = scratch.write(
        "config.toml",
        "use_peft = true\nlora_target_modules = [\"q_proj\", \"v_proj\"]\nlearning-rate = 1e-4\nlayer_replication = [[0, 2], [1, 3]]\n\n[rank_pattern]\nq_proj = 4\n",
    );
    let options = scratch.sft(&["--config", &path]).unwrap().options;
    assert_eq!(options.lora.lora_target_modules, Some(Targets::List(vec!["q_proj".into(), "v_proj".into()])));
    assert_eq!(options.lora.rank_pattern.get("q_proj"), Some(&4));
    assert_eq!(options.lora.layer_replication.0, [(0, 2), (1, 3)]);
    assert_eq!(options.training.learning_rate, 1e-4);
}

#[test]
fn the_record_reads_back_as_the_same_options() {
    let scratch = Scratch::new();
    let words = ["--use_peft", "--lora_target_modules", "q_proj", "v_proj", "--seed", "18446744073709551615"];
    let more = ["--layer_replication=[[0, 2], [1, 3]]", "--alora_invocation_tokens=7,8"];
    let resolved = scratch.sft(&[&words[..], &more].concat()).unwrap();
    let path = scratch.write("record.json", &serde_json::to_string(&resolved.to_json()).unwrap());
    let again = SftOptions::parse(["--config", path.as_str()]).unwrap().run().unwrap();
    assert_eq!(again.options.training.seed, u64::MAX);
    assert_eq!(again.options, resolved.options);
}
