//! Metrics as sums, divided once.

use std::collections::BTreeMap;

/// Named (numerator, denominator) pairs. Micro-batches and ranks add up; the one division comes last.
///
/// What is not a sum keeps its own law until the step is over: least and greatest values ([`MetricSums::extremes`]) and the
/// difference of two means ([`MetricSums::difference`]); [`MetricSums::settle`] then turns them into plain values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricSums {
    sums: BTreeMap<String, (f64, f64)>,
    extremes: BTreeMap<String, Extreme>,
    differences: BTreeMap<String, (String, String)>,
}

/// A least or a greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extreme {
    /// The least seen.
    Least(f64),
    /// The greatest seen.
    Greatest(f64),
}

impl Extreme {
    /// The value.
    #[must_use]
    pub const fn value(self) -> f64 {
        match self {
            Self::Least(v) | Self::Greatest(v) => v,
        }
    }

    /// Of both; of a least and a greatest value, which have nothing in common, the first.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Least(a), Self::Least(b)) => Self::Least(a.min(b)),
            (Self::Greatest(a), Self::Greatest(b)) => Self::Greatest(a.max(b)),
            (first, _) => first,
        }
    }
}

impl MetricSums {
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

    /// Takes a value into a least or greatest one; a value that is not a number counts for nothing.
    pub fn extreme(&mut self, name: &str, value: Extreme) {
        if !value.value().is_nan() {
            self.extremes.entry(name.to_owned()).and_modify(|e| *e = e.with(value)).or_insert(value);
        }
    }

    /// Declares a metric as the mean of `of` less the mean of `less`, where both were counted.
    pub fn difference(&mut self, name: &str, of: &str, less: &str) {
        self.differences.insert(name.to_owned(), (of.to_owned(), less.to_owned()));
    }

    /// Adds another tally's sums and takes in its extremes.
    pub fn merge(&mut self, other: &Self) {
        for (name, (numerator, denominator)) in &other.sums {
            self.add(name, *numerator, *denominator);
        }
        for (name, value) in &other.extremes {
            self.extreme(name, *value);
        }
        self.differences.extend(other.differences.iter().map(|(name, d)| (name.clone(), d.clone())));
    }

    /// Makes plain values (over 1) of extremes and differences: once a step, when all micro-batches and ranks are in.
    pub fn settle(&mut self) {
        for (name, value) in std::mem::take(&mut self.extremes) {
            self.add(&name, value.value(), 1.0);
        }
        for (name, (of, less)) in std::mem::take(&mut self.differences) {
            let mean = |name| self.sums(name).filter(|(_, d)| *d != 0.0).map(|(n, d)| n / d);
            if let (Some(of), Some(less)) = (mean(&of), mean(&less)) {
                self.add(&name, of - less, 1.0);
            }
        }
    }

    /// The sums of a metric.
    #[must_use]
    pub fn sums(&self, name: &str) -> Option<(f64, f64)> {
        self.sums.get(name).copied()
    }

    /// All sums, by name: numerator and denominator.
    pub fn all_sums(&self) -> impl Iterator<Item = (&str, (f64, f64))> {
        self.sums.iter().map(|(name, sums)| (name.as_str(), *sums))
    }

    /// All least and greatest values that are not settled, by name.
    pub fn extremes(&self) -> impl Iterator<Item = (&str, Extreme)> {
        self.extremes.iter().map(|(name, value)| (name.as_str(), *value))
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
