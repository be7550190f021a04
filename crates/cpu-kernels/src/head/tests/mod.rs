//! The head against the f64 reference and recorded values, on every instruction path.
#![allow(
    clippy::unwrap_used,
    clippy::needless_range_loop,
    reason = "tests; sums over indices as in the formulas"
)]

mod exact;
mod golden;
mod reference;
mod shard;

/// Deterministic values in [-1, 1).
pub(super) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

pub(super) fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

/// Fails where `got` is further from `want` than `tolerance·(1 + max|want|)`, or not a number.
pub(super) fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = 1.0 + want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*g) - w).abs();
        assert!(off <= tolerance * scale, "{what}[{i}]: got {g}, expected {w}, off by {off:e}");
    }
}

/// Runs `work` on every instruction path of this processor.
pub(super) fn for_each_path(work: impl Fn()) {
    for &isa in crate::Isa::available() {
        println!("path {isa:?}");
        crate::with_isa(isa, &work);
    }
}
