//! Mistakes, and what is said about them.

use burnish_config::values::{Gpu, RunDevice};
use burnish_config::{Command, Fault, GenerateOptions, MergeOptions, PlanOptions, SftOptions};

use crate::scratch::{Scratch, message};

/// The message for these words must contain each of these parts.
#[track_caller]
fn check(words: &[&str], parts: &[&str]) {
    let message = message(Scratch::new().sft(words));
    for part in parts {
        assert!(message.contains(part), "{words:?}\nsaid:     {message}\nexpected: {part}");
    }
}

#[test]
fn unknown_names_bring_the_nearest() {
    for (wrong, right) in [
        ("--lerning_rate", "learning_rate"),
        ("--learning_rat", "learning_rate"),
        ("--xyzzy", "--help"),
        ("--train_batch_size_per_device", "per_device_train_batch_size"),
        ("--dataset_nme", "dataset_name"),
        ("--lora_rank", "lora_r"),
        ("--gradient_acumulation_steps", "gradient_accumulation_steps"),
    ] {
        check(&[wrong, "1"], &["command line: unknown option", right]);
    }
}

#[test]
fn a_file_is_named_with_its_line() {
    let scratch = Scratch::new();
    let text = "learning_rate: 1e-5\n\nlogging_step: 5\nmax_length: long\n";
    let message = message(scratch.yaml(text, &[]));
    assert!(
        message.contains("config.yaml:3: unknown option `logging_step`; did you mean `logging_steps`?"),
        "{message}"
    );
    let typed =
        "config.yaml:4: max_length: expected a whole number that is not negative or null, got \"long\"";
    assert!(message.contains(typed), "{message}");
    assert!(message.starts_with("2 faults in the options of `burnish sft`:"), "{message}");
}

#[test]
fn all_faults_are_reported_at_once() {
    let words = [
        "--use_peft",
        "--lora_r",
        "0",
        "--learning_rate",
        "fast",
        "--use_liger_kernel",
        "--paking",
        "--fan_in_fan_out=true",
        "--adam_beta2",
        "1.5",
    ];
    let error = Scratch::new().sft(&words).unwrap_err();
    // use_liger_kernel is noted.
    assert_eq!(error.faults.len(), 5, "{error}");
}

#[test]
fn wrong_types_say_what_was_expected() {
    check(&["--max_steps", "many"], &["max_steps: expected a whole number, got \"many\""]);
    check(
        &["--lr_scheduler_type", "sine"],
        &["linear, cosine, cosine_with_restarts, ", "WarmupLR, ", "or LRRangeTest, got \"sine\""],
    );
    check(&["--packing_strategy", "fdb"], &["packing_strategy: expected bfd, bfd_split or wrapped"]);
    check(&["--loss_type", "mse"], &["loss_type: expected nll, dft or chunked_nll"]);
    check(&["--optim", "adamwish"], &["optim: expected adamw_torch_fused, adam, muon, adamw_8bit, "]);
    check(&["--optim", "galore_adamw"], &["optim: galore_adamw is not supported: ", "singular value"]);
    check(&["--logging_steps", "2.5"], &["logging_steps: expected a whole number of steps"]);
    check(&["--report_to", "tensorbord"], &["report_to", "metrics.jsonl"]);
    check(&["--packing=maybe"], &["packing: expected true or false, got \"maybe\""]);
    check(&["--learning_rate"], &["--learning_rate needs a value: FLOAT"]);
    check(&["--seed", "-1"], &["seed: expected a whole number that is not negative, got \"-1\""]);
    check(&["rows.jsonl"], &["unexpected argument \"rows.jsonl\""]);
}

#[test]
fn arguments_of_schedules_and_optimizers_are_theirs() {
    check(&["--lr_scheduler_kwargs", "{\"num_cycles\": 2}"], &["num_cycles", "lr_scheduler_type: linear"]);
    check(&["--lr_scheduler_kwargs", "num_cycles=2"], &["lr_scheduler_kwargs: expected a mapping"]);
    let min = ["--lr_scheduler_type", "cosine_with_min_lr"];
    check(&min, &["lr_scheduler_kwargs", "min_lr", "exactly one"]);
    check(&["--lr_scheduler_type", "reduce_lr_on_plateau"], &["eval_strategy: no", "set eval_strategy"]);
    check(&["--optim_args", "momentum"], &["optim_args: expected name=value"]);
    check(&["--optim_args", "momentum=0.9"], &["optim: adamw_torch_fused", "momentum"]);
    check(&["--optim=sgd", "--optim_args=momentum=0.9,decay=1"], &["optim: sgd", "`decay`"]);
    let free = ["--optim=schedule_free_adamw", "--warmup_steps=0.1"];
    check(&free, &["warmup_steps", "a whole number of steps"]);
    check(&["--loraplus_lr_ratio", "0"], &["loraplus_lr_ratio", "above 0"]);
}

