//! Keys that are read as options: what each says.

use burnish_config::values::{ModelDtype, SourceSpec};
use burnish_config::{Command, CpoOptions, DpoOptions, GrpoOptions, RewardOptions, RlooOptions, SftOptions};
use burnish_core::Dtype;
use burnish_data::Truncation;

use crate::scratch::{Scratch, message};

/// The values of these options after a config of this text.
#[track_caller]
fn check<C: Command>(text: &str, expected: &[(&str, &str)]) {
    let scratch = Scratch::new();
    scratch.write(
        "ds.json",
        r#"{"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e6}, "gradient_clipping": 0.5}"#,
    );
    scratch.write(
        "scheduler.json",
        r#"{"optimizer": {"type": "Lion", "params": {"lr": 2e-4, "betas": [0.9, 0.99], "weight_decay": "auto"}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": 2e-4,
            "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}}}"#,
    );
    let accelerate = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n  \
                      fsdp_activation_checkpointing: true\nnum_processes: 4\nmachine_rank: 0\nmixed_precision: bf16\n";
    scratch.write("accelerate.yaml", accelerate);
    let text = text.replace("DIR/", &scratch.path(""));
    let path = scratch.write("config.yaml", &format!("model_name_or_path: a/b\ndataset_name: c/d\n{text}"));
    let read = C::parse(["--config", &path]).unwrap_or_else(|error| panic!("{text}\n{error}")).run().unwrap();
    let values = read.options.values();
    for (name, value) in expected {
        let (_, raw) = values.iter().find(|(known, _)| known == name).unwrap();
        assert_eq!(&raw.plain(), value, "{name} of {text}");
    }
}

