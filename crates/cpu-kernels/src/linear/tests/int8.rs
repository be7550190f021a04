//! Products of int8 are exact sums of the codes of both operands, scaled once.

use super::*;
use crate::few_bits::tests::{Codes, ROWS};
use burnish_core::{Dtype, PackedRows};

fn input(tokens: usize, k: usize) -> Vec<f32> {
    let value = |i: usize| (i as f32 * 0.37).sin() * (1.0 + (i % 11) as f32) * 0.2;
    (0..tokens * k).map(value).collect()
}

/// Rows of `k` codes that are multiplied.
fn codes(k: usize) -> Codes {
    let mut codes = Codes::new(0, k, Dtype::F32);
    codes.products = true;
    codes
}

fn decoded(isa: Isa, rows: &Codes, tokens: usize, k: usize, x: &[f32]) -> Vec<f32> {
    let weight = Weight::packed(rows);
    let layer = Linear { out: ROWS, weight, bias: None, low_rank: None, compute: Compute::Fp32 };
    with_isa(isa, || linears_decode(tokens, k, Input::Plain(x), &[layer], None))
}

#[test]
fn products_are_exact_sums_of_codes() {
    for k in [4, 64, 100, 1060] {
        let rows = codes(k);
        for tokens in [1, 2, 5, 8, 19, 40] {
            let x = input(tokens, k);
            for &isa in Isa::available() {
                let y = decoded(isa, &rows, tokens, k, &x);
                for (t, x) in x.chunks_exact(k).enumerate() {
                    let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    let codes: Vec<i64> =
                        x.iter().map(|x| (x * (127.0 / most)).round_ties_even() as i64).collect();
                    for row in 0..ROWS {
                        let own = rows.eight_bits(row, 0).unwrap();
                        let products = own.codes.iter().zip(&codes);
                        let sum: i64 = products.map(|(w, x)| i64::from(w.cast_signed()) * x).sum();
                        let want = sum as f32 * (most / 127.0 * (own.scales[0] * own.scales[1]));
                        let got = y[t * ROWS + row];
                        assert_eq!(
                            got.to_bits(),
                            want.to_bits(),
                            "{isa:?}, {tokens} x {k}, token {t}, row {row}: {got}, not {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn they_are_near_products_of_elements() {
    let (tokens, k) = (5, 640);
    let x = input(tokens, k);
    let mut rows = Codes::new(0, k, Dtype::F32);
    for &isa in Isa::available() {
        rows.products = false;
        let want = decoded(isa, &rows, tokens, k, &x);
        rows.products = true;
        let got = decoded(isa, &rows, tokens, k, &x);
        let top = want.iter().fold(0.0_f32, |top, y| top.max(y.abs()));
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= 0.02 * top, "{isa:?}: {got}, not {want}");
        }
        assert_ne!(got, want, "{isa:?}");
    }
}

#[test]
fn what_is_not_finite_stays_with_its_token() {
    let (tokens, k) = (4, 36);
    let rows = codes(k);
    for wrong in [f32::NAN, f32::INFINITY] {
        let mut x = input(tokens, k);
        x[k + 3] = wrong;
        x[2 * k..3 * k].fill(0.0);
        for &isa in Isa::available() {
            let y = decoded(isa, &rows, tokens, k, &x);
            for (t, y) in y.chunks_exact(ROWS).enumerate() {
                match t {
                    1 => assert!(y.iter().all(|y| y.is_nan()), "{isa:?}: {y:?}"),
                    2 => assert!(y.iter().all(|&y| y == 0.0), "{isa:?}: {y:?}"),
                    _ => assert!(y.iter().all(|y| y.is_finite()), "{isa:?}: {y:?}"),
                }
            }
        }
    }
}
