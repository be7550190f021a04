//! The loop: micro-batches, the step, metrics, evaluation, checkpoints.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use burnish_config::values::{Interval, SaveInterval, Steps};
use burnish_data::{Sampler, Step};
use burnish_losses::{MetricSums, Metrics};
use burnish_models::{DropoutStep, EmbeddingNoise, Mode};
use burnish_ops::{AnyTensor, on_host};
use burnish_optim::{LearningRates, LossScaler, Optimizer, Schedule, Unscale};
use burnish_peft::PeftError;
use burnish_report::{PeakMemory, Record, Sample};
use burnish_zero::MatrixAllToAll;

use crate::TrainError;
use crate::metrics::metric_window::{Sums, Window};
use crate::plan::moved;
use crate::rank::Rank;
use crate::rank::qk_clip::Clipped;
use crate::rank::rank_allocation::RankAllocation;
use crate::rank::resumed::Resumed;
use crate::run::beginning::Beginning;
use crate::run::reporter::Reporter;
use crate::run::restore::{Counters, Restored};
use crate::run::saving::Save;
use crate::run::stop::Stop;
use crate::run::task::{Counts, Task};
use crate::run::{OnCheckpoint, OnStep};

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Optimizer steps done, those before a resume included.
    pub steps: u64,
    /// Where to go on, when it was asked to stop.
    pub interrupted: Option<PathBuf>,
    /// The log.
    pub records: Vec<Record>,
    /// The time it took.
    pub time: Duration,
    /// A prompt and what the tuned model makes of it.
    pub sample: Option<Sample>,
}

/// TRL's name of the loss that balances experts.
const BALANCE: &str = "aux_loss";

/// The metrics of a task, with that of routers where there is one.
fn balanced(metrics: Metrics, balances: bool) -> Metrics {
    let mut metrics = metrics;
    metrics.sums.extend(balances.then_some(BALANCE));
    metrics
}

/// A run in progress, on one rank. Counters, window and decisions are the same on all ranks.
pub(crate) struct Training<'a, T: Task> {
    pub(crate) rank: &'a Rank<'a>,
    pub(crate) task: &'a T,
    pub(crate) state: T::State,
    pub(crate) sampler: Sampler,
    pub(crate) total: u64,
    pub(crate) optimizer: Optimizer,
    /// Where Muon's matrices are whole.
    exchange: MatrixAllToAll,
    /// The highest rates; the schedule multiplies them.
    peaks: LearningRates,
    pub(crate) schedule: Schedule,
    pub(crate) scaler: Option<LossScaler>,
    pub(crate) counters: Counters,
    pub(crate) window: Window,
    metrics: Metrics,
    pub(crate) records: Vec<Record>,
    /// What this run's checkpoints say wrote them.
    pub(crate) run_name: String,
    pub(crate) save: Save,
    /// What QK-Clip did in the last step.
    clipped: Option<Clipped>,
    /// How AdaLoRA's ranks fall.
    pub(crate) allocation: Option<RankAllocation>,
    /// Only the lead speaks.
    reporter: Option<Reporter>,
    memory: PeakMemory,
    /// What hears of every step.
    pub(crate) on_step: Option<&'a OnStep>,
    /// What hears of every checkpoint.
    pub(crate) on_checkpoint: Option<&'a OnCheckpoint>,
}

/// What a step did.
struct Stepped {
    loss: f64,
    grad_norm: f64,
    rates: LearningRates,
    tokens: u64,
    metrics: MetricSums,
    /// Whether any rank was asked to stop.
    stop: bool,
}

