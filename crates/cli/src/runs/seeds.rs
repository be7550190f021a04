//! Welch's test of two kinds of runs, several seeds of each.

use std::f64::consts::FRAC_PI_2;

/// Means of two samples and how far apart they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Difference {
    /// The second mean minus the first.
    pub(super) of_means: f64,
    /// How likely means are at least as far apart where the two are the same, 0 to 1.
    pub(super) p: f64,
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation, with n - 1; none of fewer than two values.
pub(super) fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() >= 2).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// Welch's test of two samples of at least two values each; none where none of them varies.
pub(super) fn welch(a: &[f64], b: &[f64]) -> Option<Difference> {
    let part = |values: &[f64]| deviation(values).map(|d| d * d / values.len() as f64);
    let (of_a, of_b) = (part(a)?, part(b)?);
    let error = of_a + of_b;
    if error == 0.0 {
        return None;
    }
    let of_means = mean(b) - mean(a);
    let degrees = error.powi(2) / (of_a.powi(2) / (a.len() - 1) as f64 + of_b.powi(2) / (b.len() - 1) as f64);
    Some(Difference { of_means, p: beyond((of_means / error.sqrt()).abs(), degrees) })
}

/// How likely |t| is at least `t` under Student's distribution. With t = sqrt(degrees) tan(angle) its density is
/// proportional to cos(angle)^(degrees - 1), which is summed by Simpson's rule.
fn beyond(t: f64, degrees: f64) -> f64 {
    let from = (t / degrees.sqrt()).atan();
    let sum = |from: f64| {
        const PARTS: u32 = 2000;
        let width = (FRAC_PI_2 - from) / f64::from(PARTS);
        let at = |i: u32| (from + width * f64::from(i)).cos().max(0.0).powf(degrees - 1.0);
        let inner: f64 = (1..PARTS).map(|i| at(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        (at(0) + inner + at(PARTS)) * width / 3.0
    };
    (sum(from) / sum(0.0)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// `scipy.stats.ttest_ind(a, b, equal_var=False)`, and `2 * scipy.stats.t.sf(t, df)`.
    #[test]
    fn as_scipy() {
        let a = [0.2000, 0.2007, 0.1785];
        let b = [0.1973, 0.2166, 0.1874];
        let found = welch(&a, &b).unwrap();
        assert!((found.of_means - 0.007_366_666_666).abs() < 1e-9);
        assert!((found.p - 0.549_254_865_433_937_2).abs() < 1e-6, "{}", found.p);
        for (t, degrees, p) in [
            (2.0, 3.7, 0.121_817_201_905_233_98),
            (0.5, 1.5, 0.680_567_110_669_94),
            (4.0, 10.0, 0.002_518_332_624_736_694_5),
            (12.7062, 1.0, 0.050_000_018_560_710_4),
            (0.0, 5.0, 1.0),
        ] {
            assert!((beyond(t, degrees) - p).abs() < 1e-6, "{t} {degrees}: {}", beyond(t, degrees));
        }
        assert_eq!(welch(&[1.0], &[2.0, 3.0]), None);
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0]), None);
    }
}
