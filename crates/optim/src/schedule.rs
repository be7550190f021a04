//! Learning-rate schedules, as Transformers' `get_scheduler` computes them.

use burnish_core::choices;

use crate::OptimError;

choices! {
    /// The shape of a schedule.
    pub enum ScheduleKind: "lr_scheduler_type", OptimError {
        /// Linear warm-up, then linear decay to 0.
        Linear = "linear",
        /// Linear warm-up, then half a cosine to 0.
        Cosine = "cosine",
        /// Always the same.
        Constant = "constant",
        /// Linear warm-up, then always the same.
        ConstantWithWarmup = "constant_with_warmup",
    }
}

/// A learning rate as a function of the optimizer step.
///
/// ```
/// use burnish_optim::Schedule;
/// let schedule = Schedule::new("linear".parse().unwrap(), 2e-5, 10, 100);
/// assert_eq!(schedule.rate(0), 0.0);
/// assert_eq!(schedule.rate(10), 2e-5);
/// assert_eq!(schedule.rate(100), 0.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    kind: ScheduleKind,
    peak: f64,
    warmup_steps: u64,
    total_steps: u64,
}

impl Schedule {
    /// A schedule that peaks at `peak`.
    #[must_use]
    pub const fn new(kind: ScheduleKind, peak: f64, warmup_steps: u64, total_steps: u64) -> Self {
        Self { kind, peak, warmup_steps, total_steps }
    }

    /// The rate that step `step` (from 0) uses.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    /// The share of the peak that step `step` (from 0) uses: what several rates with one schedule are multiplied by.
    #[must_use]
    pub fn factor(&self, step: u64) -> f64 {
        if self.kind == ScheduleKind::Constant {
            return 1.0;
        }
        if step < self.warmup_steps {
            return step as f64 / self.warmup_steps.max(1) as f64;
        }
        let after = self.total_steps.saturating_sub(self.warmup_steps).max(1) as f64;
        match self.kind {
            ScheduleKind::Linear => self.total_steps.saturating_sub(step) as f64 / after,
            ScheduleKind::Cosine => {
                let progress = (step - self.warmup_steps) as f64 / after;
                (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0)
            }
            ScheduleKind::Constant | ScheduleKind::ConstantWithWarmup => 1.0,
        }
    }
}
