//! Learning-rate schedules, as Transformers' `get_scheduler` computes them.

mod adaptive;
mod course;
mod deepspeed;

use burnish_core::{OptionFaults, choices};

use crate::{Arguments, OptimError};
use adaptive::Adaptive;
pub use adaptive::ScheduleState;
use course::Course;

choices! {
    /// The shape of a schedule.
    pub enum ScheduleKind: "lr_scheduler_type", OptimError {
        /// Linear warm-up, then linear decay to 0.
        Linear = "linear",
        /// Linear warm-up, then half a cosine to 0.
        Cosine = "cosine",
        /// Linear warm-up, then several cosines, each from the top to 0.
        CosineWithRestarts = "cosine_with_restarts",
        /// Linear warm-up, then a power of what is left down to a last rate.
        Polynomial = "polynomial",
        /// Always the same.
        Constant = "constant",
        /// Linear warm-up, then always the same.
        ConstantWithWarmup = "constant_with_warmup",
        /// Linear warm-up, then one over the root of the step.
        InverseSqrt = "inverse_sqrt",
        /// The same until a metric stops improving, then a share of it.
        ReduceLrOnPlateau = "reduce_lr_on_plateau",
        /// Linear warm-up, then half a cosine to a lowest rate.
        CosineWithMinLr = "cosine_with_min_lr",
        /// Warm-up from a first rate, then half a cosine to a lowest rate, which the last step has.
        CosineWarmupWithMinLr = "cosine_warmup_with_min_lr",
        /// Warm-up, a stable phase, and a decay to a lowest rate.
        WarmupStableDecay = "warmup_stable_decay",
        /// Up while a metric improves, down while it does not.
        Greedy = "greedy",
        /// DeepSpeed's: a logarithmic or linear warm-up, then always the same.
        WarmupLr = "WarmupLR",
        /// DeepSpeed's: a logarithmic or linear warm-up, then linear decay to 0.
        WarmupDecayLr = "WarmupDecayLR",
        /// DeepSpeed's: a logarithmic or linear warm-up, then half a cosine to a lowest rate.
        WarmupCosineLr = "WarmupCosineLR",
        /// DeepSpeed's: up and down once, then a decay.
        OneCycle = "OneCycle",
        /// DeepSpeed's: ever higher, to see what a model bears.
        LrRangeTest = "LRRangeTest",
    }
}

impl ScheduleKind {
    /// Whether the rate follows a metric of evaluation.
    #[must_use]
    pub const fn is_adaptive(self) -> bool {
        matches!(self, Self::ReduceLrOnPlateau | Self::Greedy)
    }

    /// Whether it is given `lr_scheduler_kwargs` at all: Transformers leaves them out for these two, whatever they say.
    #[must_use]
    pub const fn reads_arguments(self) -> bool {
        !matches!(self, Self::Constant | Self::ConstantWithWarmup)
    }

    /// What is wrong with `lr_scheduler_kwargs` of a schedule that peaks at `peak`.
    #[must_use]
    pub fn faults(self, arguments: &Arguments, peak: f64) -> OptionFaults {
        if self.is_adaptive() {
            Adaptive::read(self, arguments, peak).1
        } else {
            Course::read(self, arguments, peak).1
        }
    }
}

/// A learning rate as a function of the optimizer step, and for [`ScheduleKind::is_adaptive`] of what was observed.
///
/// ```
/// use burnish_optim::Schedule;
/// let schedule = Schedule::new("linear".parse().unwrap(), 2e-5, 10, 100);
/// assert_eq!(schedule.rate(0), 0.0);
/// assert_eq!(schedule.rate(10), 2e-5);
/// assert_eq!(schedule.rate(100), 0.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    peak: f64,
    warmup_steps: u64,
    total_steps: u64,
    form: Form,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Course(Course),
    Adaptive(Box<Adaptive>),
}

impl Schedule {
    /// A schedule that peaks at `peak`, without arguments. What Transformers asks an argument for is 0: the lowest rate,
    /// the steps of decay.
    #[must_use]
    pub fn new(kind: ScheduleKind, peak: f64, warmup_steps: u64, total_steps: u64) -> Self {
        Self::read(kind, &Arguments::default(), peak, warmup_steps, total_steps).0
    }

    /// A schedule that peaks at `peak`, with `lr_scheduler_kwargs`.
    ///
    /// # Errors
    /// If an argument is missing, unknown or out of range.
    pub fn with(
        kind: ScheduleKind,
        arguments: &Arguments,
        peak: f64,
        warmup_steps: u64,
        total_steps: u64,
    ) -> Result<Self, OptimError> {
        let (schedule, faults) = Self::read(kind, arguments, peak, warmup_steps, total_steps);
        faults.first()?;
        Ok(schedule)
    }

    fn read(
        kind: ScheduleKind,
        arguments: &Arguments,
        peak: f64,
        warmup_steps: u64,
        total_steps: u64,
    ) -> (Self, OptionFaults) {
        let (form, faults) = if kind.is_adaptive() {
            let (adaptive, faults) = Adaptive::read(kind, arguments, peak);
            (Form::Adaptive(Box::new(adaptive)), faults)
        } else {
            let (course, faults) = Course::read(kind, arguments, peak);
            (Form::Course(course), faults)
        };
        (Self { peak, warmup_steps, total_steps, form }, faults)
    }

    /// The rate that step `step` (from 0) uses.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        match &self.form {
            Form::Course(course) => self.peak * course.factor(step, self.warmup_steps, self.total_steps),
            Form::Adaptive(adaptive) => adaptive.rate(),
        }
    }

    /// The share of the peak that step `step` (from 0) uses: what several rates with one schedule are multiplied by.
    #[must_use]
    pub fn factor(&self, step: u64) -> f64 {
        match &self.form {
            Form::Course(course) => course.factor(step, self.warmup_steps, self.total_steps),
            Form::Adaptive(_) if self.peak == 0.0 => 1.0,
            Form::Adaptive(adaptive) => adaptive.rate() / self.peak,
        }
    }

    /// Tells what an evaluation has found, which [`ScheduleKind::is_adaptive`] schedules follow.
    pub fn observe(&mut self, metric: f64) {
        if let Form::Adaptive(adaptive) = &mut self.form {
            adaptive.observe(metric);
        }
    }

    /// What a checkpoint has to hold beside the step; `None` where the step is all.
    #[must_use]
    pub fn state(&self) -> Option<&ScheduleState> {
        match &self.form {
            Form::Course(_) => None,
            Form::Adaptive(adaptive) => Some(adaptive.state()),
        }
    }

    /// Goes on from what a checkpoint held.
    pub fn restore(&mut self, state: ScheduleState) {
        if let Form::Adaptive(adaptive) = &mut self.form {
            adaptive.restore(state);
        }
    }
}
