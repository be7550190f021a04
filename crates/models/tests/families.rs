//! Logits of tiny random models of every family equal Transformers'.

use std::path::{Path, PathBuf};

use burnish_models::{Family, load};

use crate::recordings::{close, device, fixtures, floats, ids, json, logits};

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
    let family = |name: &str| load(fixtures().join(name), &device()).unwrap().decoder.spec().family;
    assert_eq!(family("llama"), Family::Llama);
    assert_eq!(family("mistral"), Family::Mistral);
    assert_eq!(family("qwen2"), Family::Qwen2);
    assert_eq!(family("qwen3"), Family::Qwen3);
    assert_eq!(family("phi3"), Family::Phi3);
}
