//! From rewards to advantages, over a whole generation batch.
//!
//! A reward function may decline to score a completion (NaN). A completion that none scores is left out of every mean
//! and has the advantage 0. Standard deviations are Bessel's (n - 1); of one value there is none, and what would be
//! divided by it has the advantage 0.

mod grpo;
mod rewards;
mod rloo;
mod statistics;

pub use grpo::{Aggregation, GrpoAdvantages, ScaleRewards};
pub use rewards::Rewards;
pub use rloo::RlooAdvantages;

use crate::MetricSums;

/// What is added to a standard deviation before it divides.
const SMALL: f64 = 1e-4;

/// Advantages of a generation batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// One per completion; 0 where no function scored it.
    pub advantages: Vec<f64>,
    /// The weighted reward per completion; NaN where no function scored it.
    pub rewards: Vec<f64>,
    /// `reward`, `reward_std`, `rewards/{function}/mean|std`, `frac_reward_zero_std` and RLOO's `kl`, each over 1: of the whole
    /// generation batch, so to be counted once and not once per rank.
    pub tally: MetricSums,
}

impl Advantages {
    fn new(advantages: Vec<f64>, rewards: &Rewards<'_>, zero_std: f64) -> Self {
        let weighted = rewards.weighted();
        let mut tally = MetricSums::new();
        let mut add = |name: &str, value: f64| {
            if !value.is_nan() {
                tally.add(name, value, 1.0);
            }
        };
        for (function, name) in rewards.names.iter().enumerate() {
            let column = rewards.column(function);
            add(&format!("rewards/{name}/mean"), statistics::mean(&column));
            add(&format!("rewards/{name}/std"), statistics::std(&column));
        }
        add("reward", statistics::mean(&weighted));
        add("reward_std", statistics::std(&weighted));
        add("frac_reward_zero_std", zero_std);
        let advantages = advantages.into_iter().map(|a| if a.is_nan() { 0.0 } else { a }).collect();
        Self { advantages, rewards: weighted, tally }
    }
}

/// The part of `stds` that is 0, within torch's `isclose`.
fn zero_part(stds: &[f64]) -> f64 {
    stds.iter().filter(|s| s.abs() <= 1e-8).count() as f64 / stds.len().max(1) as f64
}
