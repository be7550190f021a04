#![allow(clippy::undocumented_unsafe_blocks, reason = "tests")]

use super::*;
use crate::operand::{Bf16, Fp32};
use crate::pack::{extra_columns, extra_constant, pack_kn, pack_nk, pack_rows};
use crate::simd::{Element, Store};

fn values(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| burnish_core::random::mix32(i ^ seed.wrapping_mul(77_777)) as f32 / 2_147_483_648.0 - 1.0)
        .collect()
}

/// [`values`] that the operand holds exactly.
fn exact<O: Operand>(n: usize, seed: u32) -> Vec<f32> {
    values(n, seed).into_iter().map(|x| O::Value::narrow(x).widen()).collect()
}

fn close(got: &[f32], want: &[f64], what: &str) {
    let top = want.iter().fold(1e-30_f64, |m, x| m.max(x.abs()));
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= 1e-5 * top, "{what}: element {i} is {g}, not {w}");
    }
}

/// `[x | t | 1] [[W^T], [B^T], [bias]]` in one GEMM, weights packed either way, every tail.
#[test]
fn packed_gemm_with_extra_columns() {
    packed_gemm::<Fp32>();
    packed_gemm::<Bf16>();
}

fn packed_gemm<O: Operand>() {
    for &isa in Isa::available() {
        for (m, k, n, r) in [
            (1, 5, 3, 0),
            (13, 16, 33, 1),
            (14, 100, 32, 17),
            (65, 512, 70, 16),
            (29, 300, 16, 64),
            (5, 256, 40, 300),
            (3, 1027, 35, 601),
        ] {
            let d = Depth::new(O::words(k), O::words(r) + 1);
            let values = exact::<O>;
            let (x, w, t, b, bias) = (
                values(m * k, 1),
                values(n * k, 2),
                values(m * r, 3),
                values(n * r, 4),
                super::tests::values(n, 5),
            );
            let mut want = vec![0.0; m * n];
            for i in 0..m {
                for j in 0..n {
                    let base: f64 = (0..k).map(|c| f64::from(x[i * k + c]) * f64::from(w[j * k + c])).sum();
                    let low: f64 = (0..r).map(|c| f64::from(t[i * r + c]) * f64::from(b[j * r + c])).sum();
                    want[i * n + j] = base + 2.0 * low + f64::from(bias[j]);
                }
            }
            let mut a = vec![f32::NAN; d.a_len(m)];
            let np = n.div_ceil(NR);
            let (mut nk, mut kn) = (vec![f32::NAN; np * d.panel_len()], vec![f32::NAN; np * d.panel_len()]);
            let wt: Vec<f32> = (0..k * n).map(|i| w[(i % n) * k + i / n]).collect();
            let bt: Vec<f32> = (0..r * n).map(|i| b[(i % n) * r + i / n]).collect();
            unsafe {
                pack_rows::<O>(isa, m, k, d, x.as_ptr(), k, a.as_mut_ptr());
                extra_columns::<O>(isa, m, d, a.as_mut_ptr(), 0, t.as_ptr(), r, 2.0);
                extra_constant(m, d, a.as_mut_ptr(), O::words(r), O::ones());
                for p in 0..np {
                    let (j, jn) = (p * NR, (n - p * NR).min(NR));
                    let to = nk.as_mut_ptr().add(p * d.panel_len());
                    pack_nk::<O, f32>(isa, w.as_ptr().add(j * k), k, k, jn, to);
                    pack_nk::<O, f32>(isa, b.as_ptr().add(j * r), r, r, jn, to.add(d.k * NR));
                    constants::<O>(&bias[j..j + jn], to.add((d.k + O::words(r)) * NR));
                    let to = kn.as_mut_ptr().add(p * d.panel_len());
                    pack_kn::<O, f32>(isa, wt.as_ptr().add(j), n, k, jn, to);
                    pack_kn::<O, f32>(isa, bt.as_ptr().add(j), n, r, jn, to.add(d.k * NR));
                    constants::<O>(&bias[j..j + jn], to.add((d.k + O::words(r)) * NR));
                }
            }
            let bits = |panel: &[f32]| panel.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&nk), bits(&kn));
            let mut c = vec![f32::NAN; m * n];
            unsafe { gemm::<O>(isa, m, a.as_ptr(), d, nk.as_ptr(), n, c.as_mut_ptr(), n, 1.0, false) };
            close(&c, &want, &format!("{isa:?} {m} x {k} x {n} + {r}"));
            unsafe { gemm::<O>(isa, m, a.as_ptr(), d, nk.as_ptr(), n, c.as_mut_ptr(), n, 2.0, true) };
            let thrice: Vec<f64> = want.iter().map(|x| 3.0 * x).collect();
            close(&c, &thrice, "added");
        }
    }
}