impl<'a, T: Task> Training<'a, T> {
    pub(crate) fn new(
        rank: &'a Rank<'a>,
        task: &'a T,
        resumed: Option<&Resumed>,
        beginning: Beginning,
    ) -> Result<Self, TrainError> {
        let setup = rank.setup;
        let options = &setup.options.training;
        let sampler = task.sampler(setup, rank.data.size())?;
        let total = sampler.total_steps(options.num_train_epochs, options.max_steps) as u64;
        let (mut optimizer, exchange) = rank.optimizer()?;
        let owns = |index| exchange.owns(index);
        let mut schedule = options.schedule(total)?;
        let Restored { counters, window, records, scaler, mut notes } = match resumed {
            Some(resumed) => resumed.restore(rank, &sampler, &mut optimizer, &mut schedule, &owns)?,
            None => Restored {
                counters: Counters::default(),
                window: Window::new(),
                records: vec![],
                scaler: options.fp16.then(LossScaler::dynamic),
                notes: vec![],
            },
        };
        notes.splice(0..0, beginning.notes);
        let mut reporter =
            if rank.leads() { Some(Reporter::new(setup, total, counters.step)?) } else { None };
        if optimizer.muon_options().is_some() {
            notes.push(optimizer.assignment().to_string());
        }
        notes.extend(setup.folder.notes());
        if rank.leads() {
            // Plans the model once more: for whoever says it.
            notes.extend(setup.note_of_experts()?);
            let whole = setup.options.ranks.enable_expert_parallel;
            let none = setup.folder.note_without_experts().filter(|_| whole);
            notes.extend(none.map(str::to_owned));
        }
        notes.extend(setup.folder.training_notes());
        notes.extend(setup.prepared.tokenizer.notes());
        if let Some(reporter) = &mut reporter {
            notes.iter().for_each(|note| reporter.note(note));
        }
        let allocation = RankAllocation::of(rank, total, resumed)?;
        if allocation.is_some() && optimizer.averages() {
            let condition =
                "ADALORA with an optimizer that averages what trains, zeros among it: take another optim";
            return Err(PeftError::Conflict { key: "peft_type", condition }.into());
        }
        let state = task.state(rank, resumed)?;
        Ok(Self {
            rank,
            task,
            state,
            sampler,
            total,
            optimizer,
            exchange,
            peaks: setup.options.muon.peaks(options),
            schedule,
            scaler: scaler.filter(|_| options.fp16),
            counters,
            window,
            metrics: balanced(task.metrics(), setup.balance().is_some()),
            records,
            run_name: beginning.run_name,
            save: Save::idle(),
            clipped: None,
            allocation,
            reporter,
            memory: PeakMemory::new(),
            on_step: None,
            on_checkpoint: None,
        })
    }

    /// Steps until the end, or a stop; then the checkpoint to go on from.
    pub(crate) fn go(&mut self, stop: &Stop) -> Result<Option<PathBuf>, TrainError> {
        let options = &self.rank.setup.options.training;
        let logging = &self.rank.setup.options.logging;
        let mut steps = self.sampler.steps(self.counters.cursor)?.with_lengths(|| self.task.lengths())?;
        if options.eval_on_start && self.counters.step == 0 {
            self.evaluate()?;
        }
        // What a device holds is not the heap's.
        let in_heap = on_host(&self.rank.device);
        if in_heap {
            burnish_device::keep_large_freed_memory();
        }
        while self.counters.step < self.total {
            let Some(step) = steps.next() else { break };
            let began = Instant::now();
            let done = self.step(&step, stop)?;
            if in_heap {
                burnish_device::give_back_freed_memory(began.elapsed());
            }
            self.counters.step += 1;
            self.counters.num_tokens += done.tokens;
            self.counters.cursor = steps.cursor();
            self.counters.epoch = step.epochs;
            let number = self.counters.step;
            let last = self.ends(&done)? || number == self.total;

            let (rate, memory) = (self.window.rate(), self.memory.read());
            if let Some(reporter) = &mut self.reporter {
                reporter.step(number, done.loss, rate, memory);
            }
            let first = number == 1 && logging.logging_first_step;
            if first || self.due(logging.logging_strategy, logging.logging_steps, &step) {
                self.log(done.grad_norm, done.rates)?;
            }
            let every = options.eval_steps.unwrap_or(logging.logging_steps);
            let by_epoch = options.eval_strategy == Interval::Epoch;
            let passed = if by_epoch { step.epochs } else { number as f64 };
            let due = self.due(options.eval_strategy, every, &step)
                || last && options.eval_strategy == Interval::Steps;
            let evaluated = if due && options.eval_delay <= passed { self.evaluate()? } else { None };
            let improved =
                evaluated.is_some_and(|value| self.counters.improves(value, options.greater_wins()));
            let save = match options.save_strategy {
                SaveInterval::No => false,
                SaveInterval::Steps => self.due(Interval::Steps, options.save_steps, &step) || last,
                SaveInterval::Epoch => step.ends_epoch || last,
                SaveInterval::Best => improved,
            };
            // A run that is asked to stop leaves what it takes to go on, whatever its checkpoints hold.
            let stopping = done.stop && !last;
            if save || stopping {
                self.save(evaluated, stopping || !options.save_only_model)?;
            }
            if stopping {
                return self.last_checkpoint();
            }
            if last {
                break;
            }
        }
        self.finish_saving()?;
        if !self.window.is_empty() && self.total > 0 {
            // A run shorter than logging_steps still says how it ended.
            let rates = self.rates(self.counters.step.saturating_sub(1));
            self.log(self.counters.grad_norm, rates)?;
        }
        Ok(None)
    }

