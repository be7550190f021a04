//! Newton–Schulz: kernels and the batched body against matrices whose singular vectors are known.

use burn::tensor::{DType, FloatDType, TensorData};
use burnish_core::Compute;
use burnish_core::random::Stream;
use burnish_ops::{AnyTensor, Form, NewtonSchulz, OpsError, Polynomials, Stacked, orthogonalize, reference};

use crate::case::{assert_close, device, tensor, to_f64};

/// f32 rounding (6e-8) times the slope of five polynomials at zero, 485 and 1000; and near one the first of Polar Express
/// is a difference of numbers of 20 whose slope is 17, four more after it.
const CLOSE: f64 = 6e-5;
/// The Gram matrix holds squares: of the smallest singular value here, 0.0015 of the norm, about 3% of it is rounding
/// (6e-8 of 2e-6); the result moves by less, as the polynomials are flat where they end.
const CLOSE_BY_SQUARES: f64 = 1e-3;
const FORMS: [Form; 3] = [Form::Auto, Form::Standard, Form::Gram];
const POLYNOMIALS: [Polynomials; 2] = [Polynomials::Quintic, Polynomials::PolarExpress];
const SHAPES: [[usize; 2]; 8] = [[1, 1], [1, 7], [7, 1], [5, 5], [5, 6], [33, 8], [17, 80], [64, 48]];

fn alone(tensor: AnyTensor) -> Vec<Stacked> {
    let blocks = vec![tensor.shape()[0]];
    vec![Stacked { tensor, blocks }]
}

fn fused(tensor: AnyTensor, iteration: &NewtonSchulz) -> AnyTensor {
    orthogonalize(alone(tensor), iteration).unwrap().remove(0)
}

fn plain(tensor: AnyTensor, iteration: &NewtonSchulz) -> AnyTensor {
    reference::orthogonalize(alone(tensor), iteration).unwrap().remove(0)
}

fn iterations() -> impl Iterator<Item = NewtonSchulz> {
    FORMS.into_iter().flat_map(|form| {
        POLYNOMIALS.map(|polynomials| NewtonSchulz { polynomials, form, ..NewtonSchulz::default() })
    })
}

/// `x - 2 v (vᵀ x) / vᵀv` on the rows' side, in f64.
fn reflect(x: &mut [f64], columns: usize, v: &[f64]) {
    let square: f64 = v.iter().map(|v| v * v).sum();
    for c in 0..columns {
        let dot: f64 = v.iter().enumerate().map(|(r, v)| v * x[r * columns + c]).sum();
        v.iter().enumerate().for_each(|(r, v)| x[r * columns + c] -= 2.0 * v * dot / square);
    }
}

fn transposed(x: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied()).collect()
}

/// A matrix with these singular values and fixed random singular vectors.
fn with_singular_values(values: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    let random = |name: &str, n: usize| -> Vec<f64> {
        (0..n).map(|i| f64::from(Stream::new(2, name).normal(i as u64))).collect()
    };
    let mut x = vec![0.0; rows * columns];
    values.iter().enumerate().for_each(|(i, &v)| x[i * columns + i] = v);
    for name in ["a", "b"] {
        reflect(&mut x, columns, &random(name, rows));
    }
    let mut x = transposed(&x, columns);
    for name in ["c", "d"] {
        reflect(&mut x, rows, &random(name, columns));
    }
    transposed(&x, rows)
}

fn in_f32(values: &[f64], shape: [usize; 2]) -> AnyTensor {
    AnyTensor::from_data(TensorData::new(values.to_vec(), shape).convert_dtype(DType::F32), &device())
}

