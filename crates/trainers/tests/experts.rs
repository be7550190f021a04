//! Mixtures of experts: over ranks, at every stage, with the loss that balances them, they train as on one rank.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use burnish_config::{Command, GrpoOptions, SftOptions};
use burnish_trainers::{Grpo, Ranks, Sft, Stop, TrainError, Trainer};
use burnish_weight_files::WeightFolder;

use crate::families_sharded::{folders, with_tokenizer};

/// What a run left: tensors by name, and of each step its loss and the balancing loss.
type Trained = (BTreeMap<String, Vec<f32>>, Vec<(f64, f64)>);

fn run(root: &Path, name: &str, ranks: usize, words: &[&str]) -> Result<Trained, TrainError> {
    let out = tempfile::tempdir().unwrap();
    let mut all = vec![
        format!("--model_name_or_path={}", root.join("models").join(name).display()),
        format!("--dataset_name={}", root.join("rows.jsonl").display()),
        format!("--output_dir={}", out.path().display()),
        format!("--nproc={ranks}"),
    ];
    let plain = [
        "--max_steps=2",
        "--max_length=32",
        "--per_device_train_batch_size=1",
        "--learning_rate=0.02",
        "--lr_scheduler_type=constant",
        "--warmup_ratio=0",
        "--stage3_param_persistence_threshold=0",
        "--save_strategy=no",
        "--disable_tqdm=true",
        "--report_to=none",
        "--overwrite_output_dir",
        "--router_aux_loss_coef=0.5",
    ];
    all.extend(plain.iter().chain(words).map(|word| (*word).to_owned()));
    let options = SftOptions::parse(all).unwrap().run().unwrap().options;
    let ranks = Ranks::threads(ranks);
    let run = Sft::prepare(options, &ranks, &Device::flex(), &mut |_| ())?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let run = run.on_step(move |record| {
        let number = |key: &str| record.get(key).unwrap_or(f64::NAN);
        heard.lock().unwrap().push((number("loss"), number("aux_loss")));
        std::ops::ControlFlow::Continue(())
    });
    run.run(&ranks, &Stop::never())?;
    let written = match WeightFolder::open_stem(out.path(), "adapter_model") {
        Ok(adapter) => adapter,
        Err(_) => WeightFolder::open(out.path()).unwrap(),
    };
    let tensors =
        written.names().map(|name| (name.to_owned(), written.read(name).unwrap().to_f32())).collect();
    let steps = told.lock().unwrap().clone();
    Ok((tensors, steps))
}

fn prepared() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let row = |i: usize| {
        let ids: Vec<usize> = (0..5 + 3 * (i % 4)).map(|at| 3 + (7 * at + 5 * i) % 36).collect();
        serde_json::json!({"input_ids": ids}).to_string()
    };
    std::fs::write(root.path().join("rows.jsonl"), (0..8).map(row).collect::<Vec<_>>().join("\n")).unwrap();
    std::fs::create_dir(root.path().join("models")).unwrap();
    folders(&root.path().join("models"));
    root
}

#[track_caller]
fn same(what: &str, got: &Trained, want: &Trained) {
    assert_eq!(got.0.keys().collect::<Vec<_>>(), want.0.keys().collect::<Vec<_>>(), "{what}");
    for (name, want) in &want.0 {
        let largest = want.iter().fold(1.0_f32, |m, x| m.max(x.abs()));
        let apart = got.0[name].iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart <= 2e-5 * largest, "{what}: {name} by {apart}");
    }
    for (got, want) in got.1.iter().zip(&want.1) {
        // There is no balancing loss where it is not part of the loss.
        let close = |a: f64, b: f64| a.is_nan() && b.is_nan() || (a - b).abs() < 1e-5 * b.abs().max(1.0);
        assert!(close(got.0, want.0) && close(got.1, want.1), "{what}: {got:?}, not {want:?}");
    }
}

