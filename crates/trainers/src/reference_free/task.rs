//! Preference optimisation without a reference as a task of the loop.

use std::marker::PhantomData;
use std::time::Instant;

use burnish_data::Step;
use burnish_losses::{
    LossTerms, MetricSums, Metrics, PairCounts, ReferenceFree as Loss, TokenStats, UnreferencedPair,
};
use burnish_models::{ForwardContext, TokenRow};
use burnish_ops::AnyTensor;

use crate::TrainError;
use crate::evaluation::{Evaluation, dealt};
use crate::forward::log_probs::{log_probs, of_policy};
use crate::pair_batch::{PairBatch, PairRows, texts_of_pair};
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::run::task::{Counts, LossPart, Task};
use crate::setup::start_from_rows::{FirstStep, StartRows};

/// A run of preference optimisation that compares the policy with itself alone, everything but the weights read and
/// checked. `O` is the command's options.
pub struct ReferenceFree<O> {
    loss: Loss,
    pairs: PairRows,
    drops_out: bool,
    command: PhantomData<fn() -> O>,
}

impl<O> ReferenceFree<O> {
    pub(crate) fn new(loss: Loss, pairs: PairRows, drops_out: bool) -> Self {
        Self { loss, pairs, drops_out, command: PhantomData }
    }

    fn terms(&self, stats: &TokenStats, batch: &PairBatch, all: &[f64]) -> Result<LossTerms, TrainError> {
        let pair = |([chosen, rejected], prompt): (&[_; 2], &_)| UnreferencedPair {
            chosen: Clone::clone(chosen),
            rejected: Clone::clone(rejected),
            prompt: Clone::clone(prompt),
        };
        let pairs: Vec<_> = batch.pairs.iter().zip(&batch.prompts).map(pair).collect();
        let counts = PairCounts { pairs: all[0], chosen_targets: all[1] };
        Ok(self.loss.terms(stats, &pairs, counts)?)
    }
}

impl<O> Task for ReferenceFree<O> {
    type Batch = PairBatch;
    type State = ();
    type StepInputs = ();

    fn tokens(&self) -> usize {
        self.pairs.train.statistics.tokens
    }

    fn metrics(&self) -> Metrics {
        self.loss.metrics()
    }

    fn state(&self, _rank: &Rank<'_>, _resumed: Option<&Resumed>) -> Result<(), TrainError> {
        Ok(())
    }

    fn batch(&self, rank: &Rank<'_>, _state: &(), step: &Step, micro: usize) -> PairBatch {
        let slice = step.slice(rank.data.rank(), micro);
        let PairRows { train, collator, .. } = &self.pairs;
        PairBatch::new(collator, train, step.rows[slice.clone()].to_vec(), slice.start)
    }

    fn num_tokens(&self, batch: &PairBatch) -> usize {
        batch.batch.num_tokens
    }

    fn counts(&self, batches: &[PairBatch]) -> Vec<f64> {
        let pairs = batches.iter().map(|b| b.pairs.len() as f64).sum();
        vec![pairs, batches.iter().map(PairBatch::chosen_targets).sum()]
    }

    fn step_inputs(
        &self,
        _rank: &Rank<'_>,
        _state: &(),
        _batches: &[PairBatch],
        _counts: &Counts,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (_, batch): (usize, &PairBatch),
        counts: &Counts,
        _inputs: &(),
    ) -> Result<LossPart, TrainError> {
        let (scores, stats) = log_probs(&rank.model.decoder, &batch.batch, pass, 1.0)?;
        let terms = self.terms(&stats, batch, &counts.all)?;
        Ok(LossPart::known(terms.on_tape(&scores)?, terms.value, terms.tally))
    }

    fn drops_out(&self) -> bool {
        self.drops_out
    }

    fn evaluate(&self, rank: &Rank<'_>, _state: &()) -> Result<Option<Evaluation>, TrainError> {
        let PairRows { eval: Some(data), collator, .. } = &self.pairs else { return Ok(None) };
        let start = Instant::now();
        let size = rank.setup.options.training.per_device_eval_batch_size.max(1);
        let (all, group) = (data.examples.len(), &rank.data);
        let batches: Vec<PairBatch> = dealt(all, size, group)
            .map(|own| PairBatch::new(collator, data, own.clone().collect(), own.start))
            .collect();
        let counts = group.sum_f64(&self.counts(&batches), "pairs to evaluate on")?;
        let (mut tally, mut tokens) = (MetricSums::new(), 0);
        for batch in &batches {
            let stats = of_policy(rank, &batch.batch, 1.0)?;
            let terms = self.terms(&stats, batch, &counts)?;
            tally.merge(&terms.tally);
            tally.add("loss", terms.value * counts[0], batch.pairs.len() as f64);
            tokens += stats.log_prob.len();
        }
        rank.store.release();
        Evaluation::over(group, &self.metrics(), tally, (all, all.div_ceil(size), tokens), start).map(Some)
    }
}

impl<O> StartRows for ReferenceFree<O> {
    fn rows(&self) -> usize {
        self.pairs.train.examples.len()
    }

    fn texts(&self, row: usize) -> Vec<TokenRow> {
        texts_of_pair(&self.pairs.collator, &self.pairs.train.examples[row])
    }

    fn first_loss(&self, step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError> {
        let PairRows { train, collator, .. } = &self.pairs;
        let batch = [PairBatch::new(collator, train, step.rows.collect(), 0)];
        let (scores, stats) = log_probs(step.decoder, &batch[0].batch, step.pass, 1.0)?;
        let terms = self.terms(&stats, &batch[0], &self.counts(&batch))?;
        Ok(Some(terms.on_tape(&scores)?))
    }
}
