//! Kahneman-Tversky optimisation as a task of the loop: completions that are desirable or not.

use std::time::Instant;

use burnish_config::groups::{PrecomputeOptions, ReferenceOptions};
use burnish_data::{CompletionCollator, Prepared, Step, UnpairedExample, partner};
use burnish_losses::{Completion, Kto as Loss, Labelled, MetricSums, Metrics};
use burnish_models::{ForwardContext, TokenRow};
use burnish_ops::AnyTensor;
use burnish_zero::ShardedParams;

use crate::evaluation::{Evaluation, dealt};
use crate::forward::log_probs::{log_probs, micro_batch, of_policy};
use crate::pair_batch::text_of_answer;
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::reference::ref_log_probs_cache::{Scored, key_of_reference};
use crate::reference::reference_state::{RefLogProbs, ReferenceState, scored};
use crate::reference::{LazyReference, Reference};
use crate::run::task::{Counts, LossPart, Task};
use crate::setup::start_from_rows::{FirstStep, StartRows};
use crate::{MicroBatch, TrainError};

/// A run of Kahneman-Tversky optimisation, everything but the weights read and checked.
///
/// The reference is as [`Dpo`](crate::Dpo)'s; the first step's rewards and KL term are 0.
pub struct Kto {
    pub(crate) loss: Loss,
    pub(crate) train: Prepared<UnpairedExample>,
    pub(crate) eval: Option<Prepared<UnpairedExample>>,
    /// Rows among which completions change places for the KL term, in evaluation too.
    pub(crate) chunk: usize,
    pub(crate) collator: CompletionCollator,
    pub(crate) reference: ReferenceOptions,
    pub(crate) precompute: PrecomputeOptions,
    pub(crate) drops_out: bool,
}

/// A rank's answers of a micro-batch.
pub struct AnswerBatch {
    batch: MicroBatch,
    completions: Vec<Completion>,
    desirable: Vec<bool>,
    /// The same prompts with other prompts' completions, where the loss has a KL term.
    mismatched: Option<(MicroBatch, Vec<Completion>)>,
    /// The rows of the data set.
    rows: Vec<usize>,
}

/// The reference's sums, by micro-batch and answer, and the KL term of the step.
pub struct Against {
    reference: Vec<RefLogProbs>,
    kl: f64,
}

fn sums(log_probs: &[f32], completions: &[Completion]) -> Vec<f64> {
    let sum = |c: &Completion| log_probs[c.targets.clone()].iter().map(|&lp| f64::from(lp)).sum();
    completions.iter().map(sum).collect()
}

impl Kto {
    fn answers(&self, data: &Prepared<UnpairedExample>, rows: Vec<usize>, first: usize) -> AnswerBatch {
        let all = &data.examples;
        let examples: Vec<&UnpairedExample> = rows.iter().map(|&row| &all[row]).collect();
        let partners: Option<Vec<&UnpairedExample>> = self
            .loss
            .needs_kl()
            .then(|| rows.iter().map(|&row| &all[partner(row, self.chunk, all.len())]).collect());
        let made = self.collator.unpaired(&examples, partners.as_deref(), first);
        let (batch, completions) = micro_batch(made.completions);
        let mismatched = made.mismatched.map(micro_batch);
        AnswerBatch { batch, completions, desirable: made.desirable, mismatched, rows }
    }

    /// What the reference says of a batch.
    fn said(
        &self,
        rank: &Rank<'_>,
        reference: &Reference,
        batch: &AnswerBatch,
    ) -> Result<RefLogProbs, TrainError> {
        let own = sums(&reference.log_probs(rank, &batch.batch, 1.0)?, &batch.completions);
        let others = match &batch.mismatched {
            Some((documents, spans)) => sums(&reference.log_probs(rank, documents, 1.0)?, spans),
            None => vec![0.0; own.len()],
        };
        Ok(own.into_iter().zip(others).map(|(own, other)| [own, other]).collect())
    }

    /// What the reference says of a batch, of its answers and of its prompts with others' completions: of the training
    /// rows, or of those to evaluate on.
    fn reference_log_probs(
        &self,
        rank: &Rank<'_>,
        state: &ReferenceState,
        batch: &AnswerBatch,
        trains: bool,
    ) -> Result<RefLogProbs, TrainError> {
        state.said(&batch.rows, trains, |reference| self.said(rank, reference, batch))
    }

    /// The KL term over all batches of all data-parallel ranks: the mean of `policy - reference` over completions under
    /// prompts that are not theirs, at least 0.
    fn kl(
        &self,
        rank: &Rank<'_>,
        batches: &[AnswerBatch],
        reference: &[RefLogProbs],
    ) -> Result<f64, TrainError> {
        if !self.loss.needs_kl() {
            return Ok(0.0);
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for (batch, said) in batches.iter().zip(reference) {
            let Some((documents, spans)) = &batch.mismatched else { continue };
            let policy = sums(&of_policy(rank, documents, 1.0)?.log_prob, spans);
            sum += policy.iter().zip(said).map(|(policy, said)| policy - said[1]).sum::<f64>();
            count += spans.len() as f64;
        }
        let all = rank.data.sum_f64(&[sum, count], "KL term")?;
        Ok((all[0] / all[1].max(1.0)).max(0.0))
    }

    fn labelled(batch: &AnswerBatch, reference: &RefLogProbs) -> Vec<Labelled> {
        let answers = batch.completions.iter().zip(&batch.desirable).zip(reference);
        answers
            .map(|((completion, &desirable), said)| Labelled {
                completion: completion.clone(),
                desirable,
                reference: said[0],
            })
            .collect()
    }

    fn scored(
        &self,
        rank: &Rank<'_>,
        reference: &LazyReference<'_>,
        data: &Prepared<UnpairedExample>,
    ) -> Result<Scored, TrainError> {
        let mut key = key_of_reference(rank, "sums of answers")?;
        let chunk_of = if self.loss.needs_kl() { self.chunk } else { 0 };
        key.add(format!("{:?} {chunk_of}", self.collator));
        for UnpairedExample { prompt, completion, .. } in &data.examples {
            key.add_ids(prompt);
            key.add_ids(completion);
        }
        scored(rank, reference, &self.precompute, key, data.examples.len(), |reference, rows| {
            self.said(rank, reference, &self.answers(data, rows.to_vec(), 0))
        })
    }
}

impl Task for Kto {
    type Batch = AnswerBatch;
    type State = ReferenceState;
    type StepInputs = Against;

