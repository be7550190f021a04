//! `convert`: any checkpoint as a folder that others load.

use std::fs;
use std::path::{Path, PathBuf};

use burnish_checkpoint::Checkpoint;
use burnish_core::Dtype;
use burnish_weight_files::WeightFolder;
use serde_json::Value;

use crate::program::{LORA, copy, fails, fixtures, model, ok, rows, sft};

fn convert(checkpoint: &Path, more: &[&str]) -> Vec<String> {
    let mut words = vec!["convert".to_owned(), "--checkpoint".to_owned(), checkpoint.display().to_string()];
    words.extend(more.iter().map(|w| (*w).to_owned()));
    words
}

/// A run of four steps with checkpoints at 2 and 4.
fn run(root: &Path, more: &[&str]) -> PathBuf {
    let out = root.join("run");
    let mut words = vec!["--max_steps=4", "--save_steps=2", "--per_device_train_batch_size=4"];
    words.extend(more);
    ok(&sft(&out, "prompt_completion.jsonl", &words));
    out
}

fn loss(folder: &Path, adapter: Option<&Path>) -> f64 {
    let mut words: Vec<String> = ["eval", "--model_name_or_path"].map(str::to_owned).into_iter().collect();
    words.push(folder.display().to_string());
    words.extend(["--dataset_name".to_owned(), rows("prompt_completion.jsonl").display().to_string()]);
    if let Some(adapter) = adapter {
        words.extend(["--adapter_name_or_path".to_owned(), adapter.display().to_string()]);
    }
    let result: Value = serde_json::from_str(&ok(&words)).unwrap();
    result["eval_loss"].as_f64().unwrap()
}

#[test]
fn a_bf16_run_is_exported_with_its_exact_fp32_weights() {
    let root = tempfile::tempdir().unwrap();
    let out = run(root.path(), &["--dtype=bfloat16"]);
    let path = out.join("checkpoint-4");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let before = fs::read(path.join("model.safetensors")).unwrap();

    // As it is: the same weights, byte for byte, and what is beside them; nothing of the training.
    let said = ok(&convert(&path, &[]));
    assert!(said.contains("checkpoint-4-export (Hugging Face model, dtypes kept)"), "{said}");
    let plain = out.join("checkpoint-4-export");
    for file in ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"] {
        assert_eq!(fs::read(path.join(file)).unwrap(), fs::read(plain.join(file)).unwrap(), "{file}");
    }
    assert!(!plain.join("trainer_state.json").exists() && !plain.join("state").exists());

    // In fp32: the masters and the values of vectors, of which the file holds the rounded ones. The run's folder stands for
    // its newest checkpoint.
    let full = root.path().join("full");
    let said = ok(&convert(&out, &["--dtype=float32", "--output_dir", full.to_str().unwrap()]));
    let (exported, rounded) = (WeightFolder::open(&full).unwrap(), checkpoint.weights().unwrap());
    let mut exact = 0;
    let mut finer = 0;
    for name in rounded.names() {
        let (a, b) = (exported.read(name).unwrap(), rounded.read(name).unwrap());
        assert_eq!((a.dtype, b.dtype), (Dtype::F32, Dtype::Bf16), "{name}");
        assert_eq!(a.cast(Dtype::Bf16), b, "{name}");
        let slot = ["master", "value"].into_iter().find(|s| checkpoint.contains(name, s)).expect(name);
        assert_eq!(a, checkpoint.read(name, slot).unwrap(), "{name}");
        exact += 1;
        finer += usize::from(a != b.cast(Dtype::F32));
    }
    assert!(said.contains(&format!("float32, {exact} tensors from exact values")), "{said}");
    assert!(finer * 2 > exact, "{finer} of {exact} lie between bf16 numbers");
    let config: Value = serde_json::from_slice(&fs::read(full.join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["dtype"], config.get("torch_dtype")), (&"float32".into(), None));
    assert!((loss(&full, None) - loss(&plain, None)).abs() < 0.05);
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), before);

    // Half precision comes from the exact values too: rounded once.
    let half = root.path().join("half");
    ok(&convert(&path, &["--dtype=float16", "--output_dir", half.to_str().unwrap()]));
    let half = WeightFolder::open(&half).unwrap();
    for name in half.names() {
        assert_eq!(half.read(name).unwrap(), exported.read(name).unwrap().cast(Dtype::F16), "{name}");
    }
}