/// Four micro-batches of one row: on one rank one after another, or side by side. With three ranks one has no row of
/// the step's last; most experts have no token of a micro-batch.
#[test]
fn mixtures_train_alike_on_any_ranks_at_every_stage() {
    let root = prepared();
    let muon = ["--optim=muon"];
    let lora = [
        "--use_peft",
        "--lora_r=2",
        "--lora_dropout=0",
        "--init_lora_weights=false",
        "--lora_target_modules",
        "q_proj",
        "--lora_target_parameters",
        "experts.gate_up_proj",
        "experts.down_proj",
    ];
    for (name, more) in [
        ("mixtral", &["--optim=sgd"][..]),
        ("qwen2-moe", &["--optim=sgd"]),
        ("qwen3-moe-dense", &muon),
        ("olmoe", &lora),
    ] {
        let words = |more: &[&'static str], own: &[&'static str]| [more, own].concat();
        let one = run(root.path(), name, 1, &words(more, &["--gradient_accumulation_steps=4"])).unwrap();
        assert!(one.1.iter().all(|(loss, aux)| loss.is_finite() && *aux > 0.9), "{name}: {:?}", one.1);
        for own in [
            &["--zero_stage=0", "--gradient_accumulation_steps=2"][..],
            &["--zero_stage=1", "--gradient_accumulation_steps=2"],
            &["--zero_stage=2", "--gradient_accumulation_steps=2"],
            &["--zero_stage=3", "--gradient_accumulation_steps=2"],
            &["--zero_stage=3", "--gradient_accumulation_steps=2", "--gradient_checkpointing=false"],
        ] {
            let got = run(root.path(), name, 2, &words(more, own)).unwrap();
            same(&format!("{name}, {own:?}"), &got, &one);
        }
        for (ranks, own) in [
            (2, &["--tp_size=2", "--zero_stage=0", "--gradient_accumulation_steps=4"][..]),
            (4, &["--tp_size=2", "--zero_stage=0", "--gradient_accumulation_steps=2"]),
            (4, &["--tp_size=2", "--zero_stage=2", "--gradient_accumulation_steps=2"]),
            (2, &["--tp_size=2", "--enable_expert_parallel", "--gradient_accumulation_steps=4"]),
            (
                4,
                &[
                    "--tp_size=2",
                    "--enable_expert_parallel",
                    "--zero_stage=3",
                    "--gradient_accumulation_steps=2",
                ],
            ),
            (2, &["--ep_size=2", "--gradient_accumulation_steps=2"]),
            (2, &["--ep_size=2", "--gradient_accumulation_steps=2", "--gradient_checkpointing=false"]),
            (4, &["--ep_size=4", "--zero_stage=2", "--gradient_accumulation_steps=1"]),
            (4, &["--ep_size=2", "--zero_stage=1", "--gradient_accumulation_steps=1"]),
            (4, &["--ep_size=2", "--zero_stage=3", "--gradient_accumulation_steps=1"]),
            (8, &["--ep_size=2", "--tp_size=2", "--zero_stage=3", "--gradient_accumulation_steps=1"]),
            (4, &["--ep_size=2", "--tp_size=2", "--gradient_accumulation_steps=2"]),
            (
                4,
                &[
                    "--ep_size=2",
                    "--tp_size=2",
                    "--gradient_accumulation_steps=2",
                    "--gradient_checkpointing=false",
                ],
            ),
        ] {
            let got = run(root.path(), name, ranks, &words(more, own)).unwrap();
            same(&format!("{name}, {ranks}, {own:?}"), &got, &one);
        }
        let off = run(
            root.path(),
            name,
            1,
            &words(more, &["--gradient_accumulation_steps=4", "--router_aux_loss_coef=0"]),
        );
        let off = off.unwrap();
        assert!(off.1.iter().all(|(_, aux)| aux.is_nan()), "{name}");
        // Of the last micro-batch two ranks have no row, of which the mean of balancing losses has a share.
        let own = ["--router_aux_loss_coef=0", "--ep_size=3", "--global_batch_size=4"];
        let got = run(root.path(), name, 3, &words(more, &own)).unwrap();
        same(&format!("{name}, 3, {own:?}"), &got, &off);
        assert!((off.1[0].0 + 0.5 * one.1[0].1 - one.1[0].0).abs() < 1e-5, "{name}: {:?} {:?}", off.1, one.1);
    }
}

