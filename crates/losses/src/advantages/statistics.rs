//! Means and standard deviations that pass over NaN.

fn scored(values: &[f64]) -> impl Iterator<Item = f64> {
    values.iter().copied().filter(|v| !v.is_nan())
}

/// NaN of nothing.
pub(super) fn mean(values: &[f64]) -> f64 {
    scored(values).sum::<f64>() / scored(values).count() as f64
}

/// With Bessel's correction; NaN of fewer than two.
pub(super) fn std(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = scored(values).map(|v| (v - mean) * (v - mean)).sum();
    match scored(values).count() {
        0 | 1 => f64::NAN,
        n => (squares / (n - 1) as f64).sqrt(),
    }
}

/// As [`std`]; 0 of a single value that was all there could be (evaluation with one completion per prompt).
pub(super) fn spread(values: &[f64]) -> f64 {
    if values.len() == 1 { 0.0 } else { std(values) }
}

/// 0 of nothing.
pub(super) fn sum(values: &[f64]) -> f64 {
    scored(values).sum()
}
