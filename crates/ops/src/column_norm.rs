//! Norms of groups of columns: queries and keys, whole or head by head.

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError, Rotary};

/// Which columns a norm of [`norm_columns`] reads, and its gains.
#[derive(Clone, Debug)]
pub struct ColumnNorm {
    /// The first column of the first group.
    pub first: usize,
    /// Groups, one after another.
    pub groups: usize,
    /// Columns of a group.
    pub width: usize,
    /// `[width]`; or `groups * width` elements, each group's own.
    pub gamma: AnyTensor,
    /// Of the shape of `gamma`.
    pub beta: Option<AnyTensor>,
}

/// RMSNorm, or LayerNorm where it is `centered`, of each group of columns by itself; other columns stay as they are. With
/// a `rotary` groups are heads, turned before the norm.
///
/// # Shapes
/// - x: `[tokens, columns]`, output: the same
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn norm_columns(
    x: &AnyTensor,
    norms: &[ColumnNorm],
    centered: bool,
    eps: f32,
    rotary: Option<&Rotary>,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "norm_columns";
    let [_, columns] = crate::check::matrix(x)?;
    let wrong = |what, got: Vec<usize>, expected| OpsError::Shape { op: OP, what, got, expected };
    let mut end = 0;
    for &ColumnNorm { first, groups, width, ref gamma, ref beta } in norms {
        if first < end || width == 0 || first + groups * width > columns {
            return Err(wrong("columns", vec![first, groups, width], vec![end, columns]));
        }
        end = first + groups * width;
        let gains: usize = gamma.shape().iter().product();
        if gains != width && gains != groups * width {
            return Err(wrong("gamma", gamma.shape(), vec![width]));
        }
        if let Some(beta) = beta.as_ref().filter(|beta| beta.shape() != gamma.shape()) {
            return Err(wrong("beta", beta.shape(), gamma.shape()));
        }
    }
    dispatch!([x] => columns::norm(x, norms, centered, eps, rotary))
}
