//! Gradient descent with momentum that is stopped at every tenth step: what goes on from a checkpoint ends where a run
//! without a stop ends, and a damaged checkpoint is passed over.

use std::path::Path;

use anyhow::{Result, ensure};
use burnish_checkpoint::{CheckpointWriter, HostTensor, TrainerState, latest, rotate};

/// Steps up to `last` of the minimum of `(w - target)^2`, from the newest checkpoint on.
fn train(dir: &Path, last: u64, every: u64) -> Result<Vec<f32>> {
    let target: Vec<f32> = (0..5).map(|i| i as f32).collect();
    let (mut first, mut w, mut momentum) = (0, vec![0.0_f32; 5], vec![0.0_f32; 5]);
    if let Some(checkpoint) = latest(dir)?.checkpoint {
        first = checkpoint.step();
        w = checkpoint.read("w", "weight")?.to_f32();
        momentum = checkpoint.read("w", "momentum")?.to_f32();
        ensure!(checkpoint.trainer_state()?.burnish()["loss"].is_f64(), "the loop's own state is there");
    }
    for step in first + 1..=last {
        for ((w, m), target) in w.iter_mut().zip(&mut momentum).zip(&target) {
            *m = 0.9 * *m + 2.0 * (*w - target);
            *w -= 0.02 * *m;
        }
        if step % every == 0 {
            let mut writer = CheckpointWriter::new(dir, step)?;
            writer.tensor("w", "weight", HostTensor::from_slice(&w, &[5])?.view())?;
            writer.tensor("w", "momentum", HostTensor::from_slice(&momentum, &[5])?.view())?;
            let loss: f32 = w.iter().zip(&target).map(|(w, t)| (w - t).powi(2)).sum();
            let mut state = TrainerState { global_step: step, ..TrainerState::default() };
            state.set_burnish(serde_json::json!({ "loss": loss }));
            writer.trainer_state(&state)?;
            writer.commit()?;
            rotate(dir, None, Some(3), None)?;
        }
    }
    Ok(w)
}

fn main() -> Result<()> {
    let (through, stopped) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let expected = train(through.path(), 60, 1000)?;
    for last in [17, 38] {
        train(stopped.path(), last, 10)?;
    }
    // A bit of the newest one flips on the disk.
    let newest = stopped.path().join("checkpoint-30/state/data-00000-00000.safetensors");
    let mut bytes = std::fs::read(&newest)?;
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    std::fs::write(&newest, bytes)?;
    let found = latest(stopped.path())?;
    ensure!(found.checkpoint.as_ref().map(|c| c.step()) == Some(20) && found.skipped.len() == 1, "{found:?}");
    let resumed = train(stopped.path(), 60, 10)?;
    ensure!(resumed == expected, "{resumed:?} is not {expected:?}");
    println!("stopped at 17 and 38, checkpoint 30 damaged: {resumed:?}, as without a stop");
    Ok(())
}