/// The polynomials on singular values alone, vectors as they were: what any form on any backend has to give, within
/// f32; and for a spectrum of three decades the results are near one.
#[test]
fn singular_values_are_mapped_and_vectors_kept() {
    for shape in SHAPES {
        let n = shape[0].min(shape[1]);
        let singular: Vec<f64> = (0..n).map(|i| 3.0 * 0.003_f64.powf(i as f64 / n as f64)).collect();
        let x = with_singular_values(&singular, shape);
        let norm = singular.iter().map(|s| s * s).sum::<f64>().sqrt();
        for iteration in iterations() {
            let mapped: Vec<f64> = singular
                .iter()
                .map(|s| {
                    iteration.triples().into_iter().fold(s / (norm * iteration.margin()), |s, [a, b, c]| {
                        a * s + b * s.powi(3) + c * s.powi(5)
                    })
                })
                .collect();
            assert!(mapped.iter().all(|s| (0.4..1.25).contains(s)), "{iteration:?} {mapped:?}");
            let want = with_singular_values(&mapped, shape);
            let name = format!("{shape:?} {iteration:?}");
            let close = if iteration.form == Form::Standard { CLOSE } else { CLOSE_BY_SQUARES };
            assert_close(&to_f64(&fused(in_f32(&x, shape), &iteration)), &want, close, &name);
            assert_close(
                &to_f64(&plain(in_f32(&x, shape), &iteration)),
                &want,
                close,
                &format!("{name}, plain"),
            );
            let wide = in_f32(&x, shape).cast(FloatDType::F64);
            let exact = AnyTensor::from_data(TensorData::new(x.clone(), shape), &device());
            assert_eq!(fused(wide.clone(), &iteration).dtype(), wide.dtype(), "f64 is the reference body's");
            assert_close(&to_f64(&plain(exact, &iteration)), &want, 1e-9, &format!("{name}, f64"));
        }
    }
}

/// There is no floor under the norm, and no square leaves f32.
#[test]
fn any_scale_gives_the_same() {
    for shape in [[6, 9], [12, 5]] {
        let x = tensor("scale", &shape);
        for iteration in iterations() {
            for body in [fused, plain] {
                let want = to_f64(&body(x.clone(), &iteration));
                for scale in [1e-30_f32, 1e-20, 1e-7, 1e6, 1e20, 1e37] {
                    let scaled = AnyTensor::new(x.rank::<2>().unwrap() * scale);
                    let name = format!("{shape:?} {iteration:?} times {scale}");
                    assert_close(&to_f64(&body(scaled, &iteration)), &want, CLOSE, &name);
                }
            }
        }
    }
}

#[test]
fn zero_stays_and_what_is_not_finite_spoils_itself_alone() {
    let (zero, good) = (vec![0.0_f32; 12], tensor("good", &[3, 4]).to_f32());
    for spoil in [f32::NAN, f32::INFINITY] {
        let mut bad = good.clone();
        bad[5] = spoil;
        for iteration in iterations() {
            for body in [orthogonalize, reference::orthogonalize] {
                let values = [zero.clone(), bad.clone(), good.clone()].concat();
                let stack = AnyTensor::from_elements(values, &[3, 3, 4], &device());
                let done = body(vec![Stacked { tensor: stack, blocks: vec![3; 3] }], &iteration).unwrap();
                assert_eq!(done[0].shape(), [3, 3, 4]);
                let done = done[0].to_f32();
                assert!(done[..12].iter().all(|&x| x == 0.0), "{iteration:?}");
                assert!(done[12..24].iter().all(|x| x.is_nan()), "{iteration:?} {spoil}: {done:?}");
                assert!(done[24..].iter().all(|x| x.is_finite()), "{iteration:?}");
            }
        }
    }
}

