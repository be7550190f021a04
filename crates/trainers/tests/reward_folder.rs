//! A reward model's folder gives what TRL's GRPO trainer gets of it (`record/reward_folder.py`).

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use burnish_rewards::{RewardFunction, Sample};
use burnish_trainers::{RewardFolder, TrainError};
use serde_json::{Map, Value};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn open(batch: usize) -> RewardFolder {
    RewardFolder::open(&fixtures().join("trl-runs/reward-full/model_start"), batch, &Device::flex()).unwrap()
}

/// Whether the scores of one part of the recording are reproduced.
#[track_caller]
fn check(folder: &RewardFolder, cases: &Value) {
    let (cases, columns) = (cases.as_array().unwrap(), Map::new());
    let sample = |case| -> Sample<'_> {
        let case: &Value = case;
        let completion = case["completion"].as_str().unwrap();
        Sample { prompt: &case["prompt"], completion, completion_ids: &[], columns: &columns }
    };
    let samples: Vec<Sample<'_>> = cases.iter().map(sample).collect();
    let scores = folder.score(&samples).unwrap();
    assert_eq!(scores.len(), 7);
    for (case, score) in cases.iter().zip(scores) {
        let (recorded, score) = (case["score"].as_f64().unwrap(), score.unwrap());
        assert!((score - recorded).abs() <= 1e-5, "{case}: {score}");
    }
}

fn recorded() -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixtures().join("reward_folder.json")).unwrap()).unwrap()
}

#[test]
fn scores_are_trls_whatever_is_scored_together() {
    let recorded = recorded();
    for batch in [1, 3, 16] {
        let folder = open(batch);
        assert_eq!(folder.name(), "model_start");
        check(&folder, &recorded["plain"]);
        check(&folder, &recorded["chat"]);
        assert_eq!(folder.score(&[]).unwrap(), []);
    }
}

#[test]
fn ranks_score_at_the_same_time() {
    let (folder, recorded) = (open(2), recorded());
    std::thread::scope(|scope| {
        for part in ["plain", "chat", "plain", "chat"] {
            let (folder, cases) = (&folder, &recorded[part]);
            scope.spawn(move || check(folder, cases));
        }
    });
}

#[test]
fn a_text_without_tokens_has_no_score() {
    let (prompt, columns) = (Value::from(""), Map::new());
    let sample = |completion| Sample { prompt: &prompt, completion, completion_ids: &[], columns: &columns };
    let scores = open(8).score(&[sample(""), sample("Hello!"), sample("")]).unwrap();
    assert_eq!((scores[0], scores[2]), (None, None));
    assert!((scores[1].unwrap() - recorded()["plain"][3]["score"].as_f64().unwrap()).abs() <= 1e-5);
}

#[test]
fn a_language_model_is_no_reward_model() {
    let refused = RewardFolder::open(&fixtures().join("models/llama"), 8, &Device::flex());
    let Err(refused @ TrainError::NoScore { .. }) = refused else { panic!("opened") };
    assert!(refused.to_string().contains("burnish reward"));
}