/// Adapters over experts in few bits: quantised as they are read, by a folder's own codes, and gpt-oss' in MXFP4.
#[test]
fn adapters_over_quantised_experts_train_alike_on_any_ranks() {
    let root = prepared();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/quantized-experts");
    let models = root.path().join("models");
    for name in ["plain", "each-nf4", "mxfp4"] {
        with_tokenizer(&fixtures.join(name), &models.join(format!("quantized-{name}")));
    }
    let lora = [
        "--use_peft",
        "--lora_r=2",
        "--lora_dropout=0",
        "--lora_target_modules=q_proj",
        "--lora_target_parameters",
        "experts.gate_up_proj",
        "experts.down_proj",
        "--optim=sgd",
    ];
    let (four, eight) = (
        ["--load_in_4bit", "--use_bnb_nested_quant", "--quantize_experts"],
        ["--load_in_8bit", "--quantize_experts"],
    );
    for (name, more) in [
        ("quantized-plain", &four[..]),
        ("quantized-plain", &eight),
        ("quantized-plain", &four[..1]),
        ("quantized-each-nf4", &[]),
        ("quantized-mxfp4", &[]),
    ] {
        let words = |own: &[&'static str]| [&lora[..], more, own].concat();
        let one = run(root.path(), name, 1, &words(&["--gradient_accumulation_steps=4"])).unwrap();
        for (ranks, own) in [
            (2, &["--zero_stage=2", "--gradient_accumulation_steps=2"][..]),
            (4, &["--zero_stage=3", "--gradient_accumulation_steps=1"]),
            (2, &["--tp_size=2", "--zero_stage=0", "--gradient_accumulation_steps=4"]),
            (4, &["--tp_size=2", "--zero_stage=3", "--gradient_accumulation_steps=2"]),
            (4, &["--tp_size=4", "--enable_expert_parallel", "--gradient_accumulation_steps=4"]),
            (4, &["--ep_size=4", "--gradient_accumulation_steps=1"]),
            (4, &["--ep_size=2", "--zero_stage=3", "--gradient_accumulation_steps=1"]),
            (
                4,
                &[
                    "--tp_size=2",
                    "--enable_expert_parallel",
                    "--zero_stage=3",
                    "--gradient_accumulation_steps=2",
                ],
            ),
        ] {
            let got = run(root.path(), name, ranks, &words(own)).unwrap();
            same(&format!("{name}, {more:?}, {ranks}, {own:?}"), &got, &one);
        }
    }
}

/// Completions that train twice pull routers twice, and are heard of twice.
#[test]
fn every_iteration_over_completions_balances_experts() {
    let root = prepared();
    // The fixtures' tokenizer has more tokens than their vocabulary.
    let words = ["<s>", "</s>", "a", "b", "c", "d"]
        .iter()
        .enumerate()
        .map(|(id, word)| ((*word).to_owned(), id.into()));
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": serde_json::Map::from_iter(words), "unk_token": "a"},
    });
    let model = root.path().join("models/mixtral");
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(model.join("tokenizer_config.json"), r#"{"eos_token": "</s>"}"#).unwrap();
    let prompts =
        ["a b c", "d a", "b d c a", "c c"].map(|prompt| serde_json::json!({"prompt": prompt}).to_string());
    std::fs::write(root.path().join("prompts.jsonl"), prompts.join("\n")).unwrap();
    let words = [
        format!("--model_name_or_path={}", model.display()),
        format!("--dataset_name={}", root.path().join("prompts.jsonl").display()),
        format!("--output_dir={}", root.path().join("out").display()),
    ];
    let plain = [
        "--reward_funcs=think_format_reward",
        "--num_generations=2",
        "--per_device_train_batch_size=4",
        "--num_iterations=2",
        "--max_completion_length=3",
        "--max_steps=4",
        "--save_strategy=no",
        "--disable_tqdm=true",
        "--report_to=none",
        "--router_aux_loss_coef=0.5",
    ];
    let all = words.into_iter().chain(plain.map(str::to_owned));
    let options = GrpoOptions::parse(all).unwrap().run().unwrap().options;
    let run = Grpo::prepare(options, &Ranks::threads(1), &Device::flex(), &mut |_| ()).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let run = run.on_step(move |record| {
        heard.lock().unwrap().push((record.get("loss").unwrap(), record.get("aux_loss")));
        std::ops::ControlFlow::Continue(())
    });
    run.run(&Ranks::threads(1), &Stop::never()).unwrap();
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 4);
    for (step, (loss, balance)) in told.iter().enumerate() {
        let balance = balance.unwrap_or_else(|| panic!("step {step} says nothing of its routers"));
        // No completion has the format, so that advantages are 0.
        assert!(balance > 1.0 && (loss - 0.5 * balance).abs() < 1e-6, "step {step}: {loss}, {balance}");
    }
}

#[test]
fn a_model_without_experts_has_no_loss_of_routers() {
    let root = prepared();
    let error = run(root.path(), "llama", 1, &[]).unwrap_err().to_string();
    assert!(error.contains("router_aux_loss_coef is 0.5") && error.contains("llama"), "{error}");
}