    /// One optimizer step.
    fn step(&mut self, step: &Step, stop: &Stop) -> Result<Stepped, TrainError> {
        let (rank, task) = (self.rank, self.task);
        let (setup, store) = (rank.setup, &rank.store);
        let options = &setup.options.training;
        let micro_steps = step.micro_steps();
        // Evaluations and checkpoints are not the step's.
        rank.world.clear_traffic();
        let figures = task.before_step(rank, &mut self.state, step, self.counters.step)?;
        let state = &self.state;
        let batches: Vec<T::Batch> =
            (0..micro_steps).map(|micro| task.batch(rank, state, step, micro)).collect();
        let own = task.counts(&batches);
        let own_tokens: f64 = batches.iter().map(|b| task.num_tokens(b) as f64).sum();
        let counts = f64::from(u8::from(rank.counts()));
        let travels: Vec<f64> = own.iter().chain([&own_tokens]).map(|n| counts * n).collect();
        let mut all = rank.world.sum_f64(&travels, "tokens of the step")?;
        let tokens = all.pop().unwrap_or(0.0) as u64;
        let totals = Counts { own, all, ranks: rank.data.size() };
        let inputs = task.step_inputs(rank, state, &batches, &totals)?;
        let dropout = DropoutStep { seed: options.seed, step: self.counters.step };
        let mode = Mode::Train {
            recompute: options.gradient_checkpointing,
            dropout: task.drops_out().then_some(dropout),
        };
        let (seed, done) = (options.seed, self.counters.step);
        let noise = options.neftune_noise_alpha.map(|alpha| EmbeddingNoise { alpha, seed, step: done });
        let scale = self.scaler.as_ref().map_or(1.0, LossScaler::scale);
        // Heard when all passes are on their way.
        let (mut tally, mut pending, mut balanced) = (MetricSums::new(), Vec::new(), Vec::new());
        let (mut own_loss, mut own_beside) = (0.0, 0.0);
        // As in TRL the mean over micro-batches and ranks.
        let parts = (micro_steps * rank.data.size()) as f64;
        let balance = setup.balance().map(|coefficient| coefficient / parts);
        for (micro, batch) in batches.iter().enumerate() {
            store.begin_micro_batch(micro + 1 == micro_steps);
            let routers =
                balance.and_then(|c| rank.model.decoder.router_balance((c * f64::from(scale)) as f32));
            // What trains once more has been counted before, and weighs as much.
            let has_rows = task.num_tokens(batch) > 0
                || task.counts(std::slice::from_ref(batch)).iter().any(|n| *n > 0.0);
            let share = match tokens {
                0 => f64::from(u8::from(has_rows)) / parts,
                _ => task.num_tokens(batch) as f64 / tokens as f64,
            };
            let apart = rank.orthogonality(share * f64::from(scale));
            let pass = rank.pass(mode).with_embedding_noise(noise).with_router_balance(routers.clone());
            let pass = pass.with_orthogonality(apart.as_ref().map(|(apart, _)| apart.clone()));
            let pass = pass.with_attention_kept(options.keep_attention);
            let part = task.loss(rank, &pass, (micro, batch), &totals, &inputs)?;
            pending.push(part.figures);
            balanced.extend(balance.zip(routers.filter(|_| has_rows)));
            if let Some((apart, weight)) = apart {
                own_beside += share * weight * apart.loss();
            }
            pass.backward(&scaled(&part.loss, scale)?)?;
            store.end_micro_batch()?;
            rank.axes.all.check()?;
        }
        for (coefficient, routers) in balanced {
            let loss = routers.loss();
            own_beside += coefficient * loss;
            tally.add(BALANCE, loss, 1.0);
        }
        for figures in pending {
            let figures = figures();
            tally.merge(&figures.tally);
            own_loss += figures.value;
        }
        let own_loss = own_loss / task.divisor(&inputs) + own_beside;
        let (own_loss, tally) = if counts > 0.0 { (own_loss, tally) } else { (0.0, MetricSums::new()) };
        let sums = Sums { loss: own_loss, stop: stop.asked(), written: self.save.is_written(), tally };
        let mut all = sums.over(&rank.world, &self.metrics)?;
        all.tally.settle();
        all.tally.merge(&figures);
        let loss = all.loss;
        let number = self.counters.step + 1;
        if !loss.is_finite() {
            let checkpoint = self.last_checkpoint()?;
            return Err(TrainError::LossNotFinite { step: number, loss, checkpoint });
        }
        let rates = self.rates(self.counters.step);
        let (reduced, partly) = rank.summed(store.gradients()?)?;
        let grad_norm = match reduced.unscale(scale, |squares| rank.sum_squares(squares, &partly))? {
            Unscale::Finite(gradients) => {
                let clipped = gradients.clip(options.max_grad_norm);
                let done = self.counters.step;
                let found = self.allocation.as_ref().map(|own| own.gradients(&clipped, done));
                let applied = self.optimizer.step(clipped, &**store, &mut self.exchange, rates)?;
                if let (Some(own), Some(found)) = (&mut self.allocation, found) {
                    own.after_step(rank, found, done)?;
                }
                self.clipped = rank.clip_logits(&mut self.optimizer)?;
                store.all_gather_params()?;
                let figures = task.after_step(rank, &mut self.state, number, (&inputs, &all.tally))?;
                all.tally.merge(&figures);
                if let Some(scaler) = &mut self.scaler {
                    scaler.update(false);
                }
                applied.grad_norm
            }
            Unscale::Skipped { norm } => match &mut self.scaler {
                // Every rank has the same norm, so all skip, and nothing changes but the scale.
                Some(scaler) => {
                    rank.forget_peaks();
                    if !scaler.update(true) {
                        return Err(TrainError::LossScale { step: number });
                    }
                    norm
                }
                None => {
                    let checkpoint = self.last_checkpoint()?;
                    return Err(TrainError::GradientNotFinite { step: number, norm, loss, checkpoint });
                }
            },
        };
        self.counters.grad_norm = grad_norm;
        self.window.add(loss, tokens, &all.tally, moved(&rank.world.traffic()));
        if all.written {
            self.finish_saving()?;
        }
        Ok(Stepped { loss, grad_norm, rates, tokens, metrics: all.tally, stop: all.stop })
    }

