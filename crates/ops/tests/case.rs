//! An operation with random inputs, held against itself on another body or in another dtype.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burnish_core::random::Stream;
use burnish_ops::{AnyTensor, OpsError};

/// Of the largest element. The longest sums here have some 300 terms: 6e-8 * sqrt(300) is 1e-6 per stage, and an
/// operation has a handful of stages (norm, two products, softmax) in both directions.
pub(crate) const F32: f64 = 1e-5;
/// Of the largest element: truncation of a central difference is `h^2` = 1e-10, its rounding 1e-16 / `h` = 1e-11.
pub(crate) const DIFFERENCE: f64 = 1e-6;
/// Of the largest element, where a product is in a 16-bit weight's dtype: bf16 rounds to 4e-3 of a number, and an
/// operation has a few such roundings in a row.
pub(crate) const HALF: f64 = 2e-2;
const H: f64 = 1e-5;

/// Which body computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Body {
    /// Whatever the tensors' backend has.
    Fused,
    /// Plain Burn operations.
    Reference,
    /// What GPUs run, here.
    Gpu,
}

/// A random input.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    /// At rest; arithmetic is in f32 (or f64, when the whole case is).
    pub(crate) dtype: DType,
    pub(crate) scale: f32,
    pub(crate) shift: f32,
}

impl Input {
    pub(crate) fn new(name: &'static str, shape: &[usize], scale: f32) -> Self {
        Self { name, shape: shape.to_vec(), dtype: DType::F32, scale, shift: 0.0 }
    }

    pub(crate) fn values(&self) -> TensorData {
        let s = Stream::new(23, self.name);
        let count: usize = self.shape.iter().product();
        let values: Vec<f32> = (0..count as u64).map(|i| self.shift + self.scale * s.normal(i)).collect();
        TensorData::new(values, self.shape.clone()).convert_dtype(self.dtype)
    }
}

type Run = Box<dyn Fn(Body, &[AnyTensor]) -> Result<AnyTensor, OpsError>>;

/// An operation on inputs; its output is a matrix.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) inputs: Vec<Input>,
    pub(crate) run: Run,
}

/// An output and the gradients of the tracked inputs, under a fixed random upstream gradient.
pub(crate) struct Found {
    pub(crate) value: Vec<f64>,
    pub(crate) gradients: Vec<Option<Vec<f64>>>,
}

pub(crate) fn device() -> Device {
    Device::flex()
}

pub(crate) fn tensor(name: &'static str, shape: &[usize]) -> AnyTensor {
    AnyTensor::from_data(Input::new(name, shape, 1.0).values(), &device())
}

/// Norms of a weight, as a magnitude needs them: positive, of the magnitude's order.
pub(crate) fn norms(out: usize) -> AnyTensor {
    AnyTensor::from_data(Input { shift: 1.5, ..Input::new("norm", &[out], 0.2) }.values(), &device())
}

pub(crate) fn to_f64(t: &AnyTensor) -> Vec<f64> {
    t.to_data().convert_dtype(DType::F64).try_into_vec().unwrap()
}

/// `sum(out * upstream)` with upstream gradients of the output's dtype.
fn scalar(out: &AnyTensor) -> Tensor<1> {
    let upstream = Input::new("upstream", &out.shape(), 1.0).values();
    let upstream: Tensor<2> = Tensor::from_data(upstream, (&device(), dtype_of(out)));
    (out.rank::<2>().unwrap() * upstream).sum()
}

fn dtype_of(t: &AnyTensor) -> DType {
    t.to_data().dtype()
}

impl Case {
    /// Inputs at rest as they are, or all in f64 with the same values.
    fn tensors(&self, f64: bool) -> Vec<AnyTensor> {
        let data = |i: &Input| if f64 { i.values().convert_dtype(DType::F64) } else { i.values() };
        self.inputs.iter().map(|i| AnyTensor::from_data(data(i), &device())).collect()
    }