    fn tokens(&self) -> usize {
        self.train.statistics.tokens
    }

    fn metrics(&self) -> Metrics {
        self.loss.metrics()
    }

    fn state(&self, rank: &Rank<'_>, resumed: Option<&Resumed>) -> Result<ReferenceState, TrainError> {
        ReferenceState::start(rank, resumed, &self.precompute, |reference, trains| {
            let data = if trains { Some(&self.train) } else { self.eval.as_ref() };
            data.map(|data| self.scored(rank, reference, data)).transpose()
        })
    }

    fn batch(&self, rank: &Rank<'_>, _state: &ReferenceState, step: &Step, micro: usize) -> AnswerBatch {
        let slice = step.slice(rank.data.rank(), micro);
        self.answers(&self.train, step.rows[slice.clone()].to_vec(), slice.start)
    }

    fn num_tokens(&self, batch: &AnswerBatch) -> usize {
        batch.batch.num_tokens
    }

    fn counts(&self, batches: &[AnswerBatch]) -> Vec<f64> {
        vec![batches.iter().map(|b| b.completions.len() as f64).sum()]
    }

    fn step_inputs(
        &self,
        rank: &Rank<'_>,
        state: &ReferenceState,
        batches: &[AnswerBatch],
        _counts: &Counts,
    ) -> Result<Against, TrainError> {
        let referred = |batch| self.reference_log_probs(rank, state, batch, true);
        let reference = batches.iter().map(referred).collect::<Result<Vec<_>, _>>()?;
        let kl = self.kl(rank, batches, &reference)?;
        state.release(rank);
        Ok(Against { reference, kl })
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (micro, batch): (usize, &AnswerBatch),
        counts: &Counts,
        inputs: &Against,
    ) -> Result<LossPart, TrainError> {
        let (scores, stats) = log_probs(&rank.model.decoder, &batch.batch, pass, 1.0)?;
        let answers = Self::labelled(batch, &inputs.reference[micro]);
        let terms = self.loss.terms(&stats, &answers, inputs.kl, counts.all[0])?;
        Ok(LossPart::known(terms.on_tape(&scores)?, terms.value, terms.tally))
    }

    fn drops_out(&self) -> bool {
        self.drops_out
    }

    fn after_step(
        &self,
        rank: &Rank<'_>,
        state: &mut ReferenceState,
        done: u64,
        _of: (&Against, &MetricSums),
    ) -> Result<MetricSums, TrainError> {
        state.moved(rank, &self.reference, done)?;
        Ok(MetricSums::new())
    }

    fn saved_params<'b>(&self, state: &'b ReferenceState) -> Option<&'b ShardedParams> {
        state.store(&self.reference)
    }

    /// All rows are one step here: one KL term.
    fn evaluate(&self, rank: &Rank<'_>, state: &ReferenceState) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = &self.eval else { return Ok(None) };
        let start = Instant::now();
        let size = rank.setup.options.training.per_device_eval_batch_size.max(1);
        let (all, group) = (data.examples.len(), &rank.data);
        let (mut batches, mut stats, mut reference) = (Vec::new(), Vec::new(), Vec::new());
        for own in dealt(all, size, group) {
            let first = own.start;
            let batch = self.answers(data, own.collect(), first);
            reference.push(self.reference_log_probs(rank, state, &batch, false)?);
            stats.push(of_policy(rank, &batch.batch, 1.0)?);
            batches.push(batch);
        }
        let kl = self.kl(rank, &batches, &reference)?;
        state.release(rank);
        let mut tally = MetricSums::new();
        for ((batch, stats), said) in batches.iter().zip(&stats).zip(&reference) {
            let terms = self.loss.terms(stats, &Self::labelled(batch, said), kl, all as f64)?;
            tally.merge(&terms.tally);
            tally.add("loss", terms.value * all as f64, batch.completions.len() as f64);
        }
        let tokens: usize = stats.iter().map(|s| s.log_prob.len()).sum();
        Evaluation::over(group, &self.metrics(), tally, (all, all.div_ceil(size), tokens), start).map(Some)
    }
}

impl StartRows for Kto {
    fn rows(&self) -> usize {
        self.train.examples.len()
    }

    fn texts(&self, row: usize) -> Vec<TokenRow> {
        let UnpairedExample { prompt, completion, .. } = &self.train.examples[row];
        vec![text_of_answer(&self.collator, prompt, completion)]
    }

    /// Its KL term is of differences that are none yet.
    fn first_loss(&self, step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError> {
        let batch = self.answers(&self.train, step.rows.collect(), 0);
        let (scores, stats) = log_probs(step.decoder, &batch.batch, step.pass, 1.0)?;
        let own = sums(&stats.log_prob, &batch.completions);
        let answers = Self::labelled(&batch, &own.into_iter().map(|sum| [sum, 0.0]).collect());
        let terms = self.loss.terms(&stats, &answers, 0.0, answers.len() as f64)?;
        Ok(Some(terms.on_tape(&scores)?))
    }
}
