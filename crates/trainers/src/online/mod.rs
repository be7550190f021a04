//! Sampled completions as a task of the loop: prompts become groups of completions, rewards, advantages, and a loss.

mod batches;
mod completions_log;
mod engine;
pub mod heard;
mod objective;
mod order;
mod rollout;
mod sampled;
mod scoring;
mod server;
mod setup;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use burnish_comm::Bucket;
use burnish_config::groups::{ReferenceOptions, RolloutOptions};
use burnish_data::{Answered, CompletionCollator, Prepared, PromptExample, Sampler, Side, Step};
use burnish_losses::{EntropyControl, Extreme, FirstPass, HighEntropy, MetricSums, Metrics, PolicyStep};
use burnish_models::{ForwardContext, Generation, TokenRow};
use burnish_ops::{AnyTensor, TokenStats};
use burnish_zero::ShardedParams;

use self::batches::{Batches, FILE, GenerationBatch, Shape};
use self::completions_log::CompletionsLog;
pub use self::objective::Objective;
use self::order::{Rounds, Turn};
use self::rollout::Wanted;
pub use self::sampled::Sampled;
use self::scoring::Scoring;
use self::server::Server;
pub(crate) use self::setup::{Parts, plan};
use crate::evaluation::{Evaluation, dealt};
use crate::forward::log_probs::{log_probs, micro_batch, of_policy};
use crate::plan::step_passes::{RolloutPasses, StepPasses};
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::reference::Reference;
use crate::run::task::{Counts, LossPart, Task};
use crate::setup::Setup;
use crate::setup::start_from_rows::{FirstStep, StartRows};
use crate::{MicroBatch, TrainError};

/// How far, on average and in nats, the sampler's log-probabilities may be from those of the first pass: they are the
/// same model's, and differ in rounding.
const DRIFT: f64 = 0.1;
const MEAN_DRIFT: &str = "sampling/sampling_logp_difference/mean";
const MAX_DRIFT: &str = "sampling/sampling_logp_difference/max";

/// Prompts, and what becomes of their completions.
pub struct Online<O> {
    objective: O,
    train: Prepared<PromptExample>,
    eval: Option<Prepared<PromptExample>>,
    scoring: Scoring,
    rounds: Rounds,
    options: RolloutOptions,
    /// How tokens are chosen.
    settings: Generation,
    /// What samples, where it is not the model itself.
    server: Option<Server>,
    /// Tokens that a completion may end with: those that stop it, and padding.
    ends: Vec<u32>,
    reference: ReferenceOptions,
    drops_out: bool,
}

/// What a rank keeps beside the model.
pub struct State {
    reference: Option<Reference>,
    batches: Batches,
    control: Option<EntropyControl>,
    log: Option<CompletionsLog>,
    /// The adapter's name on the server.
    served: Option<String>,
}

/// A rank's completions of a micro-batch: places in one generation batch.
pub struct SampledBatch {
    batch: MicroBatch,
    /// Where the targets of each are.
    spans: Vec<Range<usize>>,
    of: Option<(Arc<GenerationBatch>, Vec<usize>)>,
    /// Whether the policy is still the one that sampled.
    fresh: bool,
    /// Tokens of prompts and completions that had not trained before.
    num_tokens: usize,
    /// The part of a generation batch that the step takes.
    part: f64,
}

/// What is known of a step.
pub struct StepKnowledge {
    high_entropy: Option<HighEntropy>,
    entropy_coef: Option<f64>,
}

impl SampledBatch {
    fn completions(&self) -> Vec<(Range<usize>, &Sampled)> {
        let Some((of, places)) = &self.of else { return Vec::new() };
        self.spans.iter().cloned().zip(places.iter().map(|&place| &of.sampled[place])).collect()
    }
}

impl<O: Objective> Online<O> {
    /// What a step makes and sums.
    pub(crate) fn step_passes(objective: &O, options: &RolloutOptions) -> StepPasses {
        let rollout = RolloutPasses::new(options, objective.needs_old());
        StepPasses {
            holds_reference: objective.needs_reference(),
            first: usize::from(objective.needs() == FirstPass::Scores),
            ..StepPasses::new(2, &Self::step_metrics(objective, rollout.here))
        }
        .with_rollout(rollout)
    }

