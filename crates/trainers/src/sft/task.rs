//! Supervised fine-tuning as a task of the loop.

use burnish_config::groups::PackingOptions;
use burnish_data::{Collator, Dataset, Example, Step, Strategy};
use burnish_losses::{LossOutput, Metrics};
use burnish_models::{ForwardContext, TokenRow};
use burnish_ops::AnyTensor;

use crate::evaluation::{Evaluation, evaluate_on};
use crate::forward::token_loss::{SupervisedLoss, supervised, token_metrics};
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::run::task::{Counts, LossFigures, LossPart, Task};
use crate::setup::start_from_rows::{FirstStep, StartRows};
use crate::{MicroBatch, TrainError};

/// Supervised fine-tuning: rows that are learned token by token.
pub struct Sft {
    pub(crate) train: Dataset,
    pub(crate) eval: Option<Dataset>,
    pub(crate) packing: PackingOptions,
    pub(crate) loss: SupervisedLoss,
}

impl Sft {
    /// The collator of rows that are packed, or not.
    fn collator(&self, packs: bool) -> Collator {
        let keeps = self.packing.strategy(packs).is_some_and(Strategy::keeps_documents);
        Collator { padding_free: self.packing.padding_free || keeps, ..Collator::default() }
    }

    /// A micro-batch of these rows, of which the first is number `first` of its step.
    fn micro_batch(&self, rows: impl Iterator<Item = usize>, first: usize) -> MicroBatch {
        let rows: Vec<&Example> = rows.map(|row| &self.train.examples[row]).collect();
        if rows.is_empty() {
            return MicroBatch::empty();
        }
        MicroBatch::new(self.collator(self.packing.packing).batch(&rows, first))
    }

    /// The one division of the step's loss: by the tokens of all ranks, or by this rank's and then by the ranks.
    fn denominator(rank: &Rank<'_>, counts: &Counts) -> f64 {
        if rank.setup.options.training.average_tokens_across_devices {
            counts.all[0]
        } else {
            counts.own[0] * counts.ranks as f64
        }
    }
}

impl Task for Sft {
    type Batch = MicroBatch;
    type State = ();
    type StepInputs = f64;

    fn tokens(&self) -> usize {
        self.train.statistics.tokens
    }

    fn lengths(&self) -> Option<Vec<usize>> {
        Some(self.train.examples.iter().map(|row| row.input_ids.len()).collect())
    }

    fn metrics(&self) -> Metrics {
        token_metrics()
    }

    fn state(&self, _rank: &Rank<'_>, _resumed: Option<&Resumed>) -> Result<(), TrainError> {
        Ok(())
    }

    fn batch(&self, rank: &Rank<'_>, _state: &(), step: &Step, micro: usize) -> MicroBatch {
        let slice = step.slice(rank.data.rank(), micro);
        self.micro_batch(step.rows[slice.clone()].iter().copied(), slice.start)
    }

    fn num_tokens(&self, batch: &MicroBatch) -> usize {
        batch.num_tokens
    }

    fn counts(&self, batches: &[MicroBatch]) -> Vec<f64> {
        vec![batches.iter().map(|b| b.targets.len() as f64).sum()]
    }

    fn step_inputs(
        &self,
        rank: &Rank<'_>,
        _state: &(),
        _batches: &[MicroBatch],
        counts: &Counts,
    ) -> Result<f64, TrainError> {
        Ok(Self::denominator(rank, counts))
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (_, batch): (usize, &MicroBatch),
        _counts: &Counts,
        &denominator: &f64,
    ) -> Result<LossPart, TrainError> {
        let LossOutput { loss, facts } =
            supervised(&rank.model.decoder, batch, pass, self.loss, denominator)?;
        let figures = move || {
            let tally = facts.tally();
            LossFigures { value: tally.sums("loss").map_or(0.0, |(sum, _)| sum), tally }
        };
        Ok(LossPart { loss, figures: Box::new(figures) })
    }

    fn divisor(&self, &denominator: &f64) -> f64 {
        denominator.max(1.0)
    }

    fn evaluate(&self, rank: &Rank<'_>, _state: &()) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = &self.eval else { return Ok(None) };
        let rows = rank.setup.options.training.per_device_eval_batch_size;
        let collator = self.collator(self.packing.packs_evaluation());
        let decoder = &rank.model.decoder;
        Ok(Some(evaluate_on(&rank.data, decoder, &data.examples, &collator, rows, self.loss)?))
    }
}

impl StartRows for Sft {
    fn rows(&self) -> usize {
        self.train.examples.len()
    }

    fn texts(&self, row: usize) -> Vec<TokenRow> {
        let row = &self.train.examples[row];
        let whole = [row.input_ids.len()];
        let lengths = if row.seq_lengths.is_empty() { &whole[..] } else { &row.seq_lengths };
        let mut rest = row.input_ids.as_slice();
        let text = |&length: &usize| {
            let (text, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            text.to_vec()
        };
        vec![TokenRow { texts: lengths.iter().map(text).collect(), labels: Some(row.labels.clone()) }]
    }

    fn first_loss(&self, step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError> {
        let batch = self.micro_batch(step.rows, 0);
        if batch.targets.is_empty() {
            return Ok(None);
        }
        let tokens = batch.targets.len() as f64;
        Ok(Some(supervised(step.decoder, &batch, step.pass, self.loss, tokens)?.loss))
    }
}
