//! Learning-rate schedules, as Transformers' `get_scheduler` computes them.

use std::str::FromStr;

use crate::OptimError;

/// The shape of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Linear warm-up, then linear decay to 0.
    Linear,
    /// Linear warm-up, then half a cosine to 0.
    Cosine,
    /// Always the same.
    Constant,
    /// Linear warm-up, then always the same.
    ConstantWithWarmup,
}

impl FromStr for ScheduleKind {
    type Err = OptimError;

    fn from_str(s: &str) -> Result<Self, OptimError> {
        match s {
            "linear" => Ok(Self::Linear),
            "cosine" => Ok(Self::Cosine),
            "constant" => Ok(Self::Constant),
            "constant_with_warmup" => Ok(Self::ConstantWithWarmup),
            _ => Err(OptimError::UnknownSchedule(s.to_owned())),
        }
    }
}

/// A learning rate as a function of the optimizer step.
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
