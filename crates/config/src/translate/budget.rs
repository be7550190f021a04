//! Budget of a run in sampled completions, as TRL's older RLOO and PPO trainers state it, in steps.

use super::{Key, Translation, known};
use crate::foreign;
use crate::raw::Raw;
use crate::source::Written;
use crate::value::OptionValue;

impl Translation<'_> {
    /// Completions and mini-batches of a sampled batch, as steps.
    ///
    /// # Source
    /// TRL 0.12, `RLOOTrainer`: a sampled batch has the completions of `num_mini_batches` steps, and trains
    /// `num_ppo_epochs` times.
    pub(super) fn budget(&mut self, episodes: Option<&Written>, mini_batches: Option<&Written>) {
        let several = match mini_batches.filter(|w| !foreign::nothing(&w.raw)) {
            None => 1,
            Some(w) => {
                let key = key(w);
                let Some(several) = u64::read(&w.raw) else {
                    return self.expect(&key, &u64::expected(), &w.raw);
                };
                let steps = several.saturating_mul(self.number("gradient_accumulation_steps", 1));
                if several > 1 {
                    self.say(&key, "steps_per_generation", steps.write());
                }
                several.max(1)
            }
        };
        let Some(w) = episodes.filter(|w| !foreign::nothing(&w.raw)) else { return };
        let key = key(w);
        let Some(episodes) = u64::read(&w.raw) else { return self.expect(&key, &u64::expected(), &w.raw) };
        if self.last("max_steps").and_then(i64::read).is_some_and(|steps| steps > 0) {
            return self.note(key.name, "max_steps ends the run");
        }
        let batch = self
            .number("per_device_train_batch_size", 8)
            .saturating_mul(self.number("gradient_accumulation_steps", 1))
            .saturating_mul(self.number("nproc", 1))
            .saturating_mul(several);
        let steps = episodes
            .div_ceil(batch.max(1))
            .saturating_mul(several)
            .saturating_mul(self.number("num_iterations", 1));
        self.say(&key, "max_steps", Raw::Int(i64::try_from(steps).unwrap_or(i64::MAX)));
    }

    fn number(&self, option: &str, default: u64) -> u64 {
        self.last(option).and_then(u64::read).unwrap_or(default)
    }
}

fn key(written: &Written) -> Key {
    Key { name: known(&written.name).unwrap_or_default(), origin: written.origin.clone() }
}
