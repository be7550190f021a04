//! Metrics as sums, divided once.

use std::collections::BTreeMap;

/// Named (numerator, denominator) pairs. Micro-batches and ranks add up; the one division comes last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    sums: BTreeMap<String, (f64, f64)>,
}

impl Tally {
    /// An empty tally.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to a metric's numerator and denominator.
    pub fn add(&mut self, name: &str, numerator: f64, denominator: f64) {
        let entry = self.sums.entry(name.to_owned()).or_insert((0.0, 0.0));
        entry.0 += numerator;
        entry.1 += denominator;
    }

    /// Adds another tally's sums.
    pub fn merge(&mut self, other: &Self) {
        for (name, (numerator, denominator)) in &other.sums {
            self.add(name, *numerator, *denominator);
        }
    }

    /// The sums of a metric.
    #[must_use]
    pub fn sums(&self, name: &str) -> Option<(f64, f64)> {
        self.sums.get(name).copied()
    }

    /// A metric's mean: 0 when nothing was counted, as TRL reports it.
    #[must_use]
    pub fn mean(&self, name: &str) -> Option<f64> {
        self.sums(name).map(|(n, d)| if d == 0.0 { 0.0 } else { n / d })
    }

    /// All means, by name.
    pub fn means(&self) -> impl Iterator<Item = (&str, f64)> {
        self.sums.iter().map(|(name, (n, d))| (name.as_str(), if *d == 0.0 { 0.0 } else { n / d }))
    }
}
