//! The loop: micro-batches, the step, metrics, evaluation, checkpoints.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use burnish_config::{Interval, Optimizer, Sampling, SaveInterval, Scheduler, Steps};
use burnish_data::{Example, Order, Sampler, Step};
use burnish_losses::Tally;
use burnish_models::{DropoutStep, Mode, Parameters as _, Resident};
use burnish_ops::AnyTensor;
use burnish_optim::{AdamW, AdamWOptions, Gradients, Masters, Schedule, ScheduleKind, Unscale};
use burnish_report::{EventFile, MetricsLog, PeakMemory, Progress, Record};

use crate::checkpointing::{Counters, restore};
use crate::evaluate::evaluate;
use crate::token_task::supervised;
use crate::window::Window;
use crate::{MicroBatch, Sft, Stop, TrainError};

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
    pub sample: Option<(String, String)>,
}

/// A run in progress.
pub(crate) struct Training<'a> {
    pub(crate) sft: &'a Sft,
    pub(crate) sampler: Sampler,
    pub(crate) total: u64,
    pub(crate) optimizer: AdamW,
    pub(crate) schedule: Schedule,
    pub(crate) counters: Counters,
    pub(crate) window: Window,
    pub(crate) records: Vec<Record>,
    metrics: MetricsLog,
    events: Option<EventFile>,
    progress: Progress,
    memory: PeakMemory,
}

struct InPlace<'a>(&'a Resident);

impl Masters for InPlace<'_> {
    fn take(&self, index: usize) -> AnyTensor {
        self.0.take(index)
    }

    fn put(&self, index: usize, value: AnyTensor) {
        self.0.write(index, value);
    }
}

impl Sft {
    /// Runs to the end, or until `stop` is asked.
    ///
    /// # Errors
    /// If the loss is not a number (the last checkpoint stays), or a file cannot be written.
    pub fn run(self, stop: &Stop) -> Result<Outcome, TrainError> {
        let start = Instant::now();
        let mut training = Training::new(&self)?;
        let interrupted = training.go(stop)?;
        let steps = training.counters.step;
        if interrupted.is_none() {
            training.load_best()?;
        }
        let Training { records, mut progress, .. } = training;
        progress.finish();
        let mut outcome = Outcome { steps, interrupted, records, time: start.elapsed(), sample: None };
        if outcome.interrupted.is_none() {
            self.leave(&mut outcome)?;
        }
        Ok(outcome)
    }
}

impl<'a> Training<'a> {
    fn new(sft: &'a Sft) -> Result<Self, TrainError> {
        let options = &sft.options.training;
        let order = match options.train_sampling_strategy {
            Sampling::Random => Order::Random,
            Sampling::Sequential => Order::Sequential,
        };
        let sampler = Sampler::new(sft.train.examples.len(), order, options.row_seed())
            .per_device(options.per_device_train_batch_size)
            .accumulation(options.gradient_accumulation_steps)
            .drop_last(options.dataloader_drop_last);
        sampler.check()?;
        let total = sampler.total_steps(options.num_train_epochs, options.max_steps) as u64;
        let kind = match options.lr_scheduler_type {
            Scheduler::Linear => ScheduleKind::Linear,
            Scheduler::Cosine => ScheduleKind::Cosine,
            Scheduler::Constant => ScheduleKind::Constant,
            Scheduler::ConstantWithWarmup => ScheduleKind::ConstantWithWarmup,
        };
        let mut optimizer = AdamW::new(
            sft.model.parameters.registry(),
            AdamWOptions {
                beta1: options.adam_beta1,
                beta2: options.adam_beta2,
                eps: options.adam_epsilon,
                weight_decay: options.weight_decay,
                decoupled: options.optim != Optimizer::Adam,
            },
        );
        let restored = restore(sft, &sampler, &mut optimizer)?;
        let (counters, window, records) =
            restored.unwrap_or_else(|| (Counters::default(), Window::new(), vec![]));
        let dir = sft.output_dir();
        let metrics = if counters.step > 0 {
            MetricsLog::resume(&dir.join("metrics.jsonl"), counters.step)?
        } else {
            MetricsLog::create(&dir.join("metrics.jsonl"))?
        };
        let logging = &sft.options.logging;
        let events = if logging.report_to.tensorboard {
            let folder = logging.logging_dir.clone().unwrap_or_else(|| dir.join("runs"));
            Some(EventFile::create(&folder, counters.step)?)
        } else {
            None
        };
        let progress = Progress::new(total, counters.step, logging.disable_tqdm);
        Ok(Self {
            sft,
            sampler,
            total,
            optimizer,
            schedule: Schedule::new(kind, options.learning_rate, options.warmup_of(total), total),
            counters,
            window,
            records,
            metrics,
            events,
            progress,
            memory: PeakMemory::new(),
        })
    }

