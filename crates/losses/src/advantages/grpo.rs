//! GRPO: a completion's reward against its group.

use burnish_core::choices;

use crate::LossError;

use super::statistics::{mean, spread};
use super::{Advantages, Rewards, SMALL, zero_part};

choices! {
    /// `multi_objective_aggregation`.
    #[derive(Default)]
    pub enum Aggregation: "multi_objective_aggregation", LossError {
        /// Weigh and sum the rewards, then compare within the group (`r - mean`, by [`ScaleRewards`]).
        #[default]
        SumThenNormalize = "sum_then_normalize",
        /// Compare each function within the group, weigh and sum, then normalise over the batch (GDPO, arXiv:2601.05242).
        NormalizeThenSum = "normalize_then_sum",
    }
}

choices! {
    /// `scale_rewards`: the standard deviation that advantages are divided by.
    #[derive(Default)]
    pub enum ScaleRewards: "scale_rewards", LossError {
        /// The group's (arXiv:2402.03300).
        #[default]
        Group = "group" | "true",
        /// The whole batch's (arXiv:2508.08221).
        Batch = "batch",
        /// None (arXiv:2503.20783).
        None = "none" | "false",
    }
}

/// How GRPO makes advantages; the defaults are TRL's.
///
/// ```
/// use burnish_losses::{GrpoAdvantages, Rewards, ScaleRewards};
///
/// let how = GrpoAdvantages { scale: ScaleRewards::None, ..GrpoAdvantages::default() };
/// let rewards = Rewards { names: &["accuracy".into()], weights: &[1.0], values: &[1.0, 0.0], group: 2 };
/// assert_eq!(how.advantages(&rewards).unwrap().advantages, [0.5, -0.5]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpoAdvantages {
    /// How several rewards become one.
    pub aggregation: Aggregation,
    /// What advantages are divided by.
    pub scale: ScaleRewards,
}

impl GrpoAdvantages {
    /// The advantages of a generation batch.
    ///
    /// # Errors
    /// If the lists do not fit.
    pub fn advantages(&self, rewards: &Rewards<'_>) -> Result<Advantages, LossError> {
        rewards.check()?;
        let (advantages, zero_std) = match self.aggregation {
            Aggregation::SumThenNormalize => self.sum_then_normalize(rewards),
            Aggregation::NormalizeThenSum => normalize_then_sum(rewards),
        };
        Ok(Advantages::new(advantages, rewards, zero_std))
    }

    fn sum_then_normalize(&self, rewards: &Rewards<'_>) -> (Vec<f64>, f64) {
        let all = rewards.weighted();
        let of_batch = spread(&all);
        let (mut advantages, mut stds) = (Vec::with_capacity(all.len()), Vec::new());
        for group in all.chunks(rewards.group) {
            let (mean, of_group) = (mean(group), spread(group));
            let std = if self.scale == ScaleRewards::Batch { of_batch } else { of_group };
            stds.push(std);
            let by = if self.scale == ScaleRewards::None { 1.0 } else { std + SMALL };
            advantages.extend(group.iter().map(|r| (r - mean) / by));
        }
        (advantages, zero_part(&stds))
    }
}

fn normalize_then_sum(rewards: &Rewards<'_>) -> (Vec<f64>, f64) {
    // Per function, each value against its group.
    let normal: Vec<Vec<f64>> = (0..rewards.names.len())
        .map(|function| {
            let column = rewards.column(function);
            let groups = column.chunks(rewards.group);
            groups
                .flat_map(|group| {
                    let (mean, by) = (mean(group), spread(group) + SMALL);
                    group.iter().map(move |r| (r - mean) / by)
                })
                .collect()
        })
        .collect();
    let all = rewards.weigh(|completion, function| normal[function][completion]);
    let (mean, std) = (mean(&all), spread(&all));
    (all.iter().map(|r| (r - mean) / (std + SMALL)).collect(), zero_part(&[std]))
}
