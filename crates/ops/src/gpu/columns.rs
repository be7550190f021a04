//! [`crate::norm_columns`] in Burn's operations.

use burn::tensor::{DType, Tensor, TensorData};

use super::{to, wide_dtype};
use crate::column_norm::ColumnNorm;
use crate::{AnyTensor, OpsError, Rotary, layer_norm, rms_norm};

/// [`crate::norm_columns`].
///
/// # Errors
/// As that.
pub fn norm(
    x: &AnyTensor,
    norms: &[ColumnNorm],
    centered: bool,
    eps: f32,
    rotary: Option<&Rotary>,
) -> Result<AnyTensor, OpsError> {
    let wide = wide_dtype(x);
    let x = x.rank::<2>()?;
    let ([tokens, columns], dtype) = (x.dims(), x.dtype());
    let (mut parts, mut end) = (Vec::new(), 0);
    for norm in norms {
        let &ColumnNorm { first, groups, width, ref gamma, ref beta } = norm;
        if first > end {
            parts.push(x.clone().narrow(1, end, first - end));
        }
        end = first + groups * width;
        let own = to(x.clone().narrow(1, first, groups * width), wide).reshape([tokens, groups, width]);
        let own = match rotary {
            Some(rotary) => turned(own, rotary),
            None => own,
        };
        let rows = AnyTensor::new(own.reshape([tokens * groups, width]));
        let shared = gamma.shape().len() == 1 && gamma.shape()[0] == width;
        let normed = |gamma: &AnyTensor, beta: Option<&AnyTensor>| {
            if centered { layer_norm(&rows, gamma, beta, eps) } else { rms_norm(&rows, gamma, eps) }
        };
        let y = if shared {
            normed(gamma, beta.as_ref())?.rank::<2>()?.reshape([tokens, groups * width])
        } else {
            let ones = AnyTensor::new(to(Tensor::<1>::ones([width], &x.device()), wide));
            let y = normed(&ones, None)?.rank::<2>()?.reshape([tokens, groups * width]);
            let y = y * flat(gamma, wide)?;
            match beta {
                Some(beta) => y + flat(beta, wide)?,
                None => y,
            }
        };
        parts.push(to(y, dtype));
    }
    if end < columns {
        parts.push(x.narrow(1, end, columns - end));
    }
    Ok(AnyTensor::new(Tensor::cat(parts, 1)))
}

/// The gains of all groups as one row.
fn flat(gains: &AnyTensor, wide: DType) -> Result<Tensor<2>, OpsError> {
    let elements = gains.shape().iter().product::<usize>();
    match gains.shape().len() {
        1 => Ok(to(gains.rank::<1>()?, wide).reshape([1, elements])),
        _ => Ok(to(gains.rank::<2>()?, wide).reshape([1, elements])),
    }
}

/// Heads `[tokens, heads, head_dim]` turned by their tokens' angles.
fn turned(x: Tensor<3>, rotary: &Rotary) -> Tensor<3> {
    let [tokens, _, d] = x.dims();
    let half = rotary.rotary_dim / 2;
    let of = |from: usize| -> Tensor<3> {
        let rows = (0..tokens).flat_map(|t| rotary.of(t)[from..from + half].iter().copied());
        let data = TensorData::new(rows.collect::<Vec<f32>>(), [tokens, 1, half]);
        Tensor::from_data(data, (&x.device(), x.dtype()))
    };
    let (cos, sin) = (of(0), of(half));
    let (a, b) = (x.clone().narrow(2, 0, half), x.clone().narrow(2, half, half));
    let mut parts = vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
    if 2 * half < d {
        parts.push(x.narrow(2, 2 * half, d - 2 * half));
    }
    Tensor::cat(parts, 2)
}