/// Batches of equal shapes, blocks and single matrices have the same bits, and what others hold is not changed.
#[test]
fn stacks_are_their_matrices() {
    let (a, b) = (tensor("a", &[7, 6]), tensor("b", &[2, 3, 6]));
    let held = a.to_f32();
    let cut =
        |t: &AnyTensor, rows: std::ops::Range<usize>| t.piece(rows.start * 6..rows.end * 6, &[rows.len(), 6]);
    for iteration in iterations() {
        let stacks = || {
            vec![
                Stacked { tensor: a.clone(), blocks: vec![3, 1, 3] },
                Stacked { tensor: b.clone(), blocks: vec![3, 3] },
            ]
        };
        let together = orthogonalize(stacks(), &iteration).unwrap();
        let parts = [cut(&a, 0..3), cut(&a, 3..4), cut(&a, 4..7), cut(&b, 0..3), cut(&b, 3..6)];
        let parts: Vec<f32> = parts.into_iter().flat_map(|p| fused(p, &iteration).to_f32()).collect();
        assert_eq!([together[0].to_f32(), together[1].to_f32()].concat(), parts, "{iteration:?}");
        assert_eq!(a.to_f32(), held);
        let plain = reference::orthogonalize(stacks(), &iteration).unwrap();
        for (fused, plain) in together.iter().zip(&plain) {
            assert_eq!(fused.shape(), plain.shape());
            assert_close(&to_f64(fused), &to_f64(plain), CLOSE, &format!("{iteration:?}"));
        }
    }
    let nothing =
        Stacked { tensor: AnyTensor::from_elements(Vec::<f32>::new(), &[0, 4], &device()), blocks: vec![] };
    assert_eq!(orthogonalize(vec![nothing], &NewtonSchulz::default()).unwrap()[0].shape(), [0, 4]);
}

#[test]
fn more_and_fewer_steps() {
    let shape = [9, 14];
    let x = tensor("steps", &shape);
    for steps in [1, 2, 3, 7, 12] {
        for polynomials in POLYNOMIALS {
            for form in FORMS {
                let iteration = NewtonSchulz { polynomials, steps, form, ..NewtonSchulz::default() };
                let want = to_f64(&plain(x.cast(FloatDType::F64), &iteration));
                // Each step past the fifth may move a result by the same share again.
                assert_close(&to_f64(&fused(x.clone(), &iteration)), &want, 1e-4, &format!("{iteration:?}"));
            }
        }
    }
}

/// Products of bfloat16 are made where the processor has them, and end near those of fp32; a zero matrix stays zero.
#[test]
fn products_of_bfloat16() {
    let x = tensor("narrow", &[40, 70]);
    for iteration in iterations() {
        let narrow = NewtonSchulz { compute: Compute::Bf16, ..iteration };
        let (got, want) = (to_f64(&fused(x.clone(), &narrow)), to_f64(&fused(x.clone(), &iteration)));
        let off = got.iter().zip(&want).map(|(g, w)| (g - w).powi(2)).sum::<f64>();
        let off = (off / want.iter().map(|w| w * w).sum::<f64>()).sqrt();
        assert!(off < 2e-2, "{narrow:?}: off by {off}");
        assert_eq!(off > 1e-4, burnish_cpu_kernels::isa().has_bf16_dots(), "{narrow:?}: off by {off}");
        let zero = AnyTensor::from_elements(vec![0.0_f32; 12], &[3, 4], &burn::tensor::Device::flex());
        assert!(to_f64(&fused(zero, &narrow)).iter().all(|x| *x == 0.0));
    }
}

#[test]
fn refused() {
    let iteration = NewtonSchulz::default();
    let stack = Stacked { tensor: tensor("a", &[4, 3]), blocks: vec![2, 1] };
    let error = orthogonalize(vec![stack], &iteration).unwrap_err();
    assert!(
        matches!(&error, OpsError::Shape { got, expected, .. } if got == &[2, 1] && expected == &[4]),
        "{error}"
    );
    let error = orthogonalize(alone(tensor("a", &[4, 3]).cast(FloatDType::BF16)), &iteration).unwrap_err();
    assert!(matches!(error, OpsError::Dtype { expected: "float32", .. }), "{error}");
    let error = "keller".parse::<Polynomials>().unwrap_err();
    assert!(error.to_string().contains("unknown polynomials `keller`"), "{error}");
}
