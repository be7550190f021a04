//! The gated norm behind linear attention, by groups of columns.

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError};

pub(crate) const OP: &str = "gated_norm";

/// RMSNorm of groups of neighbouring columns.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// Columns of a group.
    pub group: usize,
    /// Of a group, which all share, or of all columns.
    pub gamma: AnyTensor,
    /// Added to the mean of a group's squares.
    pub eps: f32,
    /// Whether columns are normed before they are gated, or behind that.
    pub before_gate: bool,
}

/// `norm(x) * silu(gate)`, or `norm(x * silu(gate))`; without a norm `x * silu(gate)`.
///
/// # Shapes
/// - x and gate: `[tokens, width]`, gamma: `[group]` or `[width]`
/// - output: `[tokens, width]` in the dtype of `gate`
///
/// # Errors
/// If shapes do not fit.
pub fn gated_norm(x: &AnyTensor, gate: &AnyTensor, norm: Option<&GroupNorm>) -> Result<AnyTensor, OpsError> {
    let [tokens, width] = crate::check::matrix(x)?;
    let wrong = |what, got: Vec<usize>, expected: Vec<usize>| OpsError::Shape { op: OP, what, got, expected };
    crate::check::shape(OP, "gate", gate.shape(), &[tokens, width])?;
    if let Some(norm) = norm {
        if norm.group == 0 || !width.is_multiple_of(norm.group) {
            return Err(wrong("group", vec![norm.group], vec![width]));
        }
        let gamma = norm.gamma.shape();
        if gamma != [norm.group] && gamma != [width] {
            return Err(wrong("gamma", gamma, vec![norm.group]));
        }
    }
    let of = norm.map(|norm| &norm.gamma);
    dispatch!([x, gate].into_iter().chain(of) => gated_norm::gated_norm(x, gate, norm))
}
