//! Logits of tiny random models of every family equal Transformers'.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burnish_core::Dtype;
use burnish_models::{Blueprint, Decoder, Family, Mode, Model, ModelFolder, ModelPlan, Tuning, load};
use burnish_ops::Parameters;
use burnish_peft::{LoraConfig, default_targets};
use burnish_weight_files::WeightFolder;

use crate::dora::backward_of;
use crate::recordings::{close, device, fixtures, floats, ids, json, logits};
use crate::round_trips::target;
use crate::several_parts::OF_OTHERS;

/// fp32 arithmetic in another order; logits are of order 1.
const TOLERANCE: f32 = 1e-4;

pub(crate) fn folders() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("expected.json").is_file())
        .collect();
    all.sort();
    all
}

fn check(folder: &Path, what: &str) {
    let model = load(folder, &device()).unwrap_or_else(|e| panic!("{what}: {e}")).decoder;
    let expected = json(&folder.join("expected.json"));
    for (row, case) in expected["logits"].as_array().unwrap().iter().enumerate() {
        let got = logits(&model, &[ids(&case["input_ids"])]);
        close(&format!("{what}, row {row}"), &got, &floats(&case["logits"]), TOLERANCE);
    }
}

#[test]
fn logits_equal_transformers() {
    let folders = folders();
    assert!(folders.len() >= 20, "{folders:?}");
    for folder in folders {
        check(&folder, &folder.file_name().unwrap().to_string_lossy());
    }
}

#[test]
fn old_configuration_spellings_mean_the_same() {
    for folder in folders() {
        for name in ["config_old.json", "config_alt.json"] {
            if folder.join(name).is_file() {
                let copy = tempfile::tempdir().unwrap();
                for file in std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()) {
                    std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
                }
                std::fs::copy(folder.join(name), copy.path().join("config.json")).unwrap();
                check(copy.path(), &format!("{} {name}", folder.display()));
            }
        }
    }
}

#[test]
fn sequences_side_by_side_do_not_see_each_other() {
    for name in ["llama", "mistral-window", "qwen3"] {
        let model = load(fixtures().join(name), &device()).unwrap().decoder;
        let rows = [vec![3, 1, 4, 1, 5, 9, 2, 6], vec![5, 3], vec![5, 8, 9, 7]];
        let together = logits(&model, &rows);
        let apart: Vec<f32> = rows.iter().flat_map(|r| logits(&model, std::slice::from_ref(r))).collect();
        close(name, &together, &apart, 1e-5);
    }
}

#[test]
fn families_are_told_apart() {
    let of = |name: &str| load(fixtures().join(name), &device()).unwrap().decoder.spec().family;
    for (name, model_type) in
        [("llama", "llama"), ("qwen3-tied", "qwen3"), ("phi3", "phi3"), ("glm4", "glm4")]
    {
        assert_eq!(of(name), Family::of(model_type).unwrap());
        assert_eq!(of(name).model_type(), model_type);
    }
    assert_ne!(of("llama"), of("mistral"));
}

/// Every family has a folder.
#[test]
fn every_family_is_recorded() {
    let types: BTreeSet<String> = folders()
        .iter()
        .map(|folder| json(&folder.join("config.json"))["model_type"].as_str().unwrap().to_owned())
        .collect();
    for family in Family::all() {
        let of_others = OF_OTHERS.iter().any(|(model_type, ..)| *model_type == family.model_type());
        assert!(types.contains(family.model_type()) || of_others, "{family:?}");
    }
}

/// The log-probabilities of several documents in one pass, the loss, and every gradient, with recomputation and
/// without. The recording has digests of gradients: their norms, and their sums with weights that tell elements apart.
#[test]
fn training_equals_transformers() {
    let mut checked = 0;
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expected = json(&folder.join("expected.json"));
        let Some(train) = expected.get("train") else { continue };
        checked += 1;
        let documents: Vec<Vec<u32>> = train["documents"].as_array().unwrap().iter().map(ids).collect();
        for (recompute, keeps_attention) in [(false, false), (true, false), (true, true)] {
            let what = format!("{name}, recompute {recompute}, attention kept {keeps_attention}");
            let opened = ModelFolder::open(&folder).unwrap();
            let planned = ModelPlan::new(&opened, &Tuning::Full, Dtype::F32, 0).unwrap();
            let (model, resident) = planned.resident(&device()).unwrap();
            let predicted: usize = documents.iter().map(|d| d.len() - 1).sum();
            let mode = Mode::Train { recompute, dropout: None };
            let pass = model.decoder.pass(mode).with_attention_kept(keeps_attention);
            let loss = backward_of(&model.decoder, pass, &documents, predicted as f32, 0);
            close(&what, &[loss], &floats(&train["loss"]), 2e-5);
            let gradients = train["gradients"].as_object().unwrap();
            let trained = resident.registry().trainable().count();
            assert_eq!(gradients.len(), trained, "{what}");
            for (parameter, digest) in gradients {
                let index = resident.registry().index_of(parameter);
                let index = index.unwrap_or_else(|| panic!("{what}: no parameter {parameter}"));
                let got = resident.take_gradient(index).unwrap().to_f32();
                let norm = got.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                let probe = |i: usize| ((i * 7919) % 101) as f64 / 50.0 - 1.0;
                let sum: f64 = got.iter().enumerate().map(|(i, g)| f64::from(*g) * probe(i)).sum();
                let want = [digest[0].as_f64().unwrap(), digest[1].as_f64().unwrap()];
                // Some gradients are zero but for rounding: a bias of keys that do not turn.
                let tolerance = 1e-4 * want[0] + 1e-6;
                assert!(
                    (norm - want[0]).abs() < tolerance,
                    "{what}: {parameter}: norm {norm}, not {}",
                    want[0]
                );
                assert!(
                    (sum - want[1]).abs() < 2.0 * tolerance,
                    "{what}: {parameter}: {sum}, not {}",
                    want[1]
                );
            }
        }
        let model = load(&folder, &device()).unwrap().decoder;
        close(
            &format!("{name}: log-probabilities"),
            &log_probs(&model, &documents),
            &floats(&train["log_probs"]),
            1e-4,
        );
    }
    assert!(checked >= 25, "{checked}");
}