#[test]
fn what_burnish_does_not_do_is_refused_by_name() {
    for (words, name) in [
        (["--fsdp", "half_shard"].as_slice(), "fsdp"),
        (&["--parallelism_config", r#"{"cp_size": 2}"#], "parallelism_config"),
        (&["--num_machines", "8"], "num_machines"),
        (&["--ignore_data_skip=true", "--resume_from_checkpoint=true"], "ignore_data_skip"),
    ] {
        check(words, &[&format!("{name}: "), "is not supported"]);
    }
    let harmless = [
        "--no_cuda",
        "--ignore_data_skip=true",
        "--model_revision",
        "main",
        "--load_in_4bit",
        "false",
        "--num_machines=1",
        "--tf32",
        "true",
    ];
    assert!(Scratch::new().sft(&harmless).is_ok());
}

#[test]
fn a_gpu_by_its_name_is_for_plans() {
    check(&["--device", "h200"], &["device: expected", "`burnish plan`", "got \"h200\""]);
    check(&["--device", "h900"], &["device: expected", "rtx4090", "got \"h900\""]);
    let scratch = Scratch::new();
    let words = ["--model_name_or_path".to_owned(), scratch.path("model"), "--device=h200".to_owned()];
    let planned = PlanOptions::parse(words.clone()).unwrap().run().unwrap().options;
    assert_eq!(planned.model.device, RunDevice::Planned(Gpu::H200));
    assert!(SftOptions::parse_to_plan(words.clone()).is_ok());
    let prompt = || words.iter().cloned().chain(["--prompt=x".to_owned()]);
    assert!(GenerateOptions::parse(prompt()).is_err());
    assert!(GenerateOptions::parse_to_plan(words.clone()).is_ok());
}

/// As in Transformers, where -1 stands for no interval of steps beside a strategy that asks for none.
#[test]
fn steps_below_0_need_a_strategy_without_steps() {
    let scratch = Scratch::new();
    assert!(scratch.sft(&["--save_strategy=epoch", "--save_steps=-1", "--eval_steps=-1"]).is_ok());
    for words in [["--save_steps=-1"], ["--logging_steps=-1"], ["--warmup_steps=-1"], ["--save_steps=-0.5"]] {
        let name = words[0].trim_start_matches('-').split('=').next().unwrap();
        check(&words, &[name]);
    }
}

#[test]
fn contradictions() {
    check(&["--eval_strategy", "steps"], &["eval_strategy", "eval_dataset_name"]);
    check(&["--test_split_size", "1.5"], &["test_split_size: expected a share"]);
    check(&["--packing", "--max_length", "null"], &["packing", "max_length"]);
    check(&["--warmup_ratio", "0.1", "--warmup_steps", "10"], &["warmup_ratio", "warmup_steps: 10"]);
    check(&["--load_best_model_at_end"], &["load_best_model_at_end", "eval_strategy"]);
    check(&["--save_strategy", "best"], &["save_strategy", "eval_strategy"]);
    check(
        &["--random_weights", "--use_peft"],
        &["random_weights: true does not go with training an adapter"],
    );
    check(&["--max_steps", "0"], &["max_steps: expected at least 1, or -1"]);
    let scratch = Scratch::new();
    let (adapter, rows) = (scratch.path("adapter"), scratch.path("rows.jsonl"));
    let message_of = |words: &[&str]| message(scratch.sft(words));
    let said = message_of(&["--adapter_name_or_path", &adapter, "--use_peft", "--lora_r", "8"]);
    assert!(said.contains("an existing adapter keeps its own settings"), "{said}");
    let best = ["--eval_dataset_name", &rows, "--load_best_model_at_end", "--eval_strategy", "steps"];
    let said = message_of(&[best.as_slice(), &["--eval_steps", "30", "--save_steps", "100"]].concat());
    assert!(said.contains("make save_steps a multiple of eval_steps"), "{said}");
    assert!(
        scratch.sft(&[best.as_slice(), &["--eval_steps", "0.1", "--save_steps", "0.3"]].concat()).is_ok()
    );
    assert!(
        scratch.sft(&["--lora_r", "8", "--use_peft", "false"]).is_ok(),
        "the whole model, said explicitly"
    );
}

#[test]
fn notes_are_not_faults() {
    let resolved = Scratch::new().sft(&["--max_steps", "5", "--num_train_epochs", "2"]).unwrap();
    assert!(resolved.notes[0].contains("num_train_epochs: 2 is not used"), "{:?}", resolved.notes);
    let words = [
        "--lora_r",
        "8",
        "--hub_strategy=end",
        "--dataset_num_proc",
        "4",
        "--dataloader_num_workers=2",
        "--tf32",
        "no",
    ];
    let notes = Scratch::new().sft(&words).unwrap().notes;
    assert_eq!(
        notes,
        [
            "`dataset_num_proc`, `dataloader_num_workers`: rows are read and prepared by burnish's own threads",
            "`lora_r`: the whole model trains; use_peft: true trains an adapter",
            "`hub_strategy`: nothing is uploaded without push_to_hub: true",
        ]
    );
}

#[test]
fn what_is_missing() {
    let said = SftOptions::parse([""; 0]).unwrap_err().to_string();
    assert!(
        said.contains("--model_name_or_path is missing") && said.contains("--dataset_name is missing"),
        "{said}"
    );
    let said = GenerateOptions::parse(["--model_name_or_path", "."]).unwrap_err().to_string();
    assert!(said.contains("--prompt is missing"), "{said}");
    // Names of the Hub are looked for when they are opened; a path is looked for at once.
    let words = ["--model_name_or_path", "Qwen/Qwen3-0.6B", "--dataset_name", "trl-lib/Capybara"];
    assert!(SftOptions::parse(words).is_ok());
    let words = ["--model_name_or_path", "./Qwen3-0.6B", "--dataset_name", "data/rows.jsonl"];
    let said = SftOptions::parse(words).unwrap_err().to_string();
    assert!(said.contains("no folder at \"./Qwen3-0.6B\"; burnish reads local folders"), "{said}");
    assert!(said.contains("no file or folder at \"data/rows.jsonl\""), "{said}");
    let words = ["--model_name_or_path", ".", "--adapter_name_or_path", ".", "--output_dir", "."];
    let said = MergeOptions::parse(words).unwrap_err().to_string();
    assert!(said.contains("name another folder"), "{said}");
}

#[test]
fn options_of_another_command() {
    let words = ["--model_name_or_path", ".", "--prompt", "a", "--learning_rate", "1"];
    let said = GenerateOptions::parse(words).unwrap_err().to_string();
    assert!(
        said.contains(
            "`learning_rate` is an option of `burnish sft`, `burnish dpo`, `burnish kto`, `burnish cpo`, `burnish orpo`, \
             `burnish reward`, `burnish grpo`, `burnish rloo` and `burnish plan`, not of \
             `burnish generate`"
        ),
        "{said}"
    );
}

#[test]
fn files_that_cannot_be_read() {
    let scratch = Scratch::new();
    assert!(message(scratch.yaml("a: [1,\n", &[])).contains("not valid YAML"));
    assert!(message(scratch.yaml("- 1\n- 2\n", &[])).contains("expected a mapping"));
    let twice = message(scratch.yaml("max_length: 4\nseed: 1\n# more\nseed: 2\n", &[]));
    assert!(twice.contains("`seed` is written twice, on lines 2 and 4; keep one"), "{twice}");
    let twice = message(scratch.yaml("rank_pattern:\n  seed: 1\n  a: 1\n  a: 2\nseed: 1\n", &[]));
    assert!(twice.contains("`a` is written twice, on lines 3 and 4; keep one"), "{twice}");
    let toml = scratch.write("config.toml", "seed 1\n");
    assert!(message(scratch.sft(&["--config", &toml])).contains("not valid TOML"));
    assert!(message(scratch.sft(&["--config", "nowhere.yaml"])).contains("cannot read the file"));
    assert!(message(scratch.sft(&["--config", "config.ini"])).contains(".yaml"));
    assert!(scratch.yaml("# nothing\n", &[]).is_ok());
    let error = scratch.yaml("x: 1\n", &[]).unwrap_err();
    assert!(matches!(&error.faults[0], Fault::Unknown { name, .. } if name == "x"));
}

#[test]
fn muon_is_asked_for_by_optim_alone() {
    check(&["--muon_lr", "0.1"], &["muon_lr", "optim: adamw_torch_fused", "add optim: muon"]);
    check(&["--optim", "muon", "--muon_momentum", "1"], &["muon_momentum", "from 0 to below 1"]);
    check(&["--optim", "muon", "--muon_scale", "keller"], &["match_rms_adamw, original or spectral"]);
    check(&["--optim", "muon", "--muon_beta2", "0.9"], &["muon_beta2", "muon_variant: muon"]);
}
