//! DoRA's magnitude on CPU kernels: its gradient, and the norms that it divides by.

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::magnitude::Magnitude;
use crate::{AnyTensor, OpsError};

#[derive(Clone)]
pub(super) struct MagnitudeView {
    value: Host,
    norm: Host,
    /// Whether the forward keeps what the output does not tell: see [`Self::keep`].
    kept: bool,
}

impl MagnitudeView {
    pub(super) fn new(op: &'static str, m: &Magnitude) -> Result<Self, OpsError> {
        Ok(Self {
            value: Host::f32_of(op, "lora_magnitude_vector", &m.value)?,
            norm: Host::f32_of(op, "norm of the adapted weight", &m.norm)?,
            kept: false,
        })
    }

    pub(super) fn kernel(&self) -> kernels::Magnitude<'_> {
        kernels::Magnitude { m: self.value.f32(), norm: self.norm.f32(), keep: self.kept }
    }

    /// `m / norm`.
    pub(super) fn gains(&self) -> Vec<f32> {
        self.value.f32().iter().zip(self.norm.f32()).map(|(m, n)| m / n).collect()
    }

    /// The gradient needs the output before the factors: where nothing was added to it and no magnitude is zero, the
    /// output itself is as good (`y / m = z / norm`) and is kept by whoever reads it next.
    pub(super) fn keep(&mut self, added: bool) {
        self.kept = added || self.value.f32().contains(&0.0);
    }

    /// `dm = sum dy z / norm`, or `sum dy y / m`.
    pub(super) fn grad(
        &self,
        tokens: usize,
        dy: (&[f32], usize, usize),
        z: Option<&[f32]>,
        y: (&[f32], usize, usize),
    ) -> Vec<f32> {
        let n = self.value.f32().len();
        let (from, over) = match z {
            Some(z) => ((z, n, 0), &self.norm),
            None => (y, &self.value),
        };
        let mut sums = kernels::column_dots(tokens, n, dy, from);
        sums.iter_mut().zip(over.f32()).for_each(|(s, d)| *s /= d);
        sums
    }
}

pub(crate) fn squared_row_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    squared_norms(weight, a, b, scale, kernels::squared_row_norms)
}

pub(crate) fn squared_column_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
) -> Result<AnyTensor, OpsError> {
    squared_norms(weight, a, b, scale, kernels::squared_column_norms)
}

/// From rows, columns, weight, rank, A, B and scale.
type SquaredNorms = fn(usize, usize, kernels::Weight<'_>, usize, &[f32], &[f32], f32) -> Vec<f64>;

fn squared_norms(
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    scale: f32,
    norms: SquaredNorms,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "norms";
    let [rows, columns] = crate::check::matrix(weight)?;
    let rank = a.shape()[0];
    let (w, a, b) =
        (Host::weight_of(OP, "weight", weight)?, Host::f32_of(OP, "A", a)?, Host::f32_of(OP, "B", b)?);
    let squares = norms(rows, columns, w.weight(), rank, a.f32(), b.f32(), scale);
    let squares: Vec<f32> = squares.iter().map(|&s| s as f32).collect();
    let n = squares.len();
    Ok(tensor(squares, &[n]))
}
