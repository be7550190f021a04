#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, reason = "tests")]

mod bf16;
mod pieces;
mod svd;

use super::*;
use crate::simd::with_isa;
use burnish_core::Compute;
use proptest::prelude::*;
use svd::{Svd, svd};

/// Reproducible values in `[-1, 1)`.
fn values(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| burnish_core::random::mix32(i ^ seed.wrapping_mul(77_777)) as f32 / 2_147_483_648.0 - 1.0)
        .collect()
}

/// A matrix with these singular values (as many as its short side) and the vectors of a pseudo-random one.
fn with_spectrum(rows: usize, columns: usize, seed: u32, sigma: impl Fn(usize) -> f64) -> Vec<f32> {
    let mut svd = svd(&values(rows * columns, seed), rows, columns);
    svd.sigma = (0..svd.sigma.len()).map(sigma).collect();
    svd.product().into_iter().map(|x| x as f32).collect()
}

fn run(x: &[f32], rows: usize, columns: usize, coefficients: &Coefficients, form: Form) -> Vec<f32> {
    run_in(Compute::Fp32, x, rows, columns, coefficients, form)
}

fn run_in(
    compute: Compute,
    x: &[f32],
    rows: usize,
    columns: usize,
    coefficients: &Coefficients,
    form: Form,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    let iteration = Iteration { coefficients: coefficients.clone(), form, compute };
    orthogonalize(x, rows, columns, &iteration, &mut out).unwrap();
    out
}

/// What exact arithmetic makes of a singular value that is already divided by the norm.
fn exact(coefficients: &Coefficients, sigma: f64) -> f64 {
    coefficients.triples().iter().fold(sigma, |x, [a, b, c]| x * (a + x * x * (b + c * x * x)))
}

/// `U p(Σ/‖X‖) Vᵀ` in double precision.
fn reference(svd: &Svd, coefficients: &Coefficients) -> Vec<f64> {
    let norm = coefficients.margin() * svd.sigma.iter().map(|s| s * s).sum::<f64>().sqrt();
    let mut image = svd.clone();
    image.sigma.iter_mut().for_each(|s| *s = exact(coefficients, *s / norm));
    image.product()
}

/// The largest difference.
fn gap(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |top, (&g, w)| {
        let gap = (f64::from(g) - w).abs();
        if gap > top || gap.is_nan() { gap } else { top }
    })
}

fn both() -> [Coefficients; 2] {
    [Coefficients::keller(5), Coefficients::polar_express(5)]
}

const SHAPES: [(usize, usize); 9] =
    [(1, 1), (1, 40), (33, 1), (7, 7), (32, 32), (16, 48), (48, 40), (65, 33), (40, 300)];

#[test]
fn polynomial_of_the_singular_values_with_the_same_vectors() {
    for &isa in Isa::available() {
        with_isa(isa, || {
            for (rows, columns) in SHAPES {
                let x = values(rows * columns, 3);
                let svd = svd(&x, rows, columns);
                for c in both() {
                    let want = reference(&svd, &c);
                    for form in [Form::Standard, Form::Gram, Form::Auto] {
                        let gap = gap(&run(&x, rows, columns, &c, form), &want);
                        assert!(gap < 5e-5, "{isa:?} {rows} x {columns} {form:?}: off by {gap}");
                    }
                }
            }
        });
    }
}

/// The ranges of the polynomials, from singular values between 0.003 of the norm and the norm.
#[test]
fn singular_values_land_in_the_stated_ranges() {
    let (rows, columns) = (24, 64);
    // From about half of the norm down to 0.003 of it.
    let x = with_spectrum(rows, columns, 5, |i| 0.006_f64.powf(i as f64 / (rows - 1) as f64));
    for (c, low, high) in
        [(Coefficients::keller(5), 0.682, 1.2025), (Coefficients::polar_express(5), 0.859, 1.141)]
    {
        for form in [Form::Standard, Form::Gram] {
            let sigma = svd(&run(&x, rows, columns, &c, form), rows, columns).sigma;
            assert!(
                sigma.iter().all(|s| (low - 1e-4..=high + 1e-4).contains(s)),
                "{form:?}: {sigma:?} outside [{low}, {high}]"
            );
        }
        // The polynomials themselves, over all of [0.003, 1].
        for i in 0..=1000 {
            let y = exact(&c, 0.003_f64.powf(f64::from(i) / 1000.0) / c.margin());
            assert!((low - 1e-3..=high + 1e-3).contains(&y), "{y} outside [{low}, {high}]");
        }
    }
}

