//! Products of bfloat16: nearer to exact arithmetic than an iteration on a matrix that is held in bfloat16.

use super::*;
use serde_json::Value;

/// How far `got` is from `want`: a share of its Frobenius norm.
fn off(got: &[f32], want: &[f64]) -> f64 {
    let (mut apart, mut all) = (0.0, 0.0);
    for (&g, &w) in got.iter().zip(want) {
        apart += (f64::from(g) - w).powi(2);
        all += w * w;
    }
    (apart / all).sqrt()
}

/// Matrices of several spectra: no further from exact arithmetic than `torch.optim.Muon`, in either form.
#[test]
fn recorded_matrices_end_nearer_than_torchs() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let keys = ["name", "rows", "columns", "x", "off", "most"];
    let cases =
        recordings::golden(&tests, "newton_schulz_bf16.json", |case| recordings::has_keys(case, &keys));
    assert!(cases.len() >= 9, "{}", cases.len());
    let c = Coefficients::keller(5);
    for (file, case) in &cases {
        let size = |key: &str| case[key].as_u64().unwrap() as usize;
        let number = |key: &str| case[key].as_f64().unwrap();
        let (rows, columns) = (size("rows"), size("columns"));
        let x: Vec<f32> =
            case["x"].as_array().unwrap().iter().map(|x| Value::as_f64(x).unwrap() as f32).collect();
        let want = reference(&svd(&x, rows, columns), &c);
        for &isa in Isa::available() {
            for form in [Form::Standard, Form::Gram] {
                let got = with_isa(isa, || run_in(Compute::Bf16, &x, rows, columns, &c, form));
                let (off, most) = (off(&got, &want), gap(&got, &want));
                let what =
                    format!("{} {} {rows} x {columns}, {isa:?} {form:?}", file.display(), case["name"]);
                println!("{what}: {off:.4} of {:.4}, {most:.4} of {:.4}", number("off"), number("most"));
                assert!(off <= number("off") && most <= number("most"), "{what}: off by {off}, {most}");
                // Where the processor multiplies bfloat16 it is another path than that of fp32.
                assert_eq!(off > 1e-4, isa.has_bf16_dots(), "{what}: off by {off}");
            }
        }
    }
}

/// Every shape, with and without whole panels and pairs.
#[test]
fn every_shape_is_near_the_polynomial() {
    for &isa in Isa::available() {
        with_isa(isa, || {
            for (rows, columns) in SHAPES.into_iter().chain([(63, 100), (100, 65), (2, 3), (300, 41)]) {
                let x = values(rows * columns, 3);
                let svd = svd(&x, rows, columns);
                // Of few singular values none makes up for another's rounding, 2^-9 times the polynomial's slope.
                let most = if rows.min(columns) < 8 { 1e-1 } else { 3e-2 };
                for c in both() {
                    let want = reference(&svd, &c);
                    for form in [Form::Standard, Form::Gram, Form::Auto] {
                        let off = off(&run_in(Compute::Bf16, &x, rows, columns, &c, form), &want);
                        assert!(off < most, "{isa:?} {rows} x {columns} {form:?}: off by {off}");
                    }
                }
            }
        });
    }
}

/// Three decades of singular values (an iteration held in bfloat16 is off by 6e-2 to 1e-1).
#[test]
fn ill_conditioned() {
    for (rows, columns) in [(64, 64), (64, 160)] {
        let x = with_spectrum(rows, columns, 6, |i| 10_f64.powf(-3.0 * i as f64 / 63.0));
        let svd = svd(&x, rows, columns);
        for c in both() {
            let want = reference(&svd, &c);
            for form in [Form::Standard, Form::Gram] {
                let off = off(&run_in(Compute::Bf16, &x, rows, columns, &c, form), &want);
                println!("{rows} x {columns} {form:?} {:?}: off by {off:.1e}", c.triples()[0][0]);
                assert!(off < 5e-2, "{rows} x {columns} {form:?}: off by {off}");
            }
        }
    }
}

/// Powers of two change no bit, zero stays zero, and what is not finite is refused.
#[test]
fn scales_zeros_and_infinities() {
    let (rows, columns) = (40, 70);
    let (x, c) = (values(rows * columns, 9), Coefficients::keller(5));
    let of = |x: &[f32]| run_in(Compute::Bf16, x, rows, columns, &c, Form::Auto);
    for exponent in [-60, -3, 7, 50] {
        let scaled: Vec<f32> = x.iter().map(|x| x * 2_f32.powi(exponent)).collect();
        assert_eq!(of(&scaled), of(&x), "times 2^{exponent}");
    }
    assert!(of(&vec![0.0; rows * columns]).iter().all(|x| *x == 0.0));
    let mut bad = x.clone();
    bad[77] = f32::INFINITY;
    let iteration = Iteration { compute: Compute::Bf16, ..Iteration::default() };
    let mut out = vec![7.0; x.len()];
    assert!(orthogonalize(&bad, rows, columns, &iteration, &mut out).is_err());
    assert!(out.iter().all(|x| *x == 7.0));
}