/// A panel's row of biases.
unsafe fn constants<O: Operand>(bias: &[f32], to: *mut f32) {
    for j in 0..NR {
        *to.add(j) = O::constant(bias.get(j).copied().unwrap_or(0.0));
    }
}

#[test]
fn outer_product_form_leaves_the_margin() {
    outer_product::<Fp32>();
    outer_product::<Bf16>();
}

fn outer_product<O: Operand>() {
    for &isa in Isa::available() {
        for (m, i, j) in [(1, 1, 1), (7, 5, 33), (64, 16, 100), (200, 17, 48), (700, 25, 41)] {
            let (a, b) = (exact::<O>(m * i, 1), exact::<O>(m * j, 2));
            let want: Vec<f64> = (0..i * j)
                .map(|e| (0..m).map(|t| f64::from(a[t * i + e / j]) * f64::from(b[t * j + e % j])).sum())
                .collect();
            let ldc = j + 3;
            let mut c = vec![7.0; i * ldc];
            let (mut left, mut right) = (vec![f32::NAN; O::room(m, i)], vec![f32::NAN; O::room(m, j)]);
            unsafe {
                let (a, lda) = O::stacked(isa, m, i, a.as_ptr(), i, left.as_mut_ptr());
                let (b, ldb) = O::stacked(isa, m, j, b.as_ptr(), j, right.as_mut_ptr());
                gemm_tn::<O>(isa, O::words(m), i, j, a, lda, b, ldb, c.as_mut_ptr(), ldc, 1.0, false);
            }
            let got: Vec<f32> = (0..i * j).map(|e| c[(e / j) * ldc + e % j]).collect();
            close(&got, &want, &format!("{isa:?} tn {m} {i} {j}"));
            assert!((0..i).all(|r| c[r * ldc + j..(r + 1) * ldc].iter().all(|&x| x == 7.0)));
        }
    }
}

/// Long sums in parts, rows of B that one tile keeps for the next: each row has the bits that it has alone.
#[test]
fn bits_of_a_row_are_its_own() {
    rows_alone::<Fp32>();
    rows_alone::<Bf16>();
}

fn rows_alone<O: Operand>() {
    let k = 700;
    for &isa in Isa::available() {
        for (m, n) in [(13, 9), (13, 16), (19, 31), (40, 70)] {
            let (a, b) = (exact::<O>(m * k, 3), exact::<O>(n * k, 4));
            let product = |rows: std::ops::Range<usize>| {
                let mut c = vec![f32::NAN; rows.len() * n];
                let (i, a) = (rows.len(), &a[rows.start..]);
                let (b, to) = (b.as_ptr(), c.as_mut_ptr());
                unsafe { gemm_tn::<O>(isa, k, i, n, a.as_ptr(), m, b, n, to, n, 0.5, false) };
                c
            };
            let all = product(0..m);
            for (row, want) in all.chunks(n).enumerate() {
                let same = product(row..row + 1).iter().zip(want).all(|(x, y)| x.to_bits() == y.to_bits());
                assert!(same, "{isa:?}: row {row} of {m} x {n}");
            }
        }
    }
}
