//! Evaluation: the loss and its companions over a data set, on plain tensors.

use std::ops::Range;
use std::time::Instant;

use burnish_comm::Group;
use burnish_core::work::{Unit, Work};
use burnish_data::{Collator, Example};
use burnish_losses::{MetricSums, Metrics};
use burnish_models::{Decoder, Mode};

use crate::forward::token_loss::{SupervisedLoss, supervised, token_metrics};
use crate::metrics::metric_window::Sums;
use crate::{MicroBatch, TrainError};

/// What an evaluation found.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// `loss`, `entropy`, `mean_token_accuracy`, each over all target tokens.
    pub tally: MetricSums,
    /// Rows seen.
    pub rows: usize,
    /// Batches seen.
    pub batches: usize,
    /// Target tokens seen.
    pub tokens: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// Evaluates `model` on `examples`, in order.
///
/// # Errors
/// If a tensor does not fit.
pub fn evaluate(
    model: &Decoder,
    examples: &[Example],
    collator: &Collator,
    batch_rows: usize,
    loss: impl Into<SupervisedLoss>,
) -> Result<Evaluation, TrainError> {
    evaluate_on(&Group::alone(), model, examples, collator, batch_rows, loss)
}

/// As [`evaluate`], with the batches dealt to the ranks of `group`. All ranks run as many batches (reading parameters
/// may gather them) and get the same result.
///
/// # Errors
/// If a tensor does not fit, or a rank fails.
pub fn evaluate_on(
    group: &Group,
    model: &Decoder,
    examples: &[Example],
    collator: &Collator,
    batch_rows: usize,
    loss: impl Into<SupervisedLoss>,
) -> Result<Evaluation, TrainError> {
    let (start, loss) = (Instant::now(), loss.into());
    let rows = batch_rows.max(1);
    let (mut tally, mut tokens) = (MetricSums::new(), 0);
    for own in dealt(examples.len(), rows, group) {
        let batch = if own.is_empty() {
            MicroBatch::empty()
        } else {
            let chunk: Vec<&Example> = examples[own.clone()].iter().collect();
            MicroBatch::new(collator.batch(&chunk, own.start))
        };
        let pass = model.pass(Mode::Score);
        let out = supervised(model, &batch, &pass, loss, batch.targets.len() as f64)?;
        tally.merge(&out.facts.tally());
        tokens += batch.targets.len();
    }
    let batches = examples.len().div_ceil(rows);
    Evaluation::over(group, &token_metrics(), tally, (examples.len(), batches, tokens), start)
}

/// The batches of `size` out of `rows` rows that this rank of `group` runs: as many on every rank, empty ones where none
/// is left.
pub(crate) fn dealt(rows: usize, size: usize, group: &Group) -> impl Iterator<Item = Range<usize>> {
    let (rank, ranks) = (group.rank(), group.size());
    let work = Work::begin("evaluating", Unit::Rows, rows.div_ceil(ranks) as u64);
    let mut before = 0;
    (0..rows.div_ceil(size).div_ceil(ranks)).map(move |turn| {
        // The batch before is done when the next is asked for.
        work.advance(before);
        let first = (turn * ranks + rank) * size;
        let own = first.min(rows)..(first + size).min(rows);
        before = own.len() as u64;
        own
    })
}

impl Evaluation {
    /// What all ranks found together; of rows, batches and this rank's target tokens.
    pub(crate) fn over(
        group: &Group,
        metrics: &Metrics,
        tally: MetricSums,
        (rows, batches, tokens): (usize, usize, usize),
        start: Instant,
    ) -> Result<Self, TrainError> {
        let own = Sums { loss: tokens as f64, stop: false, written: false, tally };
        let mut all = own.over(group, metrics)?;
        all.tally.settle();
        let seconds = start.elapsed().as_secs_f64();
        Ok(Self { tally: all.tally, rows, batches, tokens: all.loss as usize, seconds })
    }
}