    /// What a step tallies; with how far the sampler is from the policy where the model itself samples.
    fn step_metrics(objective: &O, here: bool) -> Metrics {
        let mut metrics = objective.metrics();
        if here {
            metrics.sums.push(MEAN_DRIFT);
            metrics.greatest.push(MAX_DRIFT);
        }
        metrics
    }

    /// Lays out the completions that train, those of a prompt behind it; of each where its targets are.
    fn lay_out(
        prompts: &[PromptExample],
        sampled: &[&Sampled],
        first: usize,
    ) -> (MicroBatch, Vec<Range<usize>>) {
        let trains = |(_, s): &(usize, &&Sampled)| s.targets() > 0;
        let documents = sampled.iter().enumerate().filter(trains).map(|(at, s)| Answered {
            prompt: &prompts[s.row].ids,
            completion: &s.ids,
            row: first + at,
            prompt_row: s.row,
            side: Side::First,
        });
        let (batch, completions) = micro_batch(CompletionCollator::default().completions(documents));
        let mut found = completions.into_iter().map(|completion| completion.targets);
        let spans = sampled.iter().map(|s| match s.targets() {
            0 => 0..0,
            _ => found.next().expect("invariant: what trains was laid out"),
        });
        let spans = spans.collect();
        (batch, spans)
    }

    fn shape(&self) -> Shape {
        Shape {
            generation_batch_size: self.rounds.batch(),
            num_generations: self.options.num_generations,
            num_iterations: self.options.num_iterations,
        }
    }

    fn temperature(&self) -> f32 {
        self.options.temperature as f32
    }

    /// How far the sampler is from a pass over what it has just sampled.
    fn drift(
        &self,
        rank: &Rank<'_>,
        batch: &SampledBatch,
        stats: &TokenStats,
        tally: &mut MetricSums,
    ) -> Result<(), TrainError> {
        if !batch.fresh || self.server.is_some() {
            return Ok(());
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for (span, sampled) in batch.completions() {
            for (&now, &then) in stats.log_prob[span].iter().zip(&sampled.sampling) {
                let difference = f64::from((now - then).abs());
                sum += difference;
                count += 1.0;
                tally.extreme(MAX_DRIFT, Extreme::Greatest(difference));
            }
        }
        tally.add(MEAN_DRIFT, sum, count);
        let adapter = rank.model.plan.as_ref();
        let same = !self.options.samples_elsewhere();
        let silent = !self.drops_out || adapter.is_none_or(|plan| !plan.drops_out());
        if same && silent && sum > DRIFT * count {
            return Err(TrainError::Drift { mean: sum / count, expected: DRIFT });
        }
        Ok(())
    }

    /// The entropies of a step's targets on all ranks, given this rank's.
    fn entropies(rank: &Rank<'_>, own: &[TokenStats]) -> Result<Vec<f32>, TrainError> {
        let own: Vec<f32> = own.iter().flat_map(|stats| stats.entropy.iter().copied()).collect();
        Ok(rank.data.all_gather_any(Bucket::new(own), "entropies")?.concat().into_vec())
    }
}

impl<O: Objective> Task for Online<O> {
    type Batch = SampledBatch;
    type State = State;
    type StepInputs = StepKnowledge;

    fn tokens(&self) -> usize {
        self.train.statistics.tokens
    }

    fn sampler(&self, setup: &Setup, ranks: usize) -> Result<Sampler, TrainError> {
        setup.sampler(self.rounds.sampler(setup.options.training.row_seed()), ranks)
    }

    fn metrics(&self) -> Metrics {
        Self::step_metrics(&self.objective, self.server.is_none())
    }

    fn state(&self, rank: &Rank<'_>, resumed: Option<&Resumed>) -> Result<State, TrainError> {
        let needs = self.objective.needs_reference();
        let reference = needs.then(|| Reference::start(rank, resumed)).transpose()?;
        let mut control = self.objective.entropy_control();
        let (batches, before) = match resumed {
            None => (Batches::default(), 0),
            Some(resumed) => {
                let bytes = resumed.file(FILE)?;
                let read = Batches::from_json(&bytes, control.as_mut());
                let (batches, then) = read.map_err(|source| resumed.unreadable(FILE, source))?;
                let now = self.shape();
                if then != now {
                    let what = "the division of rows into generation batches";
                    return Err(resumed.other_run(what, format!("{then:?}"), format!("{now:?}")));
                }
                (batches, resumed.step())
            }
        };
        let options = &self.options;
        let log = if rank.leads() && options.log_completions {
            let dir = rank.setup.output_dir();
            let (most, unique) = (options.num_completions_to_print, options.log_unique_prompts);
            Some(CompletionsLog::open(&dir, before, most, unique)?)
        } else {
            None
        };
        Ok(State { reference, batches, control, log, served: None })
    }

