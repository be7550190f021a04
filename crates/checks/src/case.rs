//! An operation with random inputs, on the device and by its reference body on the processor.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burnish_core::random::Stream;
use burnish_core::{Dtype, PackedRows, Quantization};
use burnish_ops::{AnyTensor, OpsError};
use burnish_quant::{Quantized, Values};

/// Which body computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// What the device has.
    Device,
    /// Plain Burn operations in f64.
    Reference,
}

/// A random input.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) scale: f32,
    pub(crate) shift: f32,
    /// Whether its gradient is wanted.
    pub(crate) tracked: bool,
    /// How it rests in fewer bits.
    packed: Option<Quantization>,
}

impl Input {
    pub(crate) fn new(name: &'static str, shape: &[usize], scale: f32) -> Self {
        Self {
            name,
            shape: shape.to_vec(),
            dtype: DType::F32,
            scale,
            shift: 0.0,
            tracked: true,
            packed: None,
        }
    }

    pub(crate) fn shifted(self, shift: f32) -> Self {
        Self { shift, ..self }
    }

    pub(crate) fn held(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    pub(crate) fn frozen(self) -> Self {
        Self { tracked: false, ..self }
    }

    /// In fewer bits, and frozen: a matrix, or a stack of matrices.
    pub(crate) fn packed(self, packed: Quantization) -> Self {
        Self { tracked: false, packed: Some(packed), ..self }
    }

    /// The codes of an input in fewer bits, read in its dtype.
    fn codes(&self) -> Option<Values> {
        let quantization = self.packed?;
        let [rows, row] = self.shape.last_chunk().copied().expect("invariant: a matrix, or a stack of them");
        let values = Self { packed: None, dtype: DType::F32, ..self.clone() }.values();
        let values: Vec<f32> = values.try_into_vec().expect("invariant: in f32");
        let of = |matrix: &[f32]| Quantized::new(quantization, matrix, row);
        let all = Quantized::stacked(values.chunks_exact(rows * row).map(of).collect());
        let dtype = if self.dtype == DType::BF16 { Dtype::Bf16 } else { Dtype::F32 };
        Some(Values::new(Arc::new(all), dtype))
    }

    fn values(&self) -> TensorData {
        let stream = Stream::new(23, self.name);
        let count: usize = self.shape.iter().product();
        let values: Vec<f32> =
            (0..count as u64).map(|i| self.shift + self.scale * stream.normal(i)).collect();
        TensorData::new(values, self.shape.clone()).convert_dtype(self.dtype)
    }

    fn tensor(&self, body: Body, device: &Device) -> AnyTensor {
        if let Some(codes) = self.codes() {
            return match body {
                Body::Device => AnyTensor::packed(Arc::new(codes), &self.shape, device),
                Body::Reference => {
                    let data = TensorData::from_bytes_vec(codes.bytes(), self.shape.clone(), self.dtype);
                    AnyTensor::from_data(data.convert_dtype(DType::F64), device)
                }
            };
        }
        let data = match body {
            Body::Device => self.values(),
            Body::Reference => self.values().convert_dtype(DType::F64),
        };
        let tensor = AnyTensor::from_data(data, device);
        if self.tracked { tensor.leaf() } else { tensor }
    }
}

/// From tensors in the order of the inputs to a matrix.
pub(crate) type Run = Box<dyn Fn(Body, &[AnyTensor]) -> Result<AnyTensor, OpsError>>;

/// An operation on inputs.
pub(crate) struct Case {
    pub(crate) inputs: Vec<Input>,
    pub(crate) run: Run,
}

/// An output, and the gradients of the tracked inputs under a fixed random upstream gradient.
struct Found {
    value: Vec<f64>,
    gradients: Vec<Option<Vec<f64>>>,
}

pub(crate) fn to_f64(tensor: &AnyTensor) -> Result<Vec<f64>> {
    let values = tensor.to_data().convert_dtype(DType::F64).try_into_vec();
    values.map_err(|error| anyhow::anyhow!("cannot read a tensor: {error:?}"))
}

impl Case {
    fn find(&self, body: Body, device: &Device) -> Result<Found> {
        let tensors: Vec<AnyTensor> = self.inputs.iter().map(|input| input.tensor(body, device)).collect();
        let out = (self.run)(body, &tensors)?;
        let value = to_f64(&out)?;
        if !out.is_tracked() {
            return Ok(Found { value, gradients: vec![None; tensors.len()] });
        }
        let out = out.rank::<2>()?;
        let upstream = Input::new("upstream", &out.dims(), 1.0).values().convert_dtype(out.dtype());
        let upstream: Tensor<2> = Tensor::from_data(upstream, (device, out.dtype()));
        let mut gradients = (out * upstream).sum().backward();
        let gradients = tensors.iter().zip(&self.inputs).map(|(tensor, input)| {
            let gradient = input.tracked.then(|| tensor.take_gradient(&mut gradients)).flatten();
            gradient.map(|gradient| to_f64(&gradient)).transpose()
        });
        Ok(Found { value, gradients: gradients.collect::<Result<_>>()? })
    }

    /// Holds the device's body against the reference in f64, values and gradients; the largest error relative to the
    /// largest element.
    pub(crate) fn compare(&self, device: &Device, bound: f64) -> Result<String> {
        let want = self.find(Body::Reference, &Device::flex())?;
        let got = self.find(Body::Device, device)?;
        let mut worst = (distance("the value", &got.value, &want.value, bound)?, "value");
        for ((input, got), want) in self.inputs.iter().zip(&got.gradients).zip(&want.gradients) {
            match (got, want) {
                (Some(got), Some(want)) => {
                    let error = distance(&format!("the gradient of {}", input.name), got, want, bound)?;
                    if error > worst.0 {
                        worst = (error, input.name);
                    }
                }
                (None, None) => {}
                (got, _) => anyhow::bail!(
                    "{}: a gradient is {}",
                    input.name,
                    if got.is_some() { "there, unexpected" } else { "missing" }
                ),
            }
        }
        Ok(format!("{:.1e} ({}), bound {bound:.0e}", worst.0, worst.1))
    }
}

/// The largest difference, of the largest element; an error beyond `bound`.
pub(crate) fn distance(what: &str, got: &[f64], want: &[f64], bound: f64) -> Result<f64> {
    ensure!(got.len() == want.len(), "{what}: {} elements, expected {}", got.len(), want.len());
    let largest = want.iter().fold(0.0_f64, |largest, x| largest.max(x.abs())).max(1e-30);
    let mut worst = 0.0_f64;
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / largest;
        ensure!(
            error <= bound,
            "{what}: element {at} is {got}, expected {want}: off by {error:.1e} of the largest, bound {bound:.0e}"
        );
        worst = worst.max(error);
    }
    Ok(worst)
}