    /// Tells what hears of every step; whether it ends the run, which all ranks hear from the first.
    fn ends(&self, done: &Stepped) -> Result<bool, TrainError> {
        let Some(on_step) = self.on_step else { return Ok(false) };
        let mut ends = 0.0;
        if self.rank.leads() {
            let mut record = Record::new(self.counters.step, self.counters.epoch);
            record.set("loss", done.loss);
            record.set("grad_norm", done.grad_norm);
            record.set("learning_rate", done.rates.muon);
            record.set("num_tokens", self.counters.num_tokens);
            for (name, mean) in done.metrics.means().filter(|(name, _)| *name != "loss") {
                record.set(name, mean);
            }
            let mut on_step = on_step.lock().unwrap_or_else(PoisonError::into_inner);
            ends = f64::from(u8::from(on_step(&record).is_break()));
        }
        Ok(self.rank.world.sum_f64(&[ends], "end of the run")?[0] > 0.0)
    }

    /// The learning rates of a step, counted from 0.
    fn rates(&self, step: u64) -> LearningRates {
        self.peaks * self.schedule.factor(step)
    }

    /// The last checkpoint, the one that is being written included. Every rank calls it at the same place.
    fn last_checkpoint(&mut self) -> Result<Option<PathBuf>, TrainError> {
        self.finish_saving()?;
        Ok(self.counters.last_checkpoint.clone())
    }

