//! Two learning rates under one schedule.

use std::ops::Mul;

/// The learning rates of a step: both follow one schedule, so their ratio never changes.
///
/// ```
/// use burnish_optim::{LearningRates, Schedule};
/// let peaks = LearningRates { adam: 3e-4, muon: 0.02 };
/// let schedule = Schedule::new("cosine".parse().unwrap(), 1.0, 10, 100);
/// assert_eq!(peaks * schedule.factor(5), LearningRates { adam: 1.5e-4, muon: 0.01 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRates {
    /// Of the parameters that AdamW updates.
    pub adam: f64,
    /// Of the matrices that Muon updates.
    pub muon: f64,
}

impl LearningRates {
    /// One rate for all.
    #[must_use]
    pub const fn both(rate: f64) -> Self {
        Self { adam: rate, muon: rate }
    }
}

impl From<f64> for LearningRates {
    fn from(rate: f64) -> Self {
        Self::both(rate)
    }
}

impl Mul<f64> for LearningRates {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self { adam: self.adam * factor, muon: self.muon * factor }
    }
}