#[test]
fn sharding_of_launchers() {
    let check = check::<SftOptions>;
    check("accelerate_config: zero2", &[("zero_stage", "2"), ("nproc", "8")]);
    check("accelerate_config: single_gpu", &[("zero_stage", "0"), ("nproc", "1")]);
    check("accelerate_config: fsdp2\nnum_processes: 2", &[("zero_stage", "3"), ("nproc", "2")]);
    check("num_processes: 0\neval_dataset_split: dev", &[("nproc", "1"), ("dataset_test_split", "dev")]);
    check(
        "num_processes: 2\naccelerate_config: recipes/deepspeed_zero3.yaml",
        &[("zero_stage", "3"), ("nproc", "2")],
    );
    let stage = [("zero_stage", "2"), ("nproc", "4"), ("gradient_checkpointing", "true")];
    check("accelerate_config: DIR/accelerate.yaml", &stage);
    check(
        "deepspeed: DIR/ds.json",
        &[("zero_stage", "2"), ("reduce_bucket_size", "5000000"), ("max_grad_norm", "0.5")],
    );
    check("max_grad_norm: 2.0\ndeepspeed: DIR/ds.json", &[("max_grad_norm", "2.0")]);
    check(
        "deepspeed: DIR/scheduler.json",
        &[
            ("lr_scheduler_type", "WarmupDecayLR"),
            ("lr_scheduler_kwargs", r#"{"warmup_max_lr": 0.0002, "warmup_type": "linear"}"#),
            ("learning_rate", "0.0002"),
            ("optim", "lion_32bit"),
            ("adam_beta2", "0.99"),
        ],
    );
    check(
        "lr_scheduler_type: cosine\ndeepspeed: {scheduler: {type: WarmupLR}}",
        &[("lr_scheduler_type", "WarmupLR"), ("lr_scheduler_kwargs", r#"{"warmup_num_steps": 1000.0}"#)],
    );
    let sgd = "deepspeed: {optimizer: {type: SGD, params: {lr: 0.1, momentum: 0.9, weight_decay: auto}}}";
    check(sgd, &[("optim", "sgd"), ("optim_args", "momentum=0.9"), ("learning_rate", "0.1")]);
    check("deepspeed: {optimizer: {type: Adam, params: {adam_w_mode: false}}}", &[("optim", "adam")]);
    check(
        "deepspeed: {optimizer: {type: Adam, params: {eps: 1e-7}}}",
        &[("optim", "adamw_torch_fused"), ("adam_epsilon", "1e-7")],
    );
    check("fsdp: full_shard auto_wrap", &[("zero_stage", "3")]);
    check("fsdp: [shard_grad_op, offload]", &[("zero_stage", "2")]);
    check("fsdp: true\nfsdp_config: {reshard_after_forward: false, version: 2}", &[("zero_stage", "2")]);
    check("fsdp_config: {reshard_after_forward: false}", &[("zero_stage", "0")]);
    check("fsdp: ''\ndeepspeed: null", &[("zero_stage", "0")]);
    check("parallelism_config: {tp_size: 2, cp_size: 1}\nnproc: 2", &[("tp_size", "2")]);
}

#[test]
fn what_has_no_equivalent_is_named() {
    let check = |text: &str, part: &str| {
        let said = message(Scratch::new().yaml(text, &[]));
        assert!(said.contains(part), "{text}\n{said}");
    };
    check("deepspeed: {scheduler: {type: Cosine}}", "config.yaml:1: deepspeed: scheduler: {");
    check("deepspeed: {scheduler: {type: WarmupDecayLR}}", "DeepSpeed asks for total_num_steps");
    check("deepspeed: {scheduler: {type: WarmupLR, params: {warmup_kind: log}}}", "no `warmup_kind`");
    check(
        "deepspeed: {scheduler: {type: OneCycle, params: {cycle_min_lr: 1e-6, cycle_max_lr: 1e-4}}}",
        "set cycle_momentum to false",
    );
    check("deepspeed: {optimizer: {type: Lamb, params: {lr: 1e-3}}}", "name it in optim");
    check("deepspeed: {zero_optimization: {zero_quantized_weights: true}}", "zero_quantized_weights: true");
    check("deepspeed: {sparse_attention: {mode: fixed}}", "sparse_attention");
    check("fsdp: [full_shard, half]", "fsdp: half is not supported: known are full_shard");
    check("accelerate_config: zero4", "accelerate_config: no file at \"zero4\"; give its path");
    check("model_init_kwargs: {num_hidden: 2}", "unknown option `model_init_kwargs.num_hidden`");
    check(
        "model_init_kwargs: {quantization_config: {load_in_3bit: true}}",
        "unknown option `model_init_kwargs.load_in_3bit`",
    );
    check("dataset_mixture: {sets: []}", "it has datasets, seed and test_split_size");
    check("datasets: [{path: a, fraction: 1}, {path: b}]", "give every data set one, or none");
    check("datasets: [{pth: a}]", "datasets: expected a list");
}

#[test]
fn mixtures_of_recipes() {
    let scratch = Scratch::new();
    let text = "dataset_mixer: {a/b: 1.0, c/d: 0.25}\ndataset_splits: [train_sft, test_sft]\ndataset_configs: [x, y]\n\
                eval_strategy: epoch\n";
    let data = scratch.yaml(text, &[]).unwrap().options.data;
    let set = |path: &str, config: &str, split: &str, weight| SourceSpec {
        path: path.into(),
        config: Some(config.into()),
        split: split.into(),
        weight,
        ..SourceSpec::default()
    };
    assert_eq!(
        data.datasets.0,
        [set("a/b", "x", "train_sft", Some(1.0)), set("c/d", "y", "train_sft", Some(0.25))]
    );
    assert_eq!(data.eval_datasets.0, [set("a/b", "x", "test_sft", None), set("c/d", "y", "test_sft", None)]);
    let text = "dataset_mixture:\n  datasets:\n  - {id: a/b, config: x, columns: [messages], weight: 0.5}\n  seed: 3\n  \
                test_split_size: 0.1\n";
    let data = scratch.yaml(text, &[]).unwrap().options.data;
    assert_eq!(data.test_split_size, Some(0.1));
    let expected = SourceSpec {
        columns: Some(vec!["messages".into()]),
        seed: Some(3),
        ..set("a/b", "x", "train", Some(0.5))
    };
    assert_eq!(data.datasets.0, [expected]);
    // What `load_dataset` is given beside the path.
    let text = "dataset_config: {data_files: [x.jsonl], data_dir: d}\ndataset_train_split: tuned\n";
    let data = scratch.yaml(text, &[]).unwrap().options.data;
    let expected = SourceSpec {
        data_files: vec!["x.jsonl".into()],
        data_dir: Some("d".into()),
        ..SourceSpec::new(&data.dataset_name, "tuned")
    };
    assert_eq!(data.datasets.0, [expected]);
    let said = message(scratch.yaml("dataset_config: {shards: 3}\n", &[]));
    assert!(said.contains("data_dir, data_files and split"), "{said}");
    // Several data sets are enough, and are recorded as they are read.
    let words = [
        "--model_name_or_path",
        "a/b",
        "--datasets",
        r#"[{"path": "a/b", "data_files": "x.jsonl"}, {"path": "c"}]"#,
    ];
    let options = SftOptions::parse(words).unwrap().run().unwrap().options;
    let (_, raw) = options.values().into_iter().find(|(name, _)| *name == "datasets").unwrap();
    let mut again = SftOptions::default();
    again.set("datasets", &raw).unwrap().unwrap();
    assert_eq!(again.data.datasets, options.data.datasets);
}

#[test]
fn keyword_arguments_are_options() {
    let text = "model_init_kwargs: {torch_dtype: bfloat16, attn_implementation: sdpa, device_map: auto}";
    check::<SftOptions>(text, &[("dtype", "bfloat16")]);
    check::<GrpoOptions>(
        "generation_kwargs: {top_k: 5, max_new_tokens: 7, do_sample: true}",
        &[("top_k", "5"), ("max_completion_length", "7")],
    );
    check::<GrpoOptions>(
        "chat_template_kwargs: {enable_thinking: false}",
        &[("chat_template_kwargs", "{\"enable_thinking\": false}")],
    );
    check::<SftOptions>(
        "chat_template_kwargs: {enable_thinking: off}",
        &[("chat_template_kwargs", "{\"enable_thinking\": false}")],
    );
    check::<SftOptions>(
        "lora_target_linear: true\nuse_lora: yes",
        &[("lora_target_modules", "all-linear"), ("use_peft", "true")],
    );
    check::<DpoOptions>(
        "truncation_side: left",
        &[("truncation_mode", Truncation::KeepEnd.to_string().as_str())],
    );
    check::<DpoOptions>(
        "rpo_alpha: 0.5\nloss_type: ipo",
        &[("loss_type", "[\"ipo\", \"sft\"]"), ("loss_weights", "[1.0, 0.5]")],
    );
    check::<CpoOptions>(
        "beta: 2.5\ngamma_beta_ratio: 0.5\nloss_type: sigmoid",
        &[("loss_type", "simpo"), ("beta", "2.5"), ("simpo_gamma", "1.25"), ("cpo_alpha", "0.0")],
    );
    check::<CpoOptions>(
        "gamma: 1.6",
        &[("loss_type", "simpo"), ("beta", "2.0"), ("simpo_gamma", "1.6"), ("cpo_alpha", "0.0")],
    );
    check::<CpoOptions>(
        "loss_type: alphapo\nalpha: 0.25\ngamma_beta_ratio: 0.8\nsft_weight: 0.1\nbeta: 2",
        &[("loss_type", "alphapo"), ("simpo_gamma", "1.6"), ("cpo_alpha", "0.1")],
    );
    check::<RewardOptions>(
        "lora_task_type: SEQ_CLS\nuse_peft: true\ntruncation_side: left",
        &[("use_peft", "true")],
    );
    check::<SftOptions>("report_to: [trackio, tensorboard]", &[("report_to", "tensorboard")]);
    check::<SftOptions>("report_to: [comet_ml, mlflow]", &[("report_to", "mlflow")]);
    check::<SftOptions>("report_to: trackio", &[("report_to", "none")]);
}

#[test]
fn a_number_of_episodes_is_a_number_of_steps() {
    let text =
        "per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\ntotal_episodes: 10000\nrloo_k: 4\n";
    check::<RlooOptions>(
        text,
        &[("max_steps", "313"), ("num_generations", "4"), ("steps_per_generation", "null")],
    );
    let more = format!("{text}num_mini_batches: 2\nnum_ppo_epochs: 3\nkl_coef: 0.1\n");
    let expected =
        [("max_steps", "942"), ("steps_per_generation", "8"), ("num_iterations", "3"), ("beta", "0.1")];
    check::<RlooOptions>(&more, &expected);
    check::<RlooOptions>(
        "sft_model_path: a/b\nstop_token: eos\nreward_model_path: e/f",
        &[("model_name_or_path", "a/b")],
    );
    let other = ["--model_name_or_path", "a/b", "--dataset_name", "c/d", "--sft_model_path", "e/f"];
    let error = RlooOptions::parse_to_plan(other).unwrap_err();
    assert!(error.to_string().contains("sft_model_path"), "{error}");
}

#[test]
fn null_is_what_it_is_in_the_libraries() {
    let text = "max_grad_norm: null\ndtype: ~\nbf16: null\nlora_modules_to_save: null\ndataset_text_field: null\n\
                activation_checkpointing: null\n";
    check::<SftOptions>(
        text,
        &[
            ("max_grad_norm", "null"),
            ("dtype", "auto"),
            ("bf16", "null"),
            ("dataset_text_field", "text"),
            ("gradient_checkpointing", "true"),
        ],
    );
    let older = Scratch::new().yaml("torch_dtype: null\n", &[]).unwrap().options.model.dtype;
    assert_eq!(older, ModelDtype(Some(Dtype::F32)));
    assert!(
        message(Scratch::new().yaml("learning_rate: null\n", &[]))
            .contains("learning_rate: expected a number, got null")
    );
}

#[test]
fn numbers_and_switches_as_pyyaml_reads_them() {
    let text = "learning_rate: 1e-5\nmax_steps: 1_000\npacking: yes\nfp16: off\nwarmup_steps: \"10\"\nsave_strategy: no\n\
                weight_decay: .1\n";
    check::<SftOptions>(
        text,
        &[
            ("learning_rate", "1e-5"),
            ("max_steps", "1000"),
            ("packing", "true"),
            ("warmup_steps", "10"),
            ("save_strategy", "no"),
            ("weight_decay", "0.1"),
        ],
    );
    let merged = "env: &all {use_cache: false}\nmodel_init_kwargs: {<<: *all, dtype: bfloat16}";
    check::<SftOptions>(merged, &[("dtype", "bfloat16")]);
}

#[test]
fn label_smoothing_is_of_nll_in_sft() {
    let scratch = Scratch::new();
    let read = |text: &str| scratch.yaml(text, &[]).unwrap();
    let smoothed = read("label_smoothing_factor: 0.2");
    assert_eq!(smoothed.options.loss.label_smoothing(), 0.2);
    let dft = read("label_smoothing_factor: 0.2\nloss_type: dft");
    assert_eq!(dft.options.loss.label_smoothing(), 0.0);
    assert!(dft.notes.iter().any(|note| note.contains("no effect with loss_type: dft")), "{:?}", dft.notes);
    assert!(message(scratch.yaml("label_smoothing_factor: 1.5", &[])).contains("from 0 to 1"));
    // TRL's other trainers have the option and do not read it.
    let words = ["--model_name_or_path=a/b", "--dataset_name=c/d", "--label_smoothing_factor=0.2"];
    let notes = DpoOptions::parse(words).unwrap().run().unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("loss of this trainer without it too")), "{notes:?}");
}

#[test]
fn a_base_in_four_bits() {
    let as_transformers = "model_init_kwargs:\n  quantization_config:\n    load_in_4bit: true\n    bnb_4bit_quant_type: fp4\n    \
                           bnb_4bit_use_double_quant: true\n    bnb_4bit_compute_dtype: bfloat16\nuse_peft: true";
    check::<SftOptions>(
        as_transformers,
        &[("load_in_4bit", "true"), ("bnb_4bit_quant_type", "fp4"), ("use_bnb_nested_quant", "true")],
    );
    check::<SftOptions>(
        "use_4bit: true\nuse_nested_quant: true\nuse_peft: true",
        &[("load_in_4bit", "true")],
    );
}
