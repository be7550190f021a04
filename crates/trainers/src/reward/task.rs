//! Reward modelling as a task of the loop: pairs of texts, the first of which is to score higher.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use burnish_data::{CompletionCollator, Prepared, RewardBatch, RewardExample, Step};
use burnish_losses::{LossTerms, MetricSums, Metrics, Reward as Loss};
use burnish_models::{ForwardContext, Mode, TokenRow, Tokens};
use burnish_ops::AnyTensor;

use crate::TrainError;
use crate::evaluation::{Evaluation, dealt};
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::run::task::{Counts, LossPart, Task};
use crate::setup::start_from_rows::{FirstStep, StartRows};

/// A run that makes a reward model, everything but the weights read and checked.
///
/// A language model becomes one that scores texts; with an adapter the score trains whole beside it. What is left is a
/// folder as Transformers' `*ForSequenceClassification` writes it, or PEFT's adapter of task `SEQ_CLS`.
pub struct Reward {
    pub(crate) loss: Loss,
    pub(crate) train: Prepared<RewardExample>,
    pub(crate) eval: Option<Prepared<RewardExample>>,
    pub(crate) pad_id: Option<u32>,
    pub(crate) drops_out: bool,
}

/// A rank's pairs of a micro-batch: all chosen texts, then all rejected ones.
pub struct TextBatch {
    tokens: Tokens,
    pairs: usize,
    margins: Option<Vec<f32>>,
    num_tokens: usize,
}

impl TextBatch {
    fn new(made: RewardBatch) -> Self {
        let RewardBatch { batch, scored, margins } = made;
        if scored.is_empty() {
            let tokens = Tokens::from_sequences(&[[0]]);
            return Self { tokens, pairs: 0, margins: None, num_tokens: 0 };
        }
        // What follows the scored token has no part in the score.
        let kept: Vec<Range<usize>> =
            batch.documents.iter().zip(&scored).map(|(document, &at)| document.start..at + 1).collect();
        let mut documents = Vec::with_capacity(kept.len());
        let mut end = 0;
        for range in &kept {
            documents.push(end..end + range.len());
            end += range.len();
        }
        let pick = |at: Vec<Range<usize>>| at.into_iter().flatten();
        let tokens = Tokens {
            ids: Arc::new(pick(kept.clone()).map(|i| batch.input_ids[i]).collect()),
            positions: Arc::new(pick(kept.clone()).map(|i| batch.positions[i]).collect()),
            documents: documents.into(),
            parents: Arc::default(),
            rows: Arc::new(pick(kept).map(|i| batch.row_ids[i]).collect()),
        };
        let margins = margins.map(|margins| margins.iter().map(|&m| m as f32).collect());
        Self { tokens, pairs: scored.len() / 2, margins, num_tokens: batch.num_tokens }
    }
}

impl Reward {
    fn pairs(&self, data: &Prepared<RewardExample>, rows: &[usize], first: usize) -> TextBatch {
        let examples: Vec<&RewardExample> = rows.iter().map(|&row| &data.examples[row]).collect();
        TextBatch::new(CompletionCollator::default().rewards(&examples, self.pad_id, first))
    }

    fn terms(&self, scores: &[f32], batch: &TextBatch, pairs: f64) -> Result<LossTerms, TrainError> {
        if batch.pairs == 0 {
            // The one text that runs the passes has no part in the loss.
            return Ok(LossTerms { gradient: vec![0.0; scores.len()], ..LossTerms::default() });
        }
        let (chosen, rejected) = scores.split_at(batch.pairs);
        Ok(self.loss.terms(chosen, rejected, batch.margins.as_deref(), pairs)?)
    }
}

impl Task for Reward {
    type Batch = TextBatch;
    type State = ();
    type StepInputs = ();

    fn tokens(&self) -> usize {
        self.train.statistics.tokens
    }

    fn metrics(&self) -> Metrics {
        self.loss.metrics()
    }

    fn state(&self, _rank: &Rank<'_>, _resumed: Option<&Resumed>) -> Result<(), TrainError> {
        Ok(())
    }

    fn batch(&self, rank: &Rank<'_>, _state: &(), step: &Step, micro: usize) -> TextBatch {
        let slice = step.slice(rank.data.rank(), micro);
        self.pairs(&self.train, &step.rows[slice.clone()], slice.start)
    }

    fn num_tokens(&self, batch: &TextBatch) -> usize {
        batch.num_tokens
    }

    fn counts(&self, batches: &[TextBatch]) -> Vec<f64> {
        vec![batches.iter().map(|b| b.pairs as f64).sum()]
    }

    fn step_inputs(
        &self,
        _rank: &Rank<'_>,
        _state: &(),
        _batches: &[TextBatch],
        _counts: &Counts,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (_, batch): (usize, &TextBatch),
        counts: &Counts,
        _inputs: &(),
    ) -> Result<LossPart, TrainError> {
        let scores = rank.model.decoder.rewards(&batch.tokens, pass)?;
        let terms = self.terms(&scores.to_f32(), batch, counts.all[0])?;
        Ok(LossPart::known(terms.on_tape(&scores)?, terms.value, terms.tally))
    }

    fn drops_out(&self) -> bool {
        self.drops_out
    }

    fn evaluate(&self, rank: &Rank<'_>, _state: &()) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = &self.eval else { return Ok(None) };
        let start = Instant::now();
        let size = rank.setup.options.training.per_device_eval_batch_size.max(1);
        let (all, group, decoder) = (data.examples.len(), &rank.data, &rank.model.decoder);
        let (mut tally, mut tokens) = (MetricSums::new(), 0);
        for own in dealt(all, size, group) {
            let first = own.start;
            let batch = self.pairs(data, &own.collect::<Vec<usize>>(), first);
            let scores = decoder.rewards(&batch.tokens, &decoder.pass(Mode::Score))?;
            rank.axes.all.check()?;
            let terms = self.terms(&scores.to_f32(), &batch, all as f64)?;
            tally.merge(&terms.tally);
            tally.add("loss", terms.value * all as f64, batch.pairs as f64);
            tokens += batch.num_tokens;
        }
        rank.store.release();
        Evaluation::over(group, &self.metrics(), tally, (all, all.div_ceil(size), tokens), start).map(Some)
    }
}

impl StartRows for Reward {
    fn rows(&self) -> usize {
        self.train.examples.len()
    }

    fn texts(&self, row: usize) -> Vec<TokenRow> {
        let RewardExample { chosen, rejected, .. } = &self.train.examples[row];
        [chosen, rejected].map(|text| TokenRow::unlabelled(text.clone())).into()
    }

    fn first_loss(&self, step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError> {
        let batch = self.pairs(&self.train, &step.rows.collect::<Vec<_>>(), 0);
        let scores = step.decoder.rewards(&batch.tokens, step.pass)?;
        let terms = self.terms(&scores.to_f32(), &batch, batch.pairs as f64)?;
        Ok(Some(terms.on_tape(&scores)?))
    }
}
