#![allow(clippy::undocumented_unsafe_blocks, reason = "tests")]

use super::*;
use crate::operand::{Bf16, Fp32};
use crate::simd::Isa;
use half::{bf16, f16};
use proptest::prelude::*;

proptest! {
    /// Columns and extras have places of their own inside their blocks.
    #[test]
    fn depth_places_every_column_once(k in 1_usize..3000, x in 0_usize..600, m in 1_usize..5) {
        let d = Depth::new(k, x);
        let mut at: Vec<usize> = (0..k + x).map(|c| d.column(m, c)).collect();
        prop_assert!(at.iter().all(|&o| o % LDP < LDP - 15 && (o / LDP).is_multiple_of(m)));
        prop_assert!(at.iter().all(|&o| o + (m - 1) * LDP < d.a_len(m)));
        prop_assert_eq!((0..d.blocks()).map(|b| d.len(b)).sum::<usize>(), k + x);
        // In block order the columns are consecutive.
        let mut col = 0;
        for b in 0..d.blocks() {
            for c in 0..d.len(b) {
                prop_assert_eq!(at[col], b * m * LDP + c);
                col += 1;
            }
        }
        prop_assert_eq!(d.kc() % NR, 0);
        at.dedup();
        prop_assert_eq!(at.len(), k + x);
    }
}

#[test]
fn panels_widen_and_pad() {
    let (k, n) = (37, 21);
    let w: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.37).sin()).collect();
    let b: Vec<bf16> = w.iter().map(|&x| bf16::from_f32(x)).collect();
    let h: Vec<f16> = w.iter().map(|&x| f16::from_f32(x)).collect();
    for &isa in Isa::available() {
        let mut p = vec![f32::NAN; k * NR];
        let check = |what: &str, p: &mut [f32], value: &dyn Fn(usize, usize) -> f32| {
            for kk in 0..k {
                for j in 0..NR {
                    let want = if j < n { value(j, kk) } else { 0.0 };
                    assert_eq!(p[kk * NR + j], want, "{isa:?} {what} [{kk}, {j}]");
                }
            }
            p.fill(f32::NAN);
        };
        unsafe { pack_nk::<Fp32, _>(isa, w.as_ptr(), k, k, n, p.as_mut_ptr()) };
        check("f32 nk", &mut p, &|j, kk| w[j * k + kk]);
        unsafe { pack_nk::<Fp32, _>(isa, b.as_ptr(), k, k, n, p.as_mut_ptr()) };
        check("bf16 nk", &mut p, &|j, kk| b[j * k + kk].to_f32());
        unsafe { pack_nk::<Fp32, _>(isa, h.as_ptr(), k, k, n, p.as_mut_ptr()) };
        check("f16 nk", &mut p, &|j, kk| h[j * k + kk].to_f32());
        unsafe { pack_kn::<Fp32, _>(isa, w.as_ptr(), n, k, n, p.as_mut_ptr()) };
        check("f32 kn", &mut p, &|j, kk| w[kk * n + j]);
        unsafe { pack_kn::<Fp32, _>(isa, b.as_ptr(), n, k, n, p.as_mut_ptr()) };
        check("bf16 kn", &mut p, &|j, kk| b[kk * n + j].to_f32());
        unsafe { pack_kn::<Fp32, _>(isa, h.as_ptr(), n, k, n, p.as_mut_ptr()) };
        check("f16 kn", &mut p, &|j, kk| h[kk * n + j].to_f32());
    }
}

/// Pairs of every storage, odd sums padded, in both orientations; narrowed to nearest even.
#[test]
fn panels_of_pairs_narrow_and_pad() {
    for (k, n) in [(37_usize, 21_usize), (70, 32), (1, 3), (64, 16)] {
        let w: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<bf16> = w.iter().map(|&x| bf16::from_f32(x)).collect();
        let h: Vec<f16> = w.iter().map(|&x| f16::from_f32(x)).collect();
        for &isa in Isa::available() {
            let mut p = vec![f32::NAN; k.div_ceil(2) * NR];
            let check = |what: &str, p: &mut [f32], value: &dyn Fn(usize, usize) -> f32| {
                for kk in 0..k.next_multiple_of(2) {
                    for j in 0..NR {
                        let want = if j < n && kk < k { bf16::from_f32(value(j, kk)) } else { bf16::ZERO };
                        let got = p[kk / 2 * NR + j].to_bits() >> (16 * (kk % 2)) & 0xffff;
                        assert_eq!(got, u32::from(want.to_bits()), "{isa:?} {what} [{kk}, {j}]");
                    }
                }
                p.fill(f32::NAN);
            };
            unsafe { pack_nk::<Bf16, _>(isa, w.as_ptr(), k, k, n, p.as_mut_ptr()) };
            check("f32 nk", &mut p, &|j, kk| w[j * k + kk]);
            unsafe { pack_nk::<Bf16, _>(isa, b.as_ptr(), k, k, n, p.as_mut_ptr()) };
            check("bf16 nk", &mut p, &|j, kk| b[j * k + kk].to_f32());
            unsafe { pack_nk::<Bf16, _>(isa, h.as_ptr(), k, k, n, p.as_mut_ptr()) };
            check("f16 nk", &mut p, &|j, kk| h[j * k + kk].to_f32());
            unsafe { pack_kn::<Bf16, _>(isa, w.as_ptr(), n, k, n, p.as_mut_ptr()) };
            check("f32 kn", &mut p, &|j, kk| w[kk * n + j]);
            unsafe { pack_kn::<Bf16, _>(isa, b.as_ptr(), n, k, n, p.as_mut_ptr()) };
            check("bf16 kn", &mut p, &|j, kk| b[kk * n + j].to_f32());
            unsafe { pack_kn::<Bf16, _>(isa, h.as_ptr(), n, k, n, p.as_mut_ptr()) };
            check("f16 kn", &mut p, &|j, kk| h[kk * n + j].to_f32());
        }
    }
}
