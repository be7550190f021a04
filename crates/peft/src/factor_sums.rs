//! Weighted sums of factors, as PEFT combines adapters of one rank (`A` and `B` each on their own), or of whole changes.

use burnish_core::random::Stream;
use burnish_core::{UnknownWord, choices};

choices! {
    /// What is summed of factors.
    pub enum FactorSum: "combination_type", UnknownWord {
        /// All of them.
        Linear = "linear",
        /// The largest of each, of those the ones of the sign that most have (Yadav et al. 2023, arXiv:2306.01708).
        Ties = "ties",
        /// Some of each by chance, made up for (Yu et al. 2023, arXiv:2311.03099).
        DareLinear = "dare_linear",
        /// Some of each by chance, of those the ones of the sign that most have.
        DareTies = "dare_ties",
        /// The largest of each.
        MagnitudePrune = "magnitude_prune",
    }
}

choices! {
    /// What decides a sign.
    #[derive(Default)]
    pub enum MajoritySign: "majority_sign_method", UnknownWord {
        /// The sum of the values.
        #[default]
        Total = "total",
        /// How many there are of each.
        Frequency = "frequency",
    }
}

choices! {
    /// What adapters become together: of how many ranks, and whether changes or factors are summed.
    #[derive(Default)]
    pub enum CombinationType: "combination_type", UnknownWord {
        /// The nearest adapter of a rank to the sum of the changes.
        #[default]
        Svd = "svd",
        /// The sum of the changes, of all ranks together.
        Cat = "cat",
        /// Factors summed: a rough approximation of the sum of the changes.
        Linear = "linear",
        /// See [`FactorSum::Ties`].
        Ties = "ties",
        /// See [`FactorSum::DareLinear`].
        DareLinear = "dare_linear",
        /// See [`FactorSum::DareTies`].
        DareTies = "dare_ties",
        /// See [`FactorSum::MagnitudePrune`].
        MagnitudePrune = "magnitude_prune",
        /// [`FactorSum::Ties`] of whole changes.
        TiesSvd = "ties_svd",
        /// [`FactorSum::DareLinear`] of whole changes.
        DareLinearSvd = "dare_linear_svd",
        /// [`FactorSum::DareTies`] of whole changes.
        DareTiesSvd = "dare_ties_svd",
        /// [`FactorSum::MagnitudePrune`] of whole changes.
        MagnitudePruneSvd = "magnitude_prune_svd",
    }
}

impl CombinationType {
    /// What it sums of factors or changes, where that is not the changes as they are.
    #[must_use]
    pub fn sum(self) -> Option<FactorSum> {
        match self {
            Self::Svd | Self::Cat => None,
            Self::Linear => Some(FactorSum::Linear),
            Self::Ties | Self::TiesSvd => Some(FactorSum::Ties),
            Self::DareLinear | Self::DareLinearSvd => Some(FactorSum::DareLinear),
            Self::DareTies | Self::DareTiesSvd => Some(FactorSum::DareTies),
            Self::MagnitudePrune | Self::MagnitudePruneSvd => Some(FactorSum::MagnitudePrune),
        }
    }

    /// Whether what is summed are changes, of which the nearest adapter of a rank is taken.
    #[must_use]
    pub fn has_rank(self) -> bool {
        matches!(
            self,
            Self::Svd | Self::TiesSvd | Self::DareLinearSvd | Self::DareTiesSvd | Self::MagnitudePruneSvd
        )
    }

    /// Whether it keeps a part of each factor, or change.
    #[must_use]
    pub fn has_density(self) -> bool {
        self.sum().is_some_and(|what| what != FactorSum::Linear)
    }
}

/// How factors, or changes, are summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FactorSums {
    /// What is summed.
    pub what: FactorSum,
    /// How much of each is kept, from 0 to 1.
    pub density: f64,
    /// Whose sign counts.
    pub majority: MajoritySign,
    /// What is kept by chance is a function of this and of the factor's (of a change the module's) name, not PyTorch's draws.
    pub seed: u64,
}

impl FactorSums {
    /// The sum of factors of one shape, each with its weight; `name` is the factor's.
    pub(crate) fn of(&self, factors: &[(Vec<f32>, f64)], name: &str) -> Vec<f32> {
        use FactorSum::{DareLinear, DareTies, MagnitudePrune, Ties};
        let kept = factors.iter().enumerate().map(|(part, (values, weight))| {
            let values = match self.what {
                FactorSum::Linear => values.clone(),
                Ties | MagnitudePrune => largest(values, self.density),
                DareLinear | DareTies => self.by_chance(values, &format!("{part}: {name}")),
            };
            (values, *weight as f32)
        });
        let kept: Vec<(Vec<f32>, f32)> = kept.collect();
        let elected = matches!(self.what, Ties | DareTies);
        let element = |at: usize| {
            let all = || kept.iter().map(|(values, weight)| (values[at], *weight));
            if !elected {
                return all().map(|(value, weight)| value * weight).sum();
            }
            let vote = |(value, _): (f32, f32)| match self.majority {
                MajoritySign::Total => value,
                MajoritySign::Frequency => sign(value),
            };
            let majority = if all().map(vote).sum::<f32>() >= 0.0 { 1.0 } else { -1.0 };
            let chosen = || all().filter(|(value, _)| sign(*value) == majority);
            chosen().map(|(value, weight)| value * weight).sum::<f32>() / (chosen().count().max(1) as f32)
        };
        (0..kept.first().map_or(0, |(values, _)| values.len())).map(element).collect()
    }

    fn by_chance(&self, values: &[f32], name: &str) -> Vec<f32> {
        if self.density >= 1.0 {
            return values.to_vec();
        }
        let stream = Stream::new(self.seed, name);
        let kept = |at: usize| f64::from(stream.uniform(at as u64)) < self.density;
        let made_up = |(at, value): (usize, &f32)| if kept(at) { value / self.density as f32 } else { 0.0 };
        values.iter().enumerate().map(made_up).collect()
    }
}

fn sign(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

/// The largest elements, as many as `density` of all, rounded down; of equal ones the first.
fn largest(values: &[f32], density: f64) -> Vec<f32> {
    if density >= 1.0 {
        return values.to_vec();
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
    let mut kept = vec![0.0; values.len()];
    for &at in order.iter().take((density * values.len() as f64) as usize) {
        kept[at] = values[at];
    }
    kept
}