    pub(crate) fn find(&self, body: Body, f64: bool, tracked: &[bool]) -> Found {
        let tensors: Vec<AnyTensor> =
            self.tensors(f64).into_iter().zip(tracked).map(|(t, &w)| if w { t.leaf() } else { t }).collect();
        let out = (self.run)(body, &tensors).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert_eq!(out.is_tracked(), tracked.contains(&true), "{}", self.name);
        // Whatever the weights are stored in, but for what GPUs leave in that dtype.
        let dtype = if f64 { DType::F64 } else { DType::F32 };
        let narrow = body == Body::Gpu && self.inputs.iter().any(|i| i.dtype == dtype_of(&out));
        assert!(narrow || dtype_of(&out) == dtype, "{}", self.name);
        let value = to_f64(&out);
        if !out.is_tracked() {
            return Found { value, gradients: vec![None; tensors.len()] };
        }
        let mut gradients = scalar(&out).backward();
        let gradients = tensors.iter().zip(tracked).map(|(t, &w)| {
            let gradient = w.then(|| t.take_gradient(&mut gradients)).flatten();
            gradient.inspect(|g| assert_eq!((g.shape(), dtype_of(g)), (t.shape(), dtype))).map(|g| to_f64(&g))
        });
        Found { value, gradients: gradients.collect() }
    }

    /// The fused body equals the reference body in f64, and so does the reference body in f32: values and gradients,
    /// whichever inputs are tracked.
    pub(crate) fn agrees(&self) {
        let n = self.inputs.len();
        let narrow = self.inputs.iter().any(|i| matches!(i.dtype, DType::BF16 | DType::F16));
        let all = vec![true; n];
        let want = self.find(Body::Reference, true, &all);
        let mut masks = vec![all, vec![false; n]];
        masks.extend((0..n).map(|i| (0..n).map(|j| i == j).collect()));
        for tracked in masks {
            for body in [Body::Fused, Body::Reference, Body::Gpu] {
                let tolerance = if narrow && body == Body::Gpu { HALF } else { F32 };
                let got = self.find(body, false, &tracked);
                let name = format!("{}, {body:?}, tracked {tracked:?}", self.name);
                assert_close(&got.value, &want.value, tolerance, &format!("{name}: value"));
                for (i, (got, want)) in got.gradients.iter().zip(&want.gradients).enumerate() {
                    assert_eq!(got.is_some(), tracked[i], "{name}: {}", self.inputs[i].name);
                    if let (Some(got), Some(want)) = (got, want) {
                        assert_close(
                            got,
                            want,
                            tolerance,
                            &format!("{name}: gradient of {}", self.inputs[i].name),
                        );
                    }
                }
            }
        }
    }

    /// The reference body's gradients, in f64, are the central differences of its values.
    pub(crate) fn differentiates(&self) {
        let all = vec![true; self.inputs.len()];
        let found = self.find(Body::Reference, true, &all);
        let plain = self.tensors(true);
        for (i, input) in self.inputs.iter().enumerate() {
            let start: Vec<f64> = to_f64(&plain[i]);
            let at = |element: usize, step: f64| -> f64 {
                let mut values = start.clone();
                values[element] += step;
                let mut tensors = plain.clone();
                tensors[i] = AnyTensor::from_data(TensorData::new(values, input.shape.clone()), &device());
                let out = (self.run)(Body::Reference, &tensors).unwrap();
                to_f64(&AnyTensor::new(scalar(&out)))[0]
            };
            let differences: Vec<f64> =
                (0..start.len()).map(|e| (at(e, H) - at(e, -H)) / (2.0 * H)).collect();
            let gradient = found.gradients[i].as_ref().unwrap();
            assert_close(gradient, &differences, DIFFERENCE, &format!("{}: {}", self.name, input.name));
        }
    }
}

/// Each number within `tolerance` of the largest.
#[track_caller]
pub(crate) fn assert_close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0f64, |a, b| a.max(b.abs()));
    assert!(largest > 0.0, "{what}: all zero, the comparison says nothing");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance * largest,
            "{what} [{i}]: {g} is not {w}, the largest is {largest}"
        );
    }
}
