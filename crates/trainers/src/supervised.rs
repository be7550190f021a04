//! Supervised fine-tuning as a task of the loop.

use burnish_config::PackingOptions;
use burnish_data::{Collator, Dataset, Example, Step, Strategy};
use burnish_losses::{Metrics, TokenLoss};
use burnish_models::Pass;

use crate::checkpointing::Resumed;
use crate::evaluate::{Evaluation, evaluate_on};
use crate::rank::Rank;
use crate::task::{Counts, Part, Task};
use crate::{MicroBatch, TrainError, packing, supervised};

/// Rows that are learned token by token.
pub(crate) struct Supervised {
    pub(crate) train: Dataset,
    pub(crate) eval: Option<Dataset>,
    pub(crate) packing: PackingOptions,
    pub(crate) loss: TokenLoss,
}

/// What supervised fine-tuning tallies besides its loss.
pub(crate) fn supervised_metrics() -> Metrics {
    Metrics { sums: vec!["entropy", "mean_token_accuracy"], ..Metrics::default() }
}

impl Supervised {
    /// The collator of rows that are packed, or not.
    fn collator(&self, rank: &Rank<'_>, packs: bool) -> Collator {
        let keeps = packing(&self.packing, packs).is_some_and(Strategy::keeps_documents);
        Collator {
            pad_id: rank.setup.prepared.tokenizer.pad_id().unwrap_or(0),
            padding_free: self.packing.padding_free || keeps,
            ..Collator::default()
        }
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

impl Task for Supervised {
    type Batch = MicroBatch;
    type Beside = ();
    type Ahead = f64;

    fn tokens(&self) -> usize {
        self.train.statistics.tokens
    }

    fn metrics(&self) -> Metrics {
        supervised_metrics()
    }

    fn beside(&self, _rank: &Rank<'_>, _resumed: Option<&Resumed>) -> Result<(), TrainError> {
        Ok(())
    }

    fn batch(&self, rank: &Rank<'_>, _beside: &(), step: &Step, micro: usize) -> MicroBatch {
        let slice = step.slice(rank.dp.rank(), micro);
        let rows: Vec<&Example> = step.rows[slice.clone()].iter().map(|&i| &self.train.examples[i]).collect();
        if rows.is_empty() {
            return MicroBatch::empty();
        }
        MicroBatch::new(self.collator(rank, self.packing.packing).batch(&rows, slice.start))
    }

    fn num_tokens(&self, batch: &MicroBatch) -> usize {
        batch.num_tokens
    }

    fn counts(&self, batches: &[MicroBatch]) -> Vec<f64> {
        vec![batches.iter().map(|b| b.targets.len() as f64).sum()]
    }

    fn ahead(
        &self,
        rank: &Rank<'_>,
        _beside: &(),
        _batches: &[MicroBatch],
        counts: &Counts,
    ) -> Result<f64, TrainError> {
        Ok(Self::denominator(rank, counts))
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &Pass,
        (_, batch): (usize, &MicroBatch),
        _counts: &Counts,
        &denominator: &f64,
    ) -> Result<Part, TrainError> {
        let out = supervised(&rank.model.decoder, batch, pass, self.loss, denominator)?;
        let value = out.tally.sums("loss").map_or(0.0, |(sum, _)| sum);
        Ok(Part { loss: out.loss, value, tally: out.tally })
    }

    fn divisor(&self, &denominator: &f64) -> f64 {
        denominator.max(1.0)
    }

    fn evaluate(&self, rank: &Rank<'_>, _beside: &()) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = &self.eval else { return Ok(None) };
        let rows = rank.setup.options.training.per_device_eval_batch_size;
        let collator = self.collator(rank, self.packing.packs_evaluation());
        let decoder = &rank.model.decoder;
        Ok(Some(evaluate_on(&rank.dp, decoder, &data.examples, &collator, rows, self.loss)?))
    }
}
