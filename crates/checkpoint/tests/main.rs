//! Checkpoints against crashes, damage and foreign folders.
#![allow(clippy::unwrap_used, reason = "tests")]

mod crash;
mod damage;
mod output_dir;
mod ranks;
mod resharding;
mod runs;
mod saving;
mod store;

use std::path::{Path, PathBuf};

use burnish_checkpoint::{CheckpointWriter, TrainerState};
use burnish_core::Dtype;
use burnish_weight_files::HostTensor;

/// Values that depend on the step, so that files of two steps cannot be mistaken for each other.
fn tensor(step: u64, elements: usize) -> HostTensor {
    let values: Vec<f32> = (0..elements).map(|i| step as f32 + i as f32 / 64.0).collect();
    HostTensor::from_f32(&values, &[elements / 4, 4], Dtype::F32).unwrap()
}

/// Saves a small, complete checkpoint.
fn save(output_dir: &Path, step: u64) -> PathBuf {
    let mut writer = CheckpointWriter::new(output_dir, step).unwrap();
    writer.slots(serde_json::json!({"exp_avg": "float32"}));
    writer.tensor("a.weight", "exp_avg", tensor(step, 64).view()).unwrap();
    writer.tensor("b.weight", "exp_avg", tensor(step + 1000, 32).view()).unwrap();
    writer.folder().tensors("adapter_model", &[("a.lora".into(), tensor(step, 16).view())]).unwrap();
    let mut state = TrainerState { global_step: step, ..Default::default() };
    state.set_burnish(serde_json::json!({"cursor": step}));
    writer.trainer_state(&state).unwrap();
    writer.commit().unwrap()
}
