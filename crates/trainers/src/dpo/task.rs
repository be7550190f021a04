//! Preference optimisation as a task of the loop: pairs of a chosen and a rejected completion.

use std::time::Instant;

use burnish_comm::{Bucket, Group};
use burnish_config::groups::{PrecomputeOptions, ReferenceOptions};
use burnish_data::{CompletionCollator, PreferenceExample, Prepared, Step};
use burnish_losses::{
    Completion, Dpo as Loss, FirstPass, Match, MetricSums, Metrics, Pair, PairCounts, PairSums,
};
use burnish_models::{ForwardContext, TokenRow};
use burnish_ops::AnyTensor;
use burnish_zero::ShardedParams;

use crate::TrainError;
use crate::evaluation::{Evaluation, dealt};
use crate::forward::log_probs::{log_probs, of_policy};
use crate::pair_batch::{PairBatch, texts_of_pair};
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::reference::LazyReference;
use crate::reference::ref_log_probs_cache::{Scored, key_of_reference};
use crate::reference::reference_state::{RefLogProbs, ReferenceState, scored};
use crate::run::task::{Counts, LossPart, Task};
use crate::setup::start_from_rows::{FirstStep, StartRows};

/// A run of direct preference optimisation, everything but the weights read and checked.
///
/// The reference is the model as it is at the start: the base under a fresh adapter, a copy of what trains otherwise.
/// The first step's loss is ln 2 and all its rewards are 0, on any number of ranks.
pub struct Dpo {
    pub(crate) loss: Loss,
    pub(crate) train: Prepared<PreferenceExample>,
    pub(crate) eval: Option<Prepared<PreferenceExample>>,
    pub(crate) collator: CompletionCollator,
    pub(crate) reference: ReferenceOptions,
    pub(crate) precompute: PrecomputeOptions,
    pub(crate) drops_out: bool,
    /// What the reference's sums depend on besides the model.
    pub(crate) summed_by: String,
}

/// What pairs are compared with, by micro-batch and pair.
pub struct Against {
    reference: Vec<RefLogProbs>,
    matches: Vec<Vec<Match>>,
}

impl Dpo {
    /// A batch of the pairs `rows` of a data set, of which the first is number `first` of its step.
    fn pairs(&self, data: &Prepared<PreferenceExample>, rows: Vec<usize>, first: usize) -> PairBatch {
        PairBatch::new(&self.collator, data, rows, first)
    }

    /// The summed log-probabilities of each pair's completions.
    fn sums(&self, log_probs: &[f32], pairs: &[[Completion; 2]]) -> Vec<[f64; 2]> {
        let of = |completion: &Completion| &log_probs[completion.targets.clone()];
        pairs.iter().map(|[chosen, rejected]| self.loss.sums(of(chosen), of(rejected))).collect()
    }

    /// What the reference says of a batch: of the training rows, or of those to evaluate on.
    fn reference_log_probs(
        &self,
        rank: &Rank<'_>,
        state: &ReferenceState,
        batch: &PairBatch,
        trains: bool,
    ) -> Result<RefLogProbs, TrainError> {
        state.said(&batch.rows, trains, |reference| {
            Ok(self.sums(&reference.log_probs(rank, &batch.batch, 1.0)?, &batch.pairs))
        })
    }

    /// What each pair is compared with, of all pairs of all data-parallel ranks, where the loss sorts.
    fn matches(
        &self,
        group: &Group,
        batches: &[PairBatch],
        policy: &[Vec<[f64; 2]>],
        reference: &[Vec<[f64; 2]>],
    ) -> Result<Vec<Vec<Match>>, TrainError> {
        // The place in the step, then the sums; as bits, which is what travels whole.
        let mut own: Vec<u64> = Vec::new();
        for (batch, (policy, reference)) in batches.iter().zip(policy.iter().zip(reference)) {
            for (at, (p, r)) in policy.iter().zip(reference).enumerate() {
                own.push((batch.first + at) as u64);
                own.extend([p[0], p[1], r[0], r[1]].map(f64::to_bits));
            }
        }
        let all = group.all_gather_any(Bucket::new(own), "sums to sort")?;
        let mut all: Vec<(u64, PairSums)> = all
            .iter()
            .flat_map(|part| part.chunks_exact(5))
            .map(|pair| {
                let [chosen, rejected, reference_chosen, reference_rejected] =
                    [1, 2, 3, 4].map(|i| f64::from_bits(pair[i]));
                (pair[0], PairSums { chosen, rejected, reference_chosen, reference_rejected })
            })
            .collect();
        all.sort_by_key(|(place, _)| *place);
        let sums: Vec<PairSums> = all.iter().map(|(_, sums)| *sums).collect();
        let matches = self.loss.matches(&sums);
        let of = |place: usize| {
            let at = all.partition_point(|(other, _)| *other < place as u64);
            matches[at]
        };
        Ok(batches.iter().map(|b| (0..b.pairs.len()).map(|at| of(b.first + at)).collect()).collect())
    }

    /// The pairs of a batch as the loss takes them.
    fn compared(batch: &PairBatch, reference: &[[f64; 2]], matches: Option<&Vec<Match>>) -> Vec<Pair> {
        let pairs = batch.pairs.iter().zip(reference).enumerate();
        let pair = |(at, ([chosen, rejected], reference)): (usize, (&[Completion; 2], &[f64; 2]))| Pair {
            chosen: chosen.clone(),
            rejected: rejected.clone(),
            reference: *reference,
            matched: matches.map(|matches| matches[at]),
        };
        pairs.map(pair).collect()
    }