/// Six decades of singular values: both forms keep to rounding times the slope at zero (485 and 970).
#[test]
fn ill_conditioned() {
    let (rows, columns) = (64, 96);
    let x = with_spectrum(rows, columns, 6, |i| 10_f64.powf(-6.0 * i as f64 / 63.0));
    let svd = svd(&x, rows, columns);
    for c in both() {
        let want = reference(&svd, &c);
        for (form, limit) in [(Form::Standard, 2e-5), (Form::Gram, 1e-4)] {
            let gap = gap(&run(&x, rows, columns, &c, form), &want);
            println!("{form:?} {:?}: off by {gap:.1e}", c.triples()[0][0]);
            assert!(gap < limit, "{form:?}: off by {gap}");
        }
    }
}

#[test]
fn rank_deficient_and_zero() {
    let (rows, columns, rank) = (40, 50, 3);
    let x = with_spectrum(rows, columns, 8, |i| if i < rank { 1.0 + i as f64 } else { 0.0 });
    for c in both() {
        for form in [Form::Standard, Form::Gram] {
            let sigma = svd(&run(&x, rows, columns, &c, form), rows, columns).sigma;
            assert!(sigma[..rank].iter().all(|s| (0.65..1.21).contains(s)), "{form:?} {:?}", &sigma[..rank]);
            // Rounding of the input, 1e-8 of its norm, grows by the slope at zero (485 and 970).
            assert!(sigma[rank] < 1e-3, "{form:?}: a direction of rounding has {}", sigma[rank]);
            assert!(run(&[0.0; 12], 3, 4, &c, form).iter().all(|x| *x == 0.0));
            assert!(run(&[], 0, 4, &c, form).is_empty());
            assert!(run(&[], 4, 0, &c, form).is_empty());
        }
    }
}

/// A vector becomes its direction times the polynomial at 1, whatever its length.
#[test]
fn one_row() {
    let c = Coefficients::keller(5);
    let y = exact(&c, 1.0);
    for (rows, columns) in [(1, 5), (5, 1)] {
        let out = run(&[3.0, 0.0, -4.0, 0.0, 0.0], rows, columns, &c, Form::Auto);
        assert!(gap(&out, &[0.6 * y, 0.0, -0.8 * y, 0.0, 0.0]) < 1e-5);
    }
}

/// Powers of two change no bit, others no more than rounding: there is no floor and nothing over- or underflows.
#[test]
fn scale_of_the_input_does_not_matter() {
    let (rows, columns) = (24, 40);
    let x = values(rows * columns, 9);
    let svd = svd(&x, rows, columns);
    for c in both() {
        let want = reference(&svd, &c);
        for form in [Form::Standard, Form::Gram] {
            let plain = run(&x, rows, columns, &c, form);
            let times = |s: f32| run(&x.iter().map(|x| x * s).collect::<Vec<_>>(), rows, columns, &c, form);
            for exponent in [-100, -60, 20, 126] {
                assert_eq!(times(2_f32.powi(exponent)), plain, "2^{exponent}");
            }
            for s in [1e6, 1e-20, 1e-30, 3e38] {
                let gap = gap(&times(s), &want);
                assert!(gap < 2e-5, "{form:?} times {s:e}: off by {gap}");
            }
            // Subnormal inputs: fewer bits, the same direction.
            assert!(gap(&times(1e-41), &want) < 1e-2);
        }
    }
}

#[test]
fn what_is_not_finite_is_named_and_nothing_is_written() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = values(40_000, 1);
        x[35_003] = bad;
        let mut out = vec![7.0; x.len()];
        let error = orthogonalize(&x, 400, 100, &Iteration::default(), &mut out).unwrap_err();
        assert!(matches!(error, OrthogonalError::NotFinite { matrix: 0, row: 350, column: 3, value }
            if value.to_bits() == bad.to_bits()));
        assert!(out.iter().all(|x| *x == 7.0));
        let mut good = values(12, 2);
        let before = good.clone();
        let mut batch = [
            Matrix { values: &mut good, rows: 3, columns: 4 },
            Matrix { values: &mut x, rows: 400, columns: 100 },
        ];
        let error = orthogonalize_all(&mut batch, &Iteration::default()).unwrap_err();
        assert!(error.to_string().contains("matrix 1 holds"), "{error}");
        assert_eq!(good, before);
    }
}

