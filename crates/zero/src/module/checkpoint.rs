//! A wrapped module's training state in a folder, for any number of ranks and any stage.

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::TensorData;
use burnish_checkpoint::{
    Attempt, Checkpoint, CheckpointError, CheckpointWriter, Share, TrainerState, open_newest, path_of,
};
use burnish_comm::{Bucket, Reduction};
use burnish_ops::AnyTensor;
use burnish_weight_files::HostTensor;
use serde_json::{Value, json};

use super::initial::burn_dtype;
use super::{ModuleError, Wrapped};

/// The slot of a parameter's own value.
const WEIGHT: &str = "weight";
/// How many steps the optimizer has taken, among what is ours in the trainer's state.
const STEPS: &str = "optimizer_steps";

impl<M: Module> Wrapped<M> {
    /// Saves `checkpoint-{step}` in `output_dir`: weights and optimizer state of what trains, each rank its rows. It
    /// appears by one rename, when all ranks have written. [`burnish_checkpoint`] reads, rotates and verifies it: a
    /// parameter is its path, with slot `weight` and those of the optimizer.
    ///
    /// # Collectives
    /// Every rank calls it, between steps, with a folder that all of them see.
    ///
    /// # Errors
    /// If the disk refuses, on any rank: there is no checkpoint then.
    pub fn save(&self, output_dir: impl AsRef<Path>, step: u64) -> Result<PathBuf, ModuleError> {
        let (dir, group) = (output_dir.as_ref(), self.scalars());
        let words = Attempt::fresh().to_words().to_vec();
        let words = group.broadcast(Bucket::new(words), 0, "checkpoint").wait()?;
        let attempt = Attempt::from_words([words.as_slice()[0], words.as_slice()[1]]);
        let share = Share { attempt, rank: group.rank(), ranks: group.size() };
        let begin = || CheckpointWriter::shared(dir, step, share);
        // The lead makes the folder.
        let lead = share.leads().then(begin).transpose();
        let writer = match self.agreed("begins a checkpoint", lead)? {
            Some(writer) => Ok(writer),
            None => begin(),
        };
        let mut writer = self.agreed("joins a checkpoint", writer)?;
        let saved = self.state()?;
        let written = saved.into_iter().try_for_each(|rows| {
            let slot = rows.slot.unwrap_or(WEIGHT);
            let piece = to_host(&rows.tensor);
            writer.rows(&rows.parameter, slot, &rows.shape, rows.rows, piece.view())
        });
        let written = written.and_then(|()| {
            let mut state = TrainerState { global_step: step, ..TrainerState::default() };
            state.set_burnish(json!({ STEPS: self.optimizer().steps() }));
            writer.slots(serde_json::to_value(self.optimizer().schema()).unwrap_or(Value::Null));
            writer.trainer_state(&state)?;
            writer.finish()
        });
        let written = self.agreed("writes a checkpoint", written)?;
        let path = path_of(dir, step);
        let committed = if share.leads() { written.commit().map(drop) } else { Ok(()) };
        self.agreed("commits a checkpoint", committed)?;
        Ok(path)
    }

    /// Takes up the newest complete checkpoint in `output_dir`, whatever the number of ranks and the stage that wrote it,
    /// and gives its step; `None` if there is none. Damaged ones are passed over.
    ///
    /// # Collectives
    /// Every rank calls it, before the first step.
    ///
    /// # Errors
    /// If the disk refuses, or the checkpoint is of another module.
    pub fn resume(&mut self, output_dir: impl AsRef<Path>) -> Result<Option<u64>, ModuleError> {
        let dir = output_dir.as_ref();
        let group = self.scalars().clone();
        let mut before = None;
        let checkpoint = loop {
            // The lead looks; another rank's disk may lag behind.
            let newest =
                if group.rank() == 0 { open_newest(dir, before).map(|l| l.checkpoint) } else { Ok(None) };
            let newest = self.agreed("looks for a checkpoint", newest)?;
            let step = newest.map_or([0, 0], |checkpoint| [1, checkpoint.step()]);
            let step = group.broadcast(Bucket::new(step.to_vec()), 0, "newest checkpoint").wait()?;
            let &[there, step] = step.as_slice() else { unreachable!("invariant: two words were sent") };
            if there == 0 {
                return Ok(None);
            }
            let opened = Checkpoint::open(path_of(dir, step))
                .and_then(|c| c.verify_share(group.rank(), group.size()).map(|()| c));
            match self.agreed("opens a checkpoint", opened) {
                Ok(checkpoint) => break checkpoint,
                Err(ModuleError::Checkpoint(e)) if !e.is_damage() => return Err(e.into()),
                Err(ModuleError::Checkpoint(_) | ModuleError::OtherRanks { .. }) => before = Some(step),
                Err(error) => return Err(error),
            }
        };
        let steps = checkpoint.trainer_state()?.burnish()[STEPS].as_u64().unwrap_or_default();
        let device = self.store().device().clone();
        self.restore(steps, |name, slot, rows| {
            let slot = slot.unwrap_or(WEIGHT);
            if !checkpoint.contains(name, slot) {
                return Ok(None);
            }
            let HostTensor { dtype, shape, bytes } = checkpoint.read_range(name, slot, rows)?;
            let data = TensorData::from_bytes_vec(bytes, shape, burn_dtype(dtype));
            Ok::<_, CheckpointError>(Some(AnyTensor::from_data(data, &device)))
        })?;
        Ok(Some(checkpoint.step()))
    }

    /// The same on all ranks: this rank's error, or that others had one.
    fn agreed<T>(&self, what: &'static str, result: Result<T, CheckpointError>) -> Result<T, ModuleError> {
        let failed = u8::from(result.is_err());
        let flags = Bucket::new(vec![failed]);
        let failed = self.scalars().all_reduce(flags, Reduction::Max, what).wait()?;
        match result {
            Ok(_) if failed.as_slice() != [0] => Err(ModuleError::OtherRanks { what }),
            result => Ok(result?),
        }
    }
}

fn to_host(tensor: &AnyTensor) -> HostTensor {
    let dtype = tensor.dtype().expect("invariant: parameters and slots are float tensors");
    HostTensor { dtype, shape: tensor.shape(), bytes: tensor.to_data().into_bytes().to_vec() }
}
