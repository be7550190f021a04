//! Generation batches in use, and their place in a checkpoint.

use std::sync::Arc;

use burnish_losses::EntropyControl;
use serde::{Deserialize, Serialize};

use super::sampled::Sampled;

/// The file of a checkpoint that holds what is sampled and not trained on to the end.
pub(super) const FILE: &str = "rollouts.json";

/// The completions of one generation batch, in the order in which they train.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GenerationBatch {
    /// Which one of the run, from 0.
    pub(super) number: u64,
    /// The step it was sampled for, steps counted from 0.
    pub(super) step: u64,
    pub(super) sampled: Vec<Sampled>,
}

impl GenerationBatch {
    /// Tokens in the loss.
    pub(super) fn targets(&self) -> f64 {
        self.sampled.iter().map(|s| s.targets() as f64).sum()
    }
}

/// What gives the rows of the loop their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) generation_batch_size: usize,
    pub(super) num_generations: usize,
    pub(super) num_iterations: usize,
}

/// The generation batches that steps train on.
#[derive(Debug, Default)]
pub(super) struct Batches {
    held: Vec<Arc<GenerationBatch>>,
    /// The step under way, steps counted from 0.
    step: u64,
    /// The batch that the next step begins with.
    next: u64,
}

/// What a checkpoint holds.
#[derive(Serialize, Deserialize)]
struct Saved<B> {
    shape: Shape,
    batches: Vec<B>,
    /// The weight of the entropy bonus, and the entropy it last saw.
    entropy: Option<(f64, Option<f64>)>,
}

impl Batches {
    pub(super) fn has(&self, number: u64) -> bool {
        self.held.iter().any(|batch| batch.number == number)
    }

    pub(super) fn add(&mut self, batch: GenerationBatch) {
        self.held.push(Arc::new(batch));
    }

    /// The batch of this number, which [`Self::has`].
    pub(super) fn of(&self, number: u64) -> &Arc<GenerationBatch> {
        let found = self.held.iter().find(|batch| batch.number == number);
        found.expect("invariant: a step's batches are sampled before it is dealt")
    }

    /// Step `step` begins with batch `first`, and the one after it with `next`.
    pub(super) fn move_on(&mut self, step: u64, first: u64, next: u64) {
        self.held.retain(|batch| batch.number >= first);
        (self.step, self.next) = (step, next);
    }

    /// Whether a batch was sampled for the step under way: by the policy as it is.
    pub(super) fn is_fresh(&self, batch: &GenerationBatch) -> bool {
        batch.step == self.step
    }

    /// For a checkpoint after the step.
    pub(super) fn to_json(&self, shape: Shape, control: Option<&EntropyControl>) -> Vec<u8> {
        let batches = self.held.iter().filter(|batch| batch.number >= self.next).map(AsRef::as_ref).collect();
        let finite = |number: f64| number.is_finite().then_some(number);
        let entropy = control.map(|control| (control.coefficient, finite(control.last_entropy)));
        serde_json::to_vec(&Saved::<&GenerationBatch> { shape, batches, entropy })
            .expect("invariant: numbers and lists serialise to JSON")
    }

    /// As a checkpoint has it; `control` goes on from where it was.
    pub(super) fn from_json(
        bytes: &[u8],
        control: Option<&mut EntropyControl>,
    ) -> Result<(Self, Shape), serde_json::Error> {
        let Saved { shape, batches, entropy } = serde_json::from_slice::<Saved<GenerationBatch>>(bytes)?;
        if let (Some(control), Some((coefficient, last))) = (control, entropy) {
            control.coefficient = coefficient;
            control.last_entropy = last.unwrap_or(f64::INFINITY);
        }
        let held = batches.into_iter().map(Arc::new).collect();
        Ok((Self { held, ..Self::default() }, shape))
    }
}