/// In a batch or alone, on one thread or three, cut among threads or whole: the same bits.
#[test]
fn bits_depend_on_neither_threads_nor_batch() {
    let shapes =
        [(1, 3), (70, 300), (33, 65), (128, 128), (300, 70), (16, 16), (64, 64), (64, 64), (160, 100)];
    let forms = [Form::Standard, Form::Gram].into_iter();
    for (form, compute) in forms.flat_map(|form| [(form, Compute::Fp32), (form, Compute::Bf16)]) {
        for c in both() {
            let iteration = Iteration { coefficients: c.clone(), form, compute };
            let of = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut data: Vec<Vec<f32>> = (0..).zip(shapes).map(|(i, (r, c))| values(r * c, i)).collect();
                pool.install(|| {
                    let alone: Vec<_> = data
                        .iter()
                        .zip(shapes)
                        .map(|(x, (r, n))| run_in(compute, x, r, n, &c, form))
                        .collect();
                    let mut batch: Vec<_> = data
                        .iter_mut()
                        .zip(shapes)
                        .map(|(values, (rows, columns))| Matrix { values, rows, columns })
                        .collect();
                    orthogonalize_all(&mut batch, &iteration).unwrap();
                    assert_eq!(data, alone);
                    alone
                })
            };
            assert_eq!(of(1), of(3));
        }
    }
}

/// A matrix and its transpose: the same values transposed, up to rounding.
#[test]
fn orientation_does_not_matter() {
    for (rows, columns) in [(40, 100), (64, 64), (33, 34)] {
        let x = values(rows * columns, 4);
        let turn = |x: &[f32], rows: usize, columns: usize| -> Vec<f32> {
            (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
        };
        for form in [Form::Standard, Form::Gram] {
            let c = Coefficients::polar_express(5);
            let a = run(&x, rows, columns, &c, form);
            let b = run(&turn(&x, rows, columns), columns, rows, &c, form);
            let back: Vec<f64> = turn(&b, columns, rows).into_iter().map(f64::from).collect();
            let gap = gap(&a, &back);
            assert!(gap < 5e-5, "{rows} x {columns} {form:?}: off by {gap}");
        }
    }
}

#[test]
fn no_steps_change_nothing() {
    let x = values(12, 1);
    assert_eq!(run(&x, 3, 4, &Coefficients::keller(0), Form::Auto), x);
}

/// Many steps of Polar Express converge to the polar factor, also in the Gram form (several legs).
#[test]
fn many_steps_reach_the_polar_factor() {
    let (rows, columns) = (20, 70);
    let x = values(rows * columns, 12);
    let mut polar = svd(&x, rows, columns);
    polar.sigma.fill(1.0);
    let mut triples = Coefficients::polar_express(5).triples().to_vec();
    // Newton–Schulz of order five, which converges.
    triples.extend([[1.875, -1.25, 0.375]; 7]);
    let c = Coefficients::new(triples, 1.02);
    assert!(c.gram_legs().len() > 1);
    for form in [Form::Standard, Form::Gram] {
        let gap = gap(&run(&x, rows, columns, &c, form), &polar.product());
        assert!(gap < 1e-5, "{form:?}: off by {gap}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Gram and standard forms agree, on any shape and at any scale.
    #[test]
    fn forms_agree(
        rows in 1_usize..90, columns in 1_usize..90, seed in 0_u32..1000, scale in -30_i32..30, isa in 0_usize..3,
        polar in any::<bool>(),
    ) {
        let isa = Isa::available()[isa % Isa::available().len()];
        let scale = 10_f32.powi(scale);
        let x: Vec<f32> = values(rows * columns, seed).into_iter().map(|x| x * scale).collect();
        let c = if polar { Coefficients::polar_express(5) } else { Coefficients::keller(5) };
        let (a, b) = with_isa(isa, || {
            (run(&x, rows, columns, &c, Form::Standard), run(&x, rows, columns, &c, Form::Gram))
        });
        let a: Vec<f64> = a.into_iter().map(f64::from).collect();
        let gap = gap(&b, &a);
        prop_assert!(gap < 1e-4, "off by {}", gap);
        // No column or row of an orthogonal matrix is longer than the polynomials' maximum.
        let square: f64 = a.iter().map(|x| x * x).sum();
        prop_assert!(square <= 1.21 * 1.21 * rows.min(columns) as f64);
    }
}
