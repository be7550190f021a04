//! Bodies for GPUs: Burn operations that any backend has, lean in memory, and without a wait for the device except where
//! a caller gets numbers on the host, and then once. On the CPU they compute what is f64 and what has no kernel.
//! On CubeCL's devices the kernels of `kernels` take their place where there is one.
//!
//! A product runs in its weight's dtype: no weight is ever widened as a whole. Norms, activations, softmax, sums and
//! the gradients of parameters are in f32; the gradient of an activation has that activation's dtype.

mod activation;
pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod columns;
pub(crate) mod conv_heads;
pub mod cost;
mod dropout;
pub(crate) mod embedding;
pub(crate) mod experts;
pub(crate) mod gated_norm;
pub(crate) mod head;
pub(crate) mod head_weights;
#[cfg(feature = "cube")]
mod kernels;
pub(crate) mod linear;
pub(crate) mod linear_attention;
pub(crate) mod magnitude;
pub(crate) mod muon;
pub(crate) mod norm;
pub(crate) mod orthogonal;
mod product;
#[cfg(feature = "cube")]
pub(crate) mod router;
pub(crate) mod selective_scan;

pub use adamw::{adam_steps, sums_of_squares};
pub(crate) use attention::{Angles, Past, attend_cached};
#[cfg(feature = "cube")]
pub(crate) use attention::{Pages, Plans};
#[cfg(feature = "cube")]
pub use attention::{PlacedRows, StepRows};
pub use attention::{attention, attention_with_peaks};
pub use columns::norm as norm_columns;
pub use dropout::mask as dropout_mask;
pub use embedding::{embedding, select_rows};
pub use experts::experts;
pub use head::{head_log_probs, head_logits, head_loss, head_nll};
#[cfg(feature = "cube")]
pub(crate) use kernels::{DeviceRows, TextPlans};
pub use linear::{dtype as linears_dtype, linears};
pub use magnitude::{squared_column_norms, squared_row_norms};
pub use muon::{muon_adapt, muon_apply, muon_momentum, row_squares, scale_rows};
pub use norm::{layer_norm, rms_norm};
pub use orthogonal::orthogonalize;

use std::ops::Range;

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burnish_core::Dtype;

use crate::{AnyTensor, OpsError, apply};

/// The dtype of arithmetic outside products: f32, or f64 of what is f64.
fn wide_dtype(t: &AnyTensor) -> DType {
    if t.dtype() == Some(Dtype::F64) { DType::F64 } else { DType::F32 }
}

fn float(dtype: DType) -> FloatDType {
    if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 }
}

/// The sum of all elements. Burn's own adds atomically on GPUs, in an order that is another each time; along a dimension, in
/// one that a tuner chooses.
pub(crate) fn total<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let elements = x.shape().num_elements();
    sum_rows(x.reshape([1, elements]), false)
}

/// The sum of each row, or of its squares, `[rows]`.
pub(crate) fn sum_rows(x: Tensor<2>, squares: bool) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if let Some(sums) = kernels::sum_rows(&x, squares) {
        return sums;
    }
    let rows = x.dims()[0];
    let x = if squares { x.powi_scalar(2) } else { x };
    x.sum_dim(1).reshape([rows])
}

pub(crate) fn to<const D: usize>(t: Tensor<D>, dtype: DType) -> Tensor<D> {
    if t.dtype() == dtype { t } else { t.cast(dtype) }
}

/// A plain tensor in the dtype of arithmetic outside products.
fn wide<const D: usize>(t: &AnyTensor) -> Result<Tensor<D>, OpsError> {
    Ok(to(t.rank::<D>()?, wide_dtype(t)))
}

fn ints(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}

/// The sum over rows, `[columns]`.
pub(crate) fn over_rows(t: Tensor<2>) -> Tensor<1> {
    #[cfg(feature = "cube")]
    if let Some(sums) = kernels::over_rows(&t) {
        return sums;
    }
    let columns = t.dims()[1];
    t.sum_dim(0).reshape([columns])
}

fn add<const D: usize>(into: Option<Tensor<D>>, more: Tensor<D>) -> Tensor<D> {
    match into {
        Some(into) => into + more,
        None => more,
    }
}

/// What texts have, joined along a dimension in the order of their rows; `zeros` of rows of no text.
fn in_rows<const D: usize>(
    mut texts: Vec<(Range<usize>, Vec<Tensor<D>>)>,
    dim: usize,
    tokens: usize,
    zeros: impl Fn(usize) -> Tensor<D>,
) -> Tensor<D> {
    texts.sort_by_key(|(rows, _)| (rows.start, rows.end));
    let (mut all, mut at) = (Vec::new(), 0);
    for (rows, parts) in texts {
        if rows.start > at {
            all.push(zeros(rows.start - at));
        }
        all.extend(parts);
        at = at.max(rows.end);
    }
    if at < tokens || all.is_empty() {
        all.push(zeros(tokens - at));
    }
    Tensor::cat(all, dim)
}

/// A constant on the tape: every input that wants a gradient gets zeros. All are parameters but the first, where it is an
/// `activation`.
fn constant(
    op: &'static str,
    inputs: &[AnyTensor],
    activation: bool,
    out: AnyTensor,
) -> Result<AnyTensor, OpsError> {
    apply(op, inputs, |inputs, wanted| {
        let (inputs, wanted) = (inputs.to_vec(), wanted.to_vec());
        let zeros = move |_| {
            let zero = |(i, t): (usize, &AnyTensor)| {
                let zeros = t.carrier().zeros_like();
                AnyTensor::new(if i == 0 && activation { zeros } else { to(zeros, wide_dtype(t)) })
            };
            inputs.iter().enumerate().zip(wanted).map(|(t, w)| w.then(|| zero(t))).collect()
        };
        Ok((out, Box::new(zeros)))
    })
}
