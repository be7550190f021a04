//! The names of a loss's metrics, so that ranks with and without rows exchange the same numbers.

use crate::MetricSums;
use crate::metric_sums::Extreme;

/// What a loss may tally, in a fixed order: ranks add their [`Metrics::sums_of`], take the least of their
/// [`Metrics::extremes_of`], and [`Metrics::tally`] reads both back.
///
/// ```
/// use burnish_losses::{Reward, MetricSums};
///
/// let reward = Reward::new(None).unwrap();
/// let metrics = reward.metrics();
/// let ranks: Vec<MetricSums> =
///     [0.5, -0.5].map(|r| reward.terms(&[r], &[0.0], None, 2.0).unwrap().tally).into();
/// let add = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>();
/// let least = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a.min(*b)).collect::<Vec<_>>();
/// let sums = ranks.iter().map(|t| metrics.sums_of(t)).reduce(add).unwrap();
/// let extremes = ranks.iter().map(|t| metrics.extremes_of(t)).reduce(least).unwrap();
/// let mut all = metrics.tally(&sums, &extremes);
/// all.settle();
/// assert_eq!(all.mean("accuracy"), Some(0.5));
/// assert_eq!(all.mean("min_reward"), Some(-0.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Sums over sums.
    pub sums: Vec<&'static str>,
    /// Least values.
    pub least: Vec<&'static str>,
    /// Greatest values.
    pub greatest: Vec<&'static str>,
    /// Differences of means: name, of, less.
    pub differences: Vec<[&'static str; 3]>,
}

impl Metrics {
    pub(crate) fn sums(names: &[&'static str]) -> Self {
        Self { sums: names.to_vec(), ..Self::default() }
    }

    /// Numerators and denominators of the sums, two by two; 0 and 0 of what was not counted.
    #[must_use]
    pub fn sums_of(&self, tally: &MetricSums) -> Vec<f64> {
        self.sums
            .iter()
            .map(|name| tally.sums(name).unwrap_or((0.0, 0.0)))
            .flat_map(|(n, d)| [n, d])
            .collect()
    }

    /// Least values and negated greatest ones, so that the least over ranks is right for both; infinite where nothing
    /// was seen.
    #[must_use]
    pub fn extremes_of(&self, tally: &MetricSums) -> Vec<f64> {
        let value = |name: &&str| tally.extremes().find(|(n, _)| n == name).map(|(_, e)| e.value());
        let least = self.least.iter().map(|name| value(name).unwrap_or(f64::INFINITY));
        least.chain(self.greatest.iter().map(|name| value(name).map_or(f64::INFINITY, |v| -v))).collect()
    }

    /// The tally of all ranks, from the added sums and the least extremes; what no rank counted is not in it.
    #[must_use]
    pub fn tally(&self, sums: &[f64], extremes: &[f64]) -> MetricSums {
        let mut tally = MetricSums::new();
        for (name, sums) in self.sums.iter().zip(sums.chunks_exact(2)) {
            if sums[1] != 0.0 {
                tally.add(name, sums[0], sums[1]);
            }
        }
        let named = self.least.iter().map(|n| (n, false)).chain(self.greatest.iter().map(|n| (n, true)));
        for ((name, is_greatest), &value) in named.zip(extremes) {
            if value.is_finite() {
                let extreme = if is_greatest { Extreme::Greatest(-value) } else { Extreme::Least(value) };
                tally.extreme(name, extreme);
            }
        }
        for [name, of, less] in &self.differences {
            tally.difference(name, of, less);
        }
        tally
    }
}
