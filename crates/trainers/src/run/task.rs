//! `Task`: the trait of a trainer; everything else is the loop's.

use burnish_data::{Sampler, Step};
use burnish_losses::{MetricSums, Metrics};
use burnish_models::ForwardContext;
use burnish_ops::AnyTensor;
use burnish_zero::ShardedParams;

use crate::TrainError;
use crate::evaluation::Evaluation;
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::setup::Setup;

/// What a trainer computes from the rows of a step. The loop deals rows, runs backward, steps the optimizer, adds up over
/// micro-batches and ranks, logs, saves and resumes; it is the same for all. A [`Run`](crate::Run) of an own task is an
/// own trainer.
///
/// In a step: [`before_step`](Self::before_step), [`batch`](Self::batch) of every micro-batch, [`counts`](Self::counts),
/// [`step_inputs`](Self::step_inputs), then [`loss`](Self::loss) of every micro-batch with its backward pass, the
/// optimizer, [`after_step`](Self::after_step).
///
/// # Collectives
/// Every rank runs the same passes in the same order, whatever rows it has: passes gather weights and sum activations.
pub trait Task: Send + Sync {
    /// A micro-batch of one rank; without rows, something that runs the same passes.
    type Batch;
    /// What a rank keeps beside the model.
    type State: Send;
    /// What is known of a step before its first pass with gradients.
    type StepInputs;

    /// Tokens of all training rows.
    fn tokens(&self) -> usize;

    /// The loop's rows in their order, for this many ranks that take different ones.
    ///
    /// # Errors
    /// If no step can be made of the rows.
    fn sampler(&self, setup: &Setup, ranks: usize) -> Result<Sampler, TrainError> {
        setup.sampler(setup.rows_in_order(), ranks)
    }

    /// The length of each row, for the order of [`Order::GroupByLength`](burnish_data::Order::GroupByLength); `None` where
    /// a row has several.
    fn lengths(&self) -> Option<Vec<usize>> {
        None
    }

    /// What [`Self::loss`] tallies besides `loss`: what travels between ranks and is logged.
    fn metrics(&self) -> Metrics;

    /// What this rank keeps beside the model; the model is as it is at the start, or as `resumed` has it.
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    fn state(&self, rank: &Rank<'_>, resumed: Option<&Resumed>) -> Result<Self::State, TrainError>;

    /// Sees to it that the rows of a step, the one after `done`, are there; figures that are the same on all ranks.
    ///
    /// # Errors
    /// Whatever keeps the rows from being made.
    fn before_step(
        &self,
        _rank: &Rank<'_>,
        _state: &mut Self::State,
        _step: &Step,
        _done: u64,
    ) -> Result<MetricSums, TrainError> {
        Ok(MetricSums::new())
    }

    /// This rank's micro-batch number `micro` of a step.
    fn batch(&self, rank: &Rank<'_>, state: &Self::State, step: &Step, micro: usize) -> Self::Batch;

    /// Tokens of a micro-batch as TRL counts them.
    fn num_tokens(&self, batch: &Self::Batch) -> usize;

    /// What the loss divides by, of this rank's micro-batches: always the same number of values.
    fn counts(&self, batches: &[Self::Batch]) -> Vec<f64>;

    /// Passes without gradients over this rank's micro-batches.
    ///
    /// # Errors
    /// If a tensor does not fit, or a rank fails.
    fn step_inputs(
        &self,
        rank: &Rank<'_>,
        state: &Self::State,
        batches: &[Self::Batch],
        counts: &Counts,
    ) -> Result<Self::StepInputs, TrainError>;

    /// The loss of micro-batch number `micro`.
    ///
    /// # Errors
    /// If a tensor does not fit.
    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        batch: (usize, &Self::Batch),
        counts: &Counts,
        inputs: &Self::StepInputs,
    ) -> Result<LossPart, TrainError>;

    /// What the sum of the parts' values is divided by to be this rank's part of the loss.
    fn divisor(&self, _inputs: &Self::StepInputs) -> f64 {
        1.0
    }

    /// Whether training passes drop out.
    fn drops_out(&self) -> bool {
        true
    }

    /// After an update, `done` steps in all; of the step what was known ahead and what all ranks tallied. Figures of the
    /// step that are the same on all ranks.
    ///
    /// # Errors
    /// If a rank fails.
    fn after_step(
        &self,
        _rank: &Rank<'_>,
        _state: &mut Self::State,
        _done: u64,
        _of: (&Self::StepInputs, &MetricSums),
    ) -> Result<MetricSums, TrainError> {
        Ok(MetricSums::new())
    }

    /// Parameters beside the model that a checkpoint has to hold.
    fn saved_params<'b>(&self, _state: &'b Self::State) -> Option<&'b ShardedParams> {
        None
    }

    /// Whatever else it has to hold: a file's name and content, the same on all ranks.
    fn saved_file(&self, _state: &Self::State) -> Option<(&'static str, Vec<u8>)> {
        None
    }

    /// The loss and its companions over the evaluation rows, if there are any; the same on all ranks.
    ///
    /// # Errors
    /// If a tensor does not fit, or a rank fails.
    fn evaluate(&self, _rank: &Rank<'_>, _state: &Self::State) -> Result<Option<Evaluation>, TrainError> {
        Ok(None)
    }
}

/// What a loss divides by.
#[derive(Clone, Debug)]
pub struct Counts {
    /// This rank's.
    pub own: Vec<f64>,
    /// Those of all ranks.
    pub all: Vec<f64>,
    /// Ranks that take different rows.
    pub ranks: usize,
}

/// A micro-batch's part of a loss.
pub struct LossPart {
    /// `[1]`, on the tape.
    pub loss: AnyTensor,
    /// Its figures: asked for once backward of all micro-batches has been given to the device.
    pub figures: Box<dyn FnOnce() -> LossFigures>,
}

impl LossPart {
    /// A part of which all is known.
    #[must_use]
    pub fn known(loss: AnyTensor, value: f64, tally: MetricSums) -> Self {
        Self { loss, figures: Box::new(move || LossFigures { value, tally }) }
    }
}

/// What a micro-batch's part of a loss comes to.
pub struct LossFigures {
    /// What it adds to the loss, before [`Task::divisor`].
    pub value: f64,
    /// Metrics, by the names of [`Task::metrics`].
    pub tally: MetricSums,
}
