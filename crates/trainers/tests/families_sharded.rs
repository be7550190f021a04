//! Every family at stage 3: two ranks train as one does, the whole model and an adapter.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use burnish_config::{Command, SftOptions};
use burnish_trainers::{Ranks, Sft, Stop, Trainer};
use burnish_weight_files::WeightFolder;

/// The recorded models, with a tokenizer beside each: rows are tokens, so it only has to be there.
pub(crate) fn folders(root: &Path) -> Vec<(String, PathBuf)> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for from in std::fs::read_dir(manifest.join("../models/tests/fixtures")).unwrap() {
        let from = from.unwrap().path();
        if !from.join("expected.json").is_file() {
            continue;
        }
        let name = from.file_name().unwrap().to_string_lossy().into_owned();
        let to = root.join(&name);
        with_tokenizer(&from, &to);
        all.push((name, to));
    }
    all.sort();
    all
}

/// A copy of a model folder, with a tokenizer.
pub(crate) fn with_tokenizer(from: &Path, to: &Path) {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(|e| e.unwrap().path()) {
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(file), to.join(file)).unwrap();
    }
}

/// Two steps of descent; the tensors of what is written, by name.
fn trained(model: &Path, rows: &Path, out: &Path, ranks: usize, adapter: bool) -> Vec<(String, Vec<f32>)> {
    let per_rank = 4 / ranks;
    let mut words = vec![
        format!("--model_name_or_path={}", model.display()),
        format!("--dataset_name={}", rows.display()),
        format!("--output_dir={}", out.display()),
        format!("--per_device_train_batch_size={per_rank}"),
        format!("--nproc={ranks}"),
    ];
    let plain = [
        "--max_steps=2",
        "--max_length=32",
        "--optim=sgd",
        "--learning_rate=0.05",
        "--lr_scheduler_type=constant",
        "--warmup_ratio=0",
        "--zero_stage=3",
        "--stage3_param_persistence_threshold=0",
        "--save_strategy=no",
        "--disable_tqdm=true",
        "--report_to=none",
        "--overwrite_output_dir",
        // Of a micro-batch, whose rows differ here.
        "--router_aux_loss_coef=0",
    ];
    words.extend(plain.map(str::to_owned));
    if adapter {
        words.extend(
            ["--use_peft", "--lora_r=2", "--lora_target_modules=all-linear", "--lora_dropout=0"]
                .map(str::to_owned),
        );
    }
    let options = SftOptions::parse(words).unwrap().run().unwrap().options;
    let ranks = Ranks::threads(ranks);
    let run = Sft::prepare(options, &ranks, &Device::flex(), &mut |_| ()).unwrap();
    run.run(&ranks, &Stop::never()).unwrap();
    let written = if adapter {
        WeightFolder::open_stem(out, "adapter_model").unwrap()
    } else {
        WeightFolder::open(out).unwrap()
    };
    written.names().map(|name| (name.to_owned(), written.read(name).unwrap().to_f32())).collect()
}

#[test]
fn every_family_trains_alike_on_two_ranks_at_stage_3() {
    let root = tempfile::tempdir().unwrap();
    let rows = root.path().join("rows.jsonl");
    let row = |i: usize| {
        let ids: Vec<usize> = (0..5 + 3 * (i % 4)).map(|at| 3 + (7 * at + 5 * i) % 36).collect();
        serde_json::json!({"input_ids": ids}).to_string()
    };
    std::fs::write(&rows, (0..8).map(row).collect::<Vec<_>>().join("\n")).unwrap();
    let models = root.path().join("models");
    std::fs::create_dir(&models).unwrap();
    let folders = folders(&models);
    assert!(folders.len() >= 60, "{}", folders.len());
    let mut wrong = Vec::new();
    for (name, model) in folders {
        for adapter in [false, true] {
            let out = |ranks: usize| root.path().join(format!("out-{name}-{adapter}-{ranks}"));
            let one = trained(&model, &rows, &out(1), 1, adapter);
            let two = trained(&model, &rows, &out(2), 2, adapter);
            assert!(!one.is_empty(), "{name}");
            let names = |all: &[(String, Vec<f32>)]| all.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
            assert_eq!(names(&one), names(&two), "{name}");
            for ((tensor, a), (_, b)) in one.iter().zip(&two) {
                let largest = a.iter().fold(1.0_f32, |m, x| m.max(x.abs()));
                let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                if apart.is_nan() || apart > 1e-5 * largest {
                    wrong.push(format!("{name}, adapter {adapter}: {tensor} by {apart}"));
                }
            }
            let start = WeightFolder::open(&model).unwrap();
            let moved = one.iter().any(|(tensor, values)| {
                !start.contains(tensor) || start.read(tensor).unwrap().to_f32() != *values
            });
            assert!(moved, "{name}: nothing trained");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
