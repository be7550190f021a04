#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    clippy::excessive_precision,
    reason = "tests"
)]

use super::*;
use half::{bf16, f16};

#[inline(always)]
unsafe fn map_body<S: Lanes>(op: usize, x: &[f32], y: &mut [f32]) {
    let mut i = 0;
    while i < x.len() {
        let m = S::mask((x.len() - i).min(S::N));
        let v = S::load_m(m, x.as_ptr().add(i));
        let v = match op {
            0 => S::exp(v),
            1 => S::sigmoid(v),
            _ => S::round(v),
        };
        S::store_m(m, y.as_mut_ptr().add(i), v);
        i += S::N;
    }
}
dispatch!(unsafe fn map = map_body [] [] (op: usize, x: &[f32], y: &mut [f32]));

#[test]
fn exp_and_sigmoid_on_every_isa() {
    let x: Vec<f32> = (-1000..=880).map(|i| i as f32 * 0.1).chain([0.0, -0.0, 1e-9, -87.2]).collect();
    let mut y = vec![0.0; x.len()];
    for &isa in Isa::available() {
        unsafe { map(isa, 0, &x, &mut y) };
        for (&x, &y) in x.iter().zip(&y) {
            let want = f64::from(x).exp();
            assert!((f64::from(y) - want).abs() <= 3e-7 * want + 2e-38, "{isa:?} exp({x}) = {y}, not {want}");
        }
        unsafe { map(isa, 1, &x, &mut y) };
        for (&x, &y) in x.iter().zip(&y) {
            let want = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!(
                (f64::from(y) - want).abs() <= 4e-7 * want + 2e-38,
                "{isa:?} sigmoid({x}) = {y}, not {want}"
            );
        }
        unsafe { map(isa, 0, &[f32::NAN, f32::NEG_INFINITY, f32::INFINITY], &mut y[..3]) };
        assert!(y[0].is_nan() && y[1] == 0.0 && y[2] > 1e38, "{isa:?} {:?}", &y[..3]);
    }
}

#[inline(always)]
unsafe fn reduce_body<S: Lanes>(x: &[f32; 16], n: usize) -> [f32; 4] {
    let m = S::mask(n);
    let kept = S::keep(m, S::load(x.as_ptr()));
    [S::sum(kept), S::top(S::load(x.as_ptr())), S::sum(S::sqrt(S::mul(kept, kept))), S::N as f32]
}
dispatch!(unsafe fn reduce = reduce_body [] [] (x: &[f32; 16], n: usize) -> [f32; 4]);

#[test]
fn masks_and_reductions() {
    let x: [f32; 16] = std::array::from_fn(|i| if i % 2 == 0 { i as f32 } else { -(i as f32) });
    for &isa in Isa::available() {
        let lanes = unsafe { reduce(isa, &x, 0) }[3] as usize;
        for n in 0..=lanes {
            let got = unsafe { reduce(isa, &x, n) };
            assert_eq!(got[0], x[..n].iter().sum::<f32>(), "{isa:?} {n}");
            assert_eq!(got[1], x[..lanes].iter().copied().fold(f32::MIN, f32::max), "{isa:?}");
            assert_eq!(got[2], x[..n].iter().map(|x| x.abs()).sum::<f32>(), "{isa:?} {n}");
        }
    }
}

#[inline(always)]
unsafe fn four_sums_body<S: Lanes>(x: &[f32; 64]) -> [[f32; 4]; 2] {
    let v: [S::V; 4] = std::array::from_fn(|i| S::load(x.as_ptr().add(16 * i)));
    [S::sums(v), v.map(|v| S::sum(v))]
}
dispatch!(unsafe fn four_sums = four_sums_body [] [] (x: &[f32; 64]) -> [[f32; 4]; 2]);

/// Of values whose sum depends on the order.
#[test]
fn four_sums_are_those_of_one_to_the_bit() {
    let x: [f32; 64] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 10_f32.powi(i as i32 % 7));
    for &isa in Isa::available() {
        let [four, one] = unsafe { four_sums(isa, &x) };
        assert_eq!(four.map(f32::to_bits), one.map(f32::to_bits), "{isa:?}");
    }
}

#[inline(always)]
unsafe fn half_body<S: Lanes>(x: &[f32; 16], bits: &mut [u16; 16], back: &mut [f32; 16], wide: bool) {
    for i in (0..16).step_by(S::N) {
        let v = S::load(x.as_ptr().add(i));
        let (b, y) = (bits.as_mut_ptr().add(i), back.as_mut_ptr().add(i));
        if wide {
            S::store_bf16(b, v);
            S::store(y, S::load_bf16(b));
        } else {
            S::store_f16(b, v);
            S::store(y, S::load_f16(b));
        }
    }
}
dispatch!(unsafe fn halves = half_body [] [] (x: &[f32; 16], bits: &mut [u16; 16], back: &mut [f32; 16], wide: bool));

#[test]
fn half_types_round_to_nearest_even() {
    let x: [f32; 16] = [
        0.0,
        -0.0,
        1.0,
        1.003_906_25,
        1.011_718_75,
        -7.299_999_7,
        65504.0,
        65520.0,
        1e-7,
        -6e-8,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        3.0e38,
        1e-40,
        0.333_333_34,
    ];
    for &isa in Isa::available() {
        let (mut bits, mut back) = ([0; 16], [0.0; 16]);
        unsafe { halves(isa, &x, &mut bits, &mut back, true) };
        for i in 0..16 {
            assert_eq!(bits[i], bf16::from_f32(x[i]).to_bits(), "{isa:?} bf16 of {}", x[i]);
            assert!(back[i] == bf16::from_f32(x[i]).to_f32() || x[i].is_nan());
        }
        unsafe { halves(isa, &x, &mut bits, &mut back, false) };
        for i in 0..16 {
            assert_eq!(bits[i], f16::from_f32(x[i]).to_bits(), "{isa:?} f16 of {}", x[i]);
            assert!(back[i] == f16::from_f32(x[i]).to_f32() || x[i].is_nan());
        }
    }
}

#[inline(always)]
unsafe fn mask_row_body<S: Lanes>(row: u32, threshold: u32, y: &mut [f32; 64]) {
    for i in (0..64).step_by(S::N) {
        S::store(y.as_mut_ptr().add(i), S::dropout(row, i as u32 + 7, threshold, 2.0));
    }
}
dispatch!(unsafe fn mask_row = mask_row_body [] [] (row: u32, threshold: u32, y: &mut [f32; 64]));

#[test]
fn dropout_matches_the_counted_bits() {
    use burnish_core::random::dropout_bits;
    for &isa in Isa::available() {
        for threshold in [0, 1 << 30, 1 << 31, u32::MAX - 5] {
            let mut y = [0.0; 64];
            unsafe { mask_row(isa, 12345, threshold, &mut y) };
            for (i, &y) in y.iter().enumerate() {
                let want = if dropout_bits(12345, i as u32 + 7) >= threshold { 2.0 } else { 0.0 };
                assert_eq!(y, want, "{isa:?} column {i}");
            }
        }
    }
}

#[test]
fn with_isa_restores() {
    let before = isa();
    assert_eq!(with_isa(Isa::Portable, isa), Isa::Portable);
    assert_eq!(isa(), before);
}
