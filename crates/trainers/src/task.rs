//! What a trainer computes: all else is the loop's.

use burnish_data::{Sampler, Step};
use burnish_losses::{Metrics, Tally};
use burnish_models::Pass;
use burnish_ops::AnyTensor;
use burnish_zero::Store;

use crate::TrainError;
use crate::checkpointing::Resumed;
use crate::evaluate::Evaluation;
use crate::rank::Rank;
use crate::setup::Setup;

/// What a trainer computes from the rows of a step. The loop deals rows, runs backward, steps the optimizer, adds up over
/// micro-batches and ranks, logs, saves and resumes; it is the same for all.
///
/// Every rank runs the same passes in the same order, whatever rows it has.
pub(crate) trait Task: Send + Sync {
    /// A micro-batch of one rank; without rows, something that runs the same passes.
    type Batch;
    /// What a rank keeps beside the model.
    type Beside: Send;
    /// What is known of a step before its first pass with gradients.
    type Ahead;

    /// Tokens of all training rows.
    fn tokens(&self) -> usize;

    /// The loop's rows in their order, for this many ranks that take different ones.
    fn sampler(&self, setup: &Setup, ranks: usize) -> Result<Sampler, TrainError> {
        setup.sampler(setup.rows_in_order(), ranks)
    }

    /// What [`Self::loss`] tallies besides `loss`: what travels between ranks and is logged.
    fn metrics(&self) -> Metrics;

    /// What this rank keeps beside the model; the model is as it is at the start, or as `resumed` has it.
    fn beside(&self, rank: &Rank<'_>, resumed: Option<&Resumed>) -> Result<Self::Beside, TrainError>;

    /// Sees to it that the rows of a step, the one after `done`, are there; figures that are the same on all ranks.
    fn begin(
        &self,
        _rank: &Rank<'_>,
        _beside: &mut Self::Beside,
        _step: &Step,
        _done: u64,
    ) -> Result<Tally, TrainError> {
        Ok(Tally::new())
    }

    /// This rank's micro-batch number `micro` of a step.
    fn batch(&self, rank: &Rank<'_>, beside: &Self::Beside, step: &Step, micro: usize) -> Self::Batch;

    /// Tokens of a micro-batch as TRL counts them.
    fn num_tokens(&self, batch: &Self::Batch) -> usize;

    /// What the loss divides by, of this rank's micro-batches: always the same number of values.
    fn counts(&self, batches: &[Self::Batch]) -> Vec<f64>;

    /// Passes without gradients over this rank's micro-batches.
    fn ahead(
        &self,
        rank: &Rank<'_>,
        beside: &Self::Beside,
        batches: &[Self::Batch],
        counts: &Counts,
    ) -> Result<Self::Ahead, TrainError>;

    /// The loss of micro-batch number `micro`.
    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &Pass,
        batch: (usize, &Self::Batch),
        counts: &Counts,
        ahead: &Self::Ahead,
    ) -> Result<Part, TrainError>;

    /// What the sum of the parts' values is divided by to be this rank's part of the loss.
    fn divisor(&self, _ahead: &Self::Ahead) -> f64 {
        1.0
    }

    /// Whether training passes drop out.
    fn drops_out(&self) -> bool {
        true
    }

    /// After an update, `done` steps in all; of the step what was known ahead and what all ranks tallied.
    fn stepped(
        &self,
        _rank: &Rank<'_>,
        _beside: &mut Self::Beside,
        _done: u64,
        _of: (&Self::Ahead, &Tally),
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Parameters beside the model that a checkpoint has to hold.
    fn saved<'b>(&self, _beside: &'b Self::Beside) -> Option<&'b Store> {
        None
    }

    /// Whatever else it has to hold: a file's name and content, the same on all ranks.
    fn saved_file(&self, _beside: &Self::Beside) -> Option<(&'static str, Vec<u8>)> {
        None
    }

    /// The loss and its companions over the evaluation rows, if there are any; the same on all ranks.
    fn evaluate(&self, rank: &Rank<'_>, beside: &Self::Beside) -> Result<Option<Evaluation>, TrainError>;
}

/// What a loss divides by.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    /// This rank's.
    pub(crate) own: Vec<f64>,
    /// Those of all ranks.
    pub(crate) all: Vec<f64>,
    /// Ranks that take different rows.
    pub(crate) ranks: usize,
}

/// A micro-batch's part of a loss.
pub(crate) struct Part {
    /// `[1]`, on the tape.
    pub(crate) loss: AnyTensor,
    /// What it adds to the loss, before [`Task::divisor`].
    pub(crate) value: f64,
    pub(crate) tally: Tally,
}