    fn due(&self, interval: Interval, every: Steps, step: &Step) -> bool {
        match interval {
            Interval::No => false,
            Interval::Steps => {
                let every = every.of(self.total).max(1);
                self.counters.step.is_multiple_of(every)
            }
            Interval::Epoch => step.ends_epoch,
        }
    }

    fn log(&mut self, grad_norm: f64, rates: LearningRates) -> Result<(), TrainError> {
        let moved = self.window.moved();
        let mut record = self.window.close(Record::new(self.counters.step, self.counters.epoch));
        record.set("grad_norm", grad_norm);
        // Muon's, and AdamW's beside it, in a run that has both.
        record.set("learning_rate", rates.muon);
        if self.optimizer.muon_options().is_some() {
            record.set("adam_learning_rate", rates.adam);
        }
        record.set("num_tokens", self.counters.num_tokens);
        if let Some(Clipped { largest, heads }) = self.clipped {
            record.set("max_attention_logit", f64::from(largest));
            record.set("qk_clipped_heads", heads as u64);
        }
        if self.rank.world.size() > 1 {
            record.set("comm_elements", moved);
        }
        self.say(record)
    }

    fn say(&mut self, mut record: Record) -> Result<(), TrainError> {
        if let Some(bytes) = self.memory.read() {
            record.set("peak_memory_bytes", bytes);
        }
        if let Some(held) = burnish_device::memory(&self.rank.device) {
            record.set("device_memory_in_use_bytes", held.in_use);
            record.set("device_memory_bytes", held.reserved);
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.say(&record)?;
        }
        self.records.push(record);
        Ok(())
    }

    /// Evaluates and logs; the metric that decides which checkpoint is best.
    fn evaluate(&mut self) -> Result<Option<f64>, TrainError> {
        let rank = self.rank;
        let options = &rank.setup.options.training;
        self.put_averages()?;
        let found = self.task.evaluate(rank, &self.state)?;
        self.put_back()?;
        let Some(found) = found else { return Ok(None) };
        rank.store.check()?;
        let mut record = Record::new(self.counters.step, self.counters.epoch);
        for (name, mean) in found.tally.means() {
            record.set(&format!("eval_{name}"), mean);
        }
        record.set("eval_num_tokens", self.counters.num_tokens);
        record.set("eval_runtime", found.seconds);
        record.set("eval_samples_per_second", found.rows as f64 / found.seconds.max(1e-9));
        record.set("eval_steps_per_second", found.batches as f64 / found.seconds.max(1e-9));
        let name = options.best_metric();
        let value = record.get(&name);
        let wanted = options.load_best_model_at_end
            || options.save_strategy == SaveInterval::Best
            || options.lr_scheduler_type.is_adaptive();
        if wanted && value.is_none() {
            let available: Vec<&str> = record.figures().map(|(n, _)| n).collect();
            return Err(TrainError::UnknownMetric { name, available: available.join(", ") });
        }
        self.say(record)?;
        // As in Transformers, what is found before the first step moves no schedule.
        if let Some(value) = value.filter(|_| self.counters.step > 0) {
            self.schedule.observe(value);
        }
        Ok(value)
    }

    /// Has an optimizer that averages put averages in the place of what trains.
    pub(crate) fn put_averages(&mut self) -> Result<(), TrainError> {
        if self.optimizer.averages() {
            self.optimizer.put_averages(&*self.rank.store);
            self.rank.store.all_gather_params()?;
        }
        Ok(())
    }

    /// Puts back what trains.
    pub(crate) fn put_back(&mut self) -> Result<(), TrainError> {
        if self.optimizer.averages() {
            self.optimizer.put_back(&*self.rank.store);
            self.rank.store.all_gather_params()?;
        }
        Ok(())
    }

    /// Ends what is said; the log.
    pub(crate) fn end(mut self) -> Vec<Record> {
        if let Some(reporter) = &mut self.reporter {
            reporter.finish();
        }
        self.records
    }

    pub(crate) fn note(&mut self, text: &str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.note(text);
        }
    }
}

/// `loss * scale`.
fn scaled(loss: &AnyTensor, scale: f32) -> Result<AnyTensor, TrainError> {
    Ok(if scale == 1.0 { loss.clone() } else { AnyTensor::new(loss.rank::<1>()? * scale) })
}