    /// What the reference says of all rows, from disk where it has been said before.
    fn scored(
        &self,
        rank: &Rank<'_>,
        reference: &LazyReference<'_>,
        data: &Prepared<PreferenceExample>,
    ) -> Result<Scored, TrainError> {
        let mut key = key_of_reference(rank, "sums of pairs")?;
        key.add(&self.summed_by);
        for PreferenceExample { prompt, chosen, rejected, .. } in &data.examples {
            [prompt, chosen, rejected].into_iter().for_each(|ids| key.add_ids(ids));
        }
        scored(rank, reference, &self.precompute, key, data.examples.len(), |reference, rows| {
            let batch = self.pairs(data, rows.to_vec(), 0);
            Ok(self.sums(&reference.log_probs(rank, &batch.batch, 1.0)?, &batch.pairs))
        })
    }
}

impl Task for Dpo {
    type Batch = PairBatch;
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

    fn batch(&self, rank: &Rank<'_>, _state: &ReferenceState, step: &Step, micro: usize) -> PairBatch {
        let slice = step.slice(rank.data.rank(), micro);
        self.pairs(&self.train, step.rows[slice.clone()].to_vec(), slice.start)
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
        rank: &Rank<'_>,
        state: &ReferenceState,
        batches: &[PairBatch],
        _counts: &Counts,
    ) -> Result<Against, TrainError> {
        let referred = |batch| self.reference_log_probs(rank, state, batch, true);
        let reference = batches.iter().map(referred).collect::<Result<Vec<_>, _>>()?;
        let mut matches = Vec::new();
        if self.loss.needs() == FirstPass::Scores {
            let policy = |batch: &PairBatch| {
                Ok(self.sums(&of_policy(rank, &batch.batch, 1.0)?.log_prob, &batch.pairs))
            };
            let policy = batches.iter().map(policy).collect::<Result<Vec<_>, TrainError>>()?;
            matches = self.matches(&rank.data, batches, &policy, &reference)?;
        }
        state.release(rank);
        Ok(Against { reference, matches })
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (micro, batch): (usize, &PairBatch),
        counts: &Counts,
        inputs: &Against,
    ) -> Result<LossPart, TrainError> {
        let (scores, stats) = log_probs(&rank.model.decoder, &batch.batch, pass, 1.0)?;
        let pairs = Self::compared(batch, &inputs.reference[micro], inputs.matches.get(micro));
        let counts = PairCounts { pairs: counts.all[0], chosen_targets: counts.all[1] };
        let terms = self.loss.terms(&stats, &pairs, counts)?;
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

    /// All rows are one step here: what sorts, sorts them all.
    fn evaluate(&self, rank: &Rank<'_>, state: &ReferenceState) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = &self.eval else { return Ok(None) };
        let start = Instant::now();
        let size = rank.setup.options.training.per_device_eval_batch_size.max(1);
        let (all, group) = (data.examples.len(), &rank.data);
        let (mut batches, mut policy, mut reference) = (Vec::new(), Vec::new(), Vec::new());
        for own in dealt(all, size, group) {
            let first = own.start;
            let batch = self.pairs(data, own.collect(), first);
            reference.push(self.reference_log_probs(rank, state, &batch, false)?);
            policy.push(of_policy(rank, &batch.batch, 1.0)?);
            batches.push(batch);
        }
        state.release(rank);
        let counts = group.sum_f64(&self.counts(&batches), "pairs to evaluate on")?;
        let counts = PairCounts { pairs: counts[0], chosen_targets: counts[1] };
        let mut matches = Vec::new();
        if self.loss.needs() == FirstPass::Scores {
            let sums: Vec<_> =
                policy.iter().zip(&batches).map(|(p, b)| self.sums(&p.log_prob, &b.pairs)).collect();
            matches = self.matches(group, &batches, &sums, &reference)?;
        }
        let mut tally = MetricSums::new();
        for (at, batch) in batches.iter().enumerate() {
            let pairs = Self::compared(batch, &reference[at], matches.get(at));
            let terms = self.loss.terms(&policy[at], &pairs, counts)?;
            tally.merge(&terms.tally);
            tally.add("loss", terms.value * counts.pairs, pairs.len() as f64);
        }
        let tokens: usize = policy.iter().map(|p| p.log_prob.len()).sum();
        Evaluation::over(group, &self.metrics(), tally, (all, all.div_ceil(size), tokens), start).map(Some)
    }
}

impl StartRows for Dpo {
    fn rows(&self) -> usize {
        self.train.examples.len()
    }

    fn texts(&self, row: usize) -> Vec<TokenRow> {
        texts_of_pair(&self.collator, &self.train.examples[row])
    }

    fn first_loss(&self, step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError> {
        let batch = self.pairs(&self.train, step.rows.collect(), 0);
        let (scores, stats) = log_probs(step.decoder, &batch.batch, step.pass, 1.0)?;
        let reference = self.sums(&stats.log_prob, &batch.pairs);
        let matches = (self.loss.needs() == FirstPass::Scores).then(|| {
            let of_both = |&[chosen, rejected]: &[f64; 2]| PairSums {
                chosen,
                rejected,
                reference_chosen: chosen,
                reference_rejected: rejected,
            };
            self.loss.matches(&reference.iter().map(of_both).collect::<Vec<_>>())
        });
        let pairs = Self::compared(&batch, &reference, matches.as_ref());
        let counts = PairCounts { pairs: pairs.len() as f64, chosen_targets: batch.chosen_targets() };
        Ok(Some(self.loss.terms(&stats, &pairs, counts)?.on_tape(&scores)?))
    }
}