/// Log-probabilities of the next token at every position but the last of each document, all in one pass.
fn log_probs(model: &Decoder, documents: &[Vec<u32>]) -> Vec<f32> {
    let vocab = model.spec().vocab;
    let all = logits(model, documents);
    let mut rows = all.chunks_exact(vocab);
    let mut found = Vec::new();
    for document in documents {
        for (at, row) in rows.by_ref().take(document.len()).enumerate() {
            let Some(&next) = document.get(at + 1) else { continue };
            let top = row.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
            let sum: f32 = row.iter().map(|x| (x - top).exp()).sum();
            found.push(row[next as usize] - top - sum.ln());
        }
    }
    found
}

/// Stage 3 gathers what a unit has when it is read: together units are all parameters, each once, and passes read no others.
#[test]
fn units_are_all_parameters() {
    for folder in folders() {
        let name = folder.display();
        let blueprint = Blueprint::new(ModelFolder::open(&folder).unwrap().spec().clone()).unwrap();
        let parameters = blueprint.registry().iter().enumerate();
        let all: Vec<usize> =
            parameters.filter(|(_, p)| p.alias_of.is_none()).map(|(index, _)| index).collect();
        let sorted = |mut found: Vec<usize>| {
            found.sort_unstable();
            found
        };
        let units = blueprint.units().into_iter().flat_map(|(_, indices)| indices).collect();
        assert_eq!(sorted(units), all, "{name}: units");
        let read: BTreeSet<usize> = blueprint.reads(true).into_iter().flatten().collect();
        assert_eq!(read.into_iter().collect::<Vec<_>>(), all, "{name}: reads");
    }
}

/// A full model is written as it was read: names, dtypes, bits.
#[test]
fn every_family_is_written_as_it_was_read() {
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let opened = ModelFolder::open(&folder).unwrap();
        let from = WeightFolder::open(&folder).unwrap();
        let dtype = from.info(from.names().next().unwrap()).unwrap().dtype;
        let model = Model::load(&opened, &Tuning::Full, dtype, 0, &device()).unwrap();
        let (_guard, path, mut writer) = target();
        model.write_full(&opened, &mut writer, dtype).unwrap();
        writer.commit().unwrap();
        let to = WeightFolder::open(&path).unwrap();
        assert_eq!(to.names().collect::<BTreeSet<_>>(), from.names().collect::<BTreeSet<_>>(), "{name}");
        for tensor in to.names() {
            assert_eq!(to.read(tensor).unwrap(), from.read(tensor).unwrap(), "{name}: {tensor}");
        }
        let class = json(&path.join("config.json"))["architectures"][0].clone();
        let (read, written) = (json(&folder.join("config.json")), json(&path.join("config.json")));
        assert_eq!(read["architectures"][0], class, "{name}");
        assert_eq!(read["model_type"], written["model_type"], "{name}");
    }
}

/// The modules that PEFT adapts by default are there; where it has no default, it is said.
#[test]
fn default_targets_of_peft_are_found() {
    for folder in folders() {
        let opened = ModelFolder::open(&folder).unwrap();
        let config = LoraConfig::from_json(r#"{"peft_type": "LORA", "r": 2}"#).unwrap();
        let planned = ModelPlan::new(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 0);
        let model_type = opened.spec().family.model_type();
        match default_targets(model_type) {
            // Packed by Transformers, and without a default in PEFT.
            None => assert!(planned.is_err(), "{model_type}"),
            Some(_) => assert!(!planned.unwrap().plan().unwrap().sites.is_empty(), "{model_type}"),
        }
    }
}