    /// Samples what the step's rows are completions of, where it has not been sampled yet.
    fn before_step(
        &self,
        rank: &Rank<'_>,
        state: &mut State,
        step: &Step,
        done: u64,
    ) -> Result<MetricSums, TrainError> {
        let mut tally = MetricSums::new();
        let turn = |row: Option<&usize>| row.map(|&row| self.rounds.turn(step.epoch, row));
        let (Some(first), Some(last)) = (turn(step.rows.first()), turn(step.rows.last())) else {
            return Ok(tally);
        };
        for number in first.generation..=last.generation {
            if !state.batches.has(number) {
                let (sampled, said) = self.sample(rank, state, number, done)?;
                tally.merge(&said);
                state.batches.add(GenerationBatch { number, step: done, sampled });
            }
        }
        let next = last.generation + u64::from(self.rounds.ends(last));
        state.batches.move_on(done, first.generation, next);
        Ok(tally)
    }

    fn batch(&self, rank: &Rank<'_>, state: &State, step: &Step, micro: usize) -> SampledBatch {
        let slice = step.slice(rank.data.rank(), micro);
        let turns: Vec<Turn> =
            step.rows[slice.clone()].iter().map(|&row| self.rounds.turn(step.epoch, row)).collect();
        let Some(first) = turns.first() else {
            let (batch, spans, of) = (MicroBatch::empty(), Vec::new(), None);
            return SampledBatch { batch, spans, of, fresh: false, num_tokens: 0, part: 1.0 };
        };
        let of = state.batches.of(first.generation).clone();
        let sampled: Vec<&Sampled> = turns.iter().map(|turn| &of.sampled[turn.place]).collect();
        let (batch, spans) = Self::lay_out(&self.train.examples, &sampled, slice.start);
        let new = |(turn, s): (&Turn, &&Sampled)| match turn.iteration {
            0 => self.train.examples[s.row].ids.len() + s.ids.len(),
            _ => 0,
        };
        let num_tokens = turns.iter().zip(&sampled).map(new).sum();
        SampledBatch {
            batch,
            spans,
            fresh: state.batches.is_fresh(&of),
            of: Some((of, turns.iter().map(|turn| turn.place).collect())),
            num_tokens,
            part: step.rows.len() as f64 / self.rounds.batch() as f64,
        }
    }

    fn num_tokens(&self, batch: &SampledBatch) -> usize {
        batch.num_tokens
    }

    fn counts(&self, batches: &[SampledBatch]) -> Vec<f64> {
        let targets = |batch: &SampledBatch| batch.spans.iter().map(|span| span.len() as f64).sum::<f64>();
        vec![batches.iter().map(|b| b.spans.len() as f64).sum(), batches.iter().map(targets).sum()]
    }

    fn step_inputs(
        &self,
        rank: &Rank<'_>,
        state: &State,
        batches: &[SampledBatch],
        _counts: &Counts,
    ) -> Result<StepKnowledge, TrainError> {
        let mut high_entropy = None;
        if self.objective.needs() == FirstPass::Scores {
            let stats = batches.iter().map(|batch| of_policy(rank, &batch.batch, self.temperature()));
            let stats = stats.collect::<Result<Vec<_>, _>>()?;
            rank.store.release();
            high_entropy = self.objective.high_entropy(&Self::entropies(rank, &stats)?);
        }
        let entropy_coef = state.control.as_ref().and_then(EntropyControl::applied);
        Ok(StepKnowledge { high_entropy, entropy_coef })
    }

    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (_, batch): (usize, &SampledBatch),
        counts: &Counts,
        inputs: &StepKnowledge,
    ) -> Result<LossPart, TrainError> {
        let (scores, stats) = log_probs(&rank.model.decoder, &batch.batch, pass, self.temperature())?;
        let step = PolicyStep {
            sequences: counts.all[0],
            tokens: counts.all[1],
            generation_tokens: batch.of.as_ref().map_or(0.0, |(of, _)| of.targets()),
            part: batch.part,
            high_entropy: inputs.high_entropy,
            entropy_coef: inputs.entropy_coef,
        };
        let mut terms = self.objective.terms(&stats, &batch.completions(), &step)?;
        self.drift(rank, batch, &stats, &mut terms.tally)?;
        Ok(LossPart::known(terms.on_tape(&scores)?, terms.value, terms.tally))
    }