#[test]
fn an_adapter_is_exported_as_peft_has_it() {
    let root = tempfile::tempdir().unwrap();
    let mut more = LORA.to_vec();
    more.push("--lora_modules_to_save=lm_head");
    let out = run(root.path(), &more);
    let path = out.join("checkpoint-2");
    let adapter = root.path().join("adapter");
    let said = ok(&convert(&path, &["--output_dir", adapter.to_str().unwrap()]));
    assert!(said.contains("(PEFT adapter, dtypes kept)"), "{said}");
    for file in ["adapter_model.safetensors", "adapter_config.json", "README.md", "tokenizer.json"] {
        assert_eq!(fs::read(path.join(file)).unwrap(), fs::read(adapter.join(file)).unwrap(), "{file}");
    }
    assert_eq!(loss(&model(), Some(&adapter)), loss(&model(), Some(&path)));
    let half = root.path().join("half");
    ok(&convert(&path, &["--dtype=bf16", "--output_dir", half.to_str().unwrap()]));
    let (half, whole) = (WeightFolder::open(&half).unwrap(), WeightFolder::open(&adapter).unwrap());
    assert!(half.names().eq(whole.names()));
    for name in half.names() {
        assert_eq!(half.read(name).unwrap(), whole.read(name).unwrap().cast(Dtype::Bf16), "{name}");
    }
}

/// A checkpoint that several ranks wrote is exported like one that a single one wrote: its rows are put together.
#[test]
fn what_many_ranks_wrote_is_exported_whole() {
    use burnish_checkpoint::{Attempt, CheckpointWriter, Share, TrainerState};
    use burnish_weight_files::{HostTensor, TensorSpec, WeightFileError};
    let root = tempfile::tempdir().unwrap();
    let attempt = Attempt::fresh();
    let base = WeightFolder::open(model()).unwrap();
    let specs: Vec<TensorSpec> =
        base.names().map(|n| TensorSpec::new(n, Dtype::Bf16, &base.info(n).unwrap().shape)).collect();
    let mut written = Vec::new();
    for rank in 0..3 {
        let share = Share { attempt, rank, ranks: 3 };
        let mut writer = CheckpointWriter::shared(root.path(), 9, share).unwrap();
        let rows = |n: usize| n * rank / 3..n * (rank + 1) / 3;
        for spec in &specs {
            let mine = base.read_slice(&spec.name, 0, rows(spec.rows())).unwrap().cast(Dtype::F32);
            // A little beside what the file holds, as masters are.
            let values: Vec<f32> = mine.to_f32().iter().map(|x| x * 1.0001).collect();
            let master = HostTensor::from_f32(&values, &mine.shape, Dtype::F32).unwrap();
            writer.rows(&spec.name, "master", &spec.shape, rows(spec.rows()), master.view()).unwrap();
        }
        let folder = writer.folder();
        folder
            .tensor_rows::<WeightFileError>(
                "model",
                &specs,
                |s| rows(s.rows()),
                |s, rows| Ok(base.read_slice(&s.name, 0, rows)?.cast(Dtype::Bf16).bytes.into()),
            )
            .unwrap();
        writer.file("config.json", &fs::read(model().join("config.json")).unwrap()).unwrap();
        writer.trainer_state(&TrainerState { global_step: 9, ..Default::default() }).unwrap();
        written.push(writer.finish().unwrap());
    }
    let path = written.remove(0).commit().unwrap();
    let out = root.path().join("out");
    ok(&convert(&path, &["--dtype=float32", "--output_dir", out.to_str().unwrap()]));
    let exported = WeightFolder::open(out).unwrap();
    for spec in &specs {
        let expected: Vec<f32> = base.read(&spec.name).unwrap().to_f32().iter().map(|x| x * 1.0001).collect();
        assert_eq!(exported.read(&spec.name).unwrap().to_f32(), expected, "{}", spec.name);
    }
}

#[test]
fn what_cannot_be_exported_is_refused_in_one_sentence() {
    let root = tempfile::tempdir().unwrap();
    let out = run(root.path(), &LORA);
    let path = out.join("checkpoint-4");
    fails(&convert(&root.path().join("gone"), &[]), &["checkpoint: no folder at", "gone"]);
    fails(&convert(&fixtures().join("data"), &[]), &["no complete checkpoint in"]);
    let text = path.display().to_string();
    fails(&convert(&path, &["--output_dir", &text]), &["name another folder"]);
    let roundabout = format!("{text}/../checkpoint-4");
    fails(&convert(&path, &["--output_dir", &roundabout]), &["is also the input"]);
    let foreign = root.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "").unwrap();
    let foreign = foreign.display().to_string();
    fails(&convert(&path, &["--output_dir", &foreign]), &["thesis.tex", "--overwrite_output_dir"]);
    ok(&convert(&path, &["--output_dir", &foreign, "--overwrite_output_dir"]));

    // Damage is seen, and nothing is left behind.
    let torn = root.path().join("torn/checkpoint-4");
    copy(&path, &torn);
    let file = torn.join("adapter_model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let broken = root.path().join("broken");
    let target = broken.display().to_string();
    fails(
        &convert(&torn, &["--output_dir", &target]),
        &["checksum", "adapter_model.safetensors", "no other complete checkpoint"],
    );
    assert_eq!(fs::read_dir(&broken).map_or(0, Iterator::count), 0);
    fs::remove_file(&file).unwrap();
    fails(&convert(&torn, &["--output_dir", &target]), &["`adapter_model.safetensors` is missing"]);
}