    /// Steps until the end, or a stop; then the checkpoint to go on from.
    fn go(&mut self, stop: &Stop) -> Result<Option<PathBuf>, TrainError> {
        let options = &self.sft.options.training;
        let mut steps = self.sampler.steps(self.counters.cursor)?;
        while self.counters.step < self.total {
            let Some(step) = steps.next() else { break };
            let (loss, grad_norm, lr, tokens) = self.step(&step)?;
            self.counters.step += 1;
            self.counters.num_tokens += tokens;
            self.counters.cursor = steps.cursor();
            self.counters.epoch = step.epochs;
            let number = self.counters.step;
            let last = number == self.total;

            self.progress.step(number, loss, self.window.rate(), self.memory.read());
            let first = number == 1 && self.sft.options.logging.logging_first_step;
            if first
                || self.due(
                    self.sft.options.logging.logging_strategy,
                    self.sft.options.logging.logging_steps,
                    &step,
                )
            {
                self.log(grad_norm, lr)?;
            }
            let every = options.eval_steps.unwrap_or(self.sft.options.logging.logging_steps);
            let evaluated = if self.due(options.eval_strategy, every, &step)
                || last && options.eval_strategy == Interval::Steps
            {
                self.evaluate()?
            } else {
                None
            };
            let improved =
                evaluated.is_some_and(|value| self.counters.improves(value, options.greater_wins()));
            let save = match options.save_strategy {
                SaveInterval::No => false,
                SaveInterval::Steps => self.due(Interval::Steps, options.save_steps, &step) || last,
                SaveInterval::Epoch => step.ends_epoch || last,
                SaveInterval::Best => improved,
            };
            // A run that is asked to stop leaves what it takes to go on, whatever its checkpoints hold.
            let stopping = stop.asked() && !last;
            if save || stopping {
                let path = self.save(evaluated, stopping || !options.save_only_model)?;
                if stopping {
                    return Ok(Some(path));
                }
            }
        }
        if !self.window.is_empty() && self.total > 0 {
            // A run shorter than logging_steps still says how it ended.
            let lr = self.schedule.rate(self.counters.step.saturating_sub(1));
            self.log(self.counters.grad_norm, lr)?;
        }
        Ok(None)
    }

    /// One optimizer step; the loss, the gradient norm, the rate and the tokens.
    fn step(&mut self, step: &Step) -> Result<(f64, f64, f64, u64), TrainError> {
        let sft = self.sft;
        let options = &sft.options.training;
        let collator = sft.collator(sft.options.packing.packing);
        let batches: Vec<MicroBatch> = (0..step.micro_steps())
            .map(|micro| {
                let slice = step.slice(0, micro);
                let rows: Vec<&Example> =
                    step.rows[slice.clone()].iter().map(|&i| &sft.train.examples[i]).collect();
                MicroBatch::new(collator.batch(&rows, slice.start))
            })
            .collect();
        let denominator: f64 = batches.iter().map(|b| b.targets.len() as f64).sum();
        let tokens: u64 = batches.iter().map(|b| b.num_tokens as u64).sum();
        let mode = Mode::Train {
            recompute: options.gradient_checkpointing,
            dropout: Some(DropoutStep { seed: options.seed, step: self.counters.step }),
        };
        let mut tally = Tally::new();
        for batch in &batches {
            let pass = sft.model.decoder.pass(mode);
            let out = supervised(&sft.model.decoder, batch, &pass, sft.loss(), denominator)?;
            tally.merge(&out.tally);
            let finite = out.tally.sums("loss").is_none_or(|(loss, _)| loss.is_finite());
            if finite {
                pass.backward(&out.loss)?;
            }
        }
        let loss = tally.sums("loss").map_or(0.0, |(sum, _)| sum / denominator.max(1.0));
        let (number, checkpoint) = (self.counters.step + 1, self.counters.last_checkpoint.clone());
        if !loss.is_finite() {
            return Err(TrainError::LossNotFinite { step: number, loss, checkpoint });
        }
        let parameters = &sft.parameters;
        let registry = parameters.registry();
        let trained = registry.iter().enumerate().filter(|(_, p)| p.trainable && p.alias_of.is_none());
        let found = trained.filter_map(|(i, _)| Some((i, parameters.take_gradient(i)?))).collect();
        let clipped = match Gradients::summed(found).unscale(1.0, Ok::<_, TrainError>)? {
            Unscale::Finite(gradients) => gradients.clip(Some(options.max_grad_norm)),
            Unscale::Skipped { norm } => {
                return Err(TrainError::GradientNotFinite { step: number, norm, loss, checkpoint });
            }
        };
        let lr = self.schedule.rate(self.counters.step);
        let applied = self.optimizer.step(clipped, &InPlace(parameters), lr);
        self.counters.grad_norm = applied.grad_norm;
        self.window.add(loss, tokens, &tally);
        Ok((loss, applied.grad_norm, lr, tokens))
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

    fn log(&mut self, grad_norm: f64, lr: f64) -> Result<(), TrainError> {
        let mut record = self.window.close(Record::new(self.counters.step, self.counters.epoch));
        record.set("grad_norm", grad_norm);
        record.set("learning_rate", lr);
        record.set("num_tokens", self.counters.num_tokens);
        self.say(record)
    }

    fn say(&mut self, mut record: Record) -> Result<(), TrainError> {
        if let Some(bytes) = self.memory.read() {
            record.set("peak_memory_bytes", bytes);
        }
        self.metrics.append(&record)?;
        if let Some(events) = &mut self.events {
            events.append(&record)?;
        }
        self.progress.log(&record);
        self.records.push(record);
        Ok(())
    }

    /// Evaluates and logs; the metric that decides which checkpoint is best.
    fn evaluate(&mut self) -> Result<Option<f64>, TrainError> {
        let sft = self.sft;
        let Some(data) = &sft.eval else { return Ok(None) };
        let options = &sft.options.training;
        let rows = options.per_device_eval_batch_size;
        let collator = sft.collator(sft.options.packing.packs_evaluation());
        let found = evaluate(&sft.model.decoder, &data.examples, &collator, rows, sft.loss())?;
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
        let wanted = options.load_best_model_at_end || options.save_strategy == SaveInterval::Best;
        if wanted && value.is_none() {
            let available: Vec<&str> = record.figures().map(|(n, _)| n).collect();
            return Err(TrainError::UnknownMetric { name, available: available.join(", ") });
        }
        self.say(record)?;
        Ok(value)
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.progress.note(text);
    }
}