    fn drops_out(&self) -> bool {
        self.drops_out
    }

    fn after_step(
        &self,
        rank: &Rank<'_>,
        state: &mut State,
        done: u64,
        (known, tally): (&StepKnowledge, &MetricSums),
    ) -> Result<MetricSums, TrainError> {
        let mut figures = MetricSums::new();
        if let Some(control) = &mut state.control {
            let entropy = known.high_entropy.map(|high| high.mean).or_else(|| tally.mean("entropy"));
            control.update(entropy.unwrap_or(0.0));
            figures.add("entropy_coef", control.coefficient, 1.0);
        }
        if let Some(reference) = &mut state.reference {
            reference.moved(rank, &self.reference, done)?;
        }
        Ok(figures)
    }

    fn saved_params<'b>(&self, state: &'b State) -> Option<&'b ShardedParams> {
        state.reference.as_ref()?.store(&self.reference)
    }

    fn saved_file(&self, state: &State) -> Option<(&'static str, Vec<u8>)> {
        Some((FILE, state.batches.to_json(self.shape(), state.control.as_ref())))
    }

    /// All prompts are one step here, with as many completions each as `num_generations_eval`, drawn alike every time.
    fn evaluate(&self, rank: &Rank<'_>, state: &State) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = &self.eval else { return Ok(None) };
        let start = Instant::now();
        let group = self.options.num_generations_eval.unwrap_or(self.options.num_generations);
        let wanted = Wanted {
            prompts: &data.examples,
            rows: (0..data.examples.len()).flat_map(|row| std::iter::repeat_n(row, group)).collect(),
            group,
            settings: self.settings_of_evaluation(),
            old: self.objective.needs_old(),
        };
        let (sampled, mut tally) = self.roll_out(rank, state.reference.as_ref(), &wanted)?;
        let tokens: f64 = sampled.iter().map(|s| s.targets() as f64).sum();
        let size = rank.setup.options.training.per_device_eval_batch_size.max(1);
        let (mut parts, mut stats) = (Vec::new(), Vec::new());
        for own in dealt(sampled.len(), size, &rank.data) {
            let own: Vec<&Sampled> = sampled[own].iter().collect();
            let (batch, spans) = Self::lay_out(&data.examples, &own, 0);
            stats.push(of_policy(rank, &batch, self.temperature())?);
            parts.push(spans.into_iter().zip(own).collect::<Vec<_>>());
        }
        rank.store.release();
        let high_entropy = match self.objective.needs() {
            FirstPass::Scores => self.objective.high_entropy(&Self::entropies(rank, &stats)?),
            FirstPass::None => None,
        };
        let all = sampled.len() as f64;
        let step = PolicyStep {
            sequences: all,
            tokens,
            generation_tokens: tokens,
            part: 1.0,
            high_entropy,
            entropy_coef: None,
        };
        let mut own = MetricSums::new();
        for (stats, completions) in stats.iter().zip(&parts) {
            let terms = self.objective.terms(stats, completions, &step)?;
            own.merge(&terms.tally);
            own.add("loss", terms.value * all, completions.len() as f64);
        }
        let metrics = self.objective.metrics();
        let seen = (data.examples.len(), sampled.len().div_ceil(size), tokens as usize);
        let mut found = Evaluation::over(&rank.data, &metrics, own, seen, start)?;
        tally.settle();
        found.tally.merge(&tally);
        Ok(Some(found))
    }
}

impl<O> StartRows for Online<O> {
    fn rows(&self) -> usize {
        self.train.examples.len()
    }

    fn texts(&self, row: usize) -> Vec<TokenRow> {
        vec![TokenRow::unlabelled(self.train.examples[row].ids.clone())]
    }

    /// None: there are no completions yet.
    fn first_loss(&self, _step: FirstStep<'_>) -> Result<Option<AnyTensor>, TrainError> {
        Ok(None)
    }
}
