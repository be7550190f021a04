//! A convolution, SiLU and heads of unit length: by kernels, or in Burn's operations.

use std::sync::Arc;

use burn::tensor::activation::silu;
use burn::tensor::{Tensor, TensorData};

#[cfg(feature = "cube")]
use super::kernels;
use super::to;
use crate::conv_heads::{ConvRows, Kernel, UnitHeads};
use crate::{AnyTensor, OpsError};

/// See [`crate::conv_heads()`].
pub(crate) fn conv_heads(
    x: &AnyTensor,
    (kernel, bias): Kernel<'_>,
    units: Option<&UnitHeads>,
    rows: Arc<ConvRows>,
) -> Result<AnyTensor, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = kernels::conv_heads(x, (kernel, bias), units, &rows) {
        return y;
    }
    let rows = &rows.rows;
    let wide = super::wide_dtype(x);
    let x = to(x.rank::<2>()?, wide);
    let ([all, channels], taps) = (x.dims(), rows.len());
    let kernel = to(kernel.rank::<3>()?, wide).reshape([channels, taps]);
    // The last row is of zeros.
    let zeros = Tensor::zeros([1, channels], (&x.device(), wide));
    let x = Tensor::cat(vec![x, zeros], 0);
    let tokens = rows[0].len();
    let mut sum = match bias {
        Some(bias) => to(bias.rank::<1>()?, wide).reshape([1, channels]).repeat_dim(0, tokens),
        None => Tensor::zeros([tokens, channels], (&x.device(), wide)),
    };
    for (tap, rows) in rows.iter().enumerate() {
        let rows: Vec<i32> = rows.iter().map(|&row| if row < 0 { all as i32 } else { row }).collect();
        let index = Tensor::from_data(TensorData::new(rows, [tokens]), &x.device());
        let weights = kernel.clone().narrow(1, tap, 1).reshape([1, channels]);
        sum = sum + x.clone().select(0, index) * weights;
    }
    let y = silu(sum);
    let Some(UnitHeads { count, head_dim, scales, eps }) = units.copied() else {
        return Ok(AnyTensor::new(y));
    };
    let half = count / 2 * head_dim;
    let heads = |first: usize, scale: f32| {
        let own = y.clone().narrow(1, first, half).reshape([tokens, count / 2, head_dim]);
        let square = own.clone().powi_scalar(2).sum_dim(2) + eps;
        (own / square.sqrt() * scale).reshape([tokens, half])
    };
    let mut parts = vec![heads(0, scales[0]), heads(half, scales[1])];
    if channels > 2 * half {
        parts.push(y.clone().narrow(1, 2 * half, channels - 2 * half));
    }
    Ok(AnyTensor::new(Tensor::cat(parts, 1)))
}
