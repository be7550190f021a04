//! `clip_ratio` metrics: the fraction of importance ratios that were clipped.

use crate::metric_sums::Extreme;
use crate::{MetricSums, Metrics};

/// Where the ratios of a rollout were clipped, under TRL's names.
#[derive(Default)]
pub(crate) struct Clipped {
    low: f64,
    high: f64,
    of: f64,
}

impl Clipped {
    pub(crate) fn count(&mut self, ratio: f64, advantage: f64, low: f64, high: f64) {
        self.low += f64::from(u8::from(ratio < 1.0 - low && advantage < 0.0));
        self.high += f64::from(u8::from(ratio > 1.0 + high && advantage > 0.0));
        self.of += 1.0;
    }

    pub(crate) fn name(metrics: &mut Metrics) {
        metrics.sums.extend(["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"]);
        metrics.least.push("clip_ratio/low_min");
        metrics.greatest.push("clip_ratio/high_max");
    }

    pub(crate) fn add_to(&self, tally: &mut MetricSums) {
        tally.add("clip_ratio/low_mean", self.low, self.of);
        tally.add("clip_ratio/high_mean", self.high, self.of);
        tally.add("clip_ratio/region_mean", self.low + self.high, self.of);
        tally.extreme("clip_ratio/low_min", Extreme::Least(self.low / self.of));
        tally.extreme("clip_ratio/high_max", Extreme::Greatest(self.high / self.of));
    }
}
