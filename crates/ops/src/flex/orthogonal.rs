//! Newton–Schulz on CPU kernels, in place.

use burnish_cpu_kernels::orthogonal::{self as kernels, Coefficients, Iteration, Matrix};

use super::adamw::{any, flex};
use crate::orthogonal::{Form, NewtonSchulz, Stacked};
use crate::{AnyTensor, OpsError};

impl NewtonSchulz {
    fn kernel(&self) -> Iteration {
        let form = match self.form {
            Form::Standard => kernels::Form::Standard,
            Form::Gram => kernels::Form::Gram,
            Form::Auto => kernels::Form::Auto,
        };
        Iteration {
            coefficients: Coefficients::new(self.triples(), self.margin()),
            form,
            compute: self.compute,
        }
    }

    /// Floating-point operations for a matrix of this shape on the CPU, symmetric products at half cost.
    #[must_use]
    pub fn flops(&self, rows: usize, columns: usize) -> u64 {
        self.kernel().flops(rows, columns)
    }
}

/// All tensors are f32 on the CPU, with blocks that make up their rows.
pub(crate) fn orthogonalize(
    stacks: Vec<Stacked>,
    iteration: &NewtonSchulz,
) -> Result<Vec<AnyTensor>, OpsError> {
    let columns: Vec<usize> = stacks.iter().map(|s| s.size()[1]).collect();
    let (mut tensors, blocks): (Vec<_>, Vec<_>) =
        stacks.into_iter().map(|s| (flex(s.tensor), s.blocks)).unzip();
    let mut matrices = Vec::new();
    for ((tensor, blocks), &columns) in tensors.iter_mut().zip(&blocks).zip(&columns) {
        let mut rest = tensor.storage_mut::<f32>();
        for &rows in blocks {
            let (values, after) = rest.split_at_mut(rows * columns);
            rest = after;
            if values.iter().all(|x| x.is_finite()) {
                matrices.push(Matrix { values, rows, columns });
            } else {
                values.fill(f32::NAN);
            }
        }
    }
    kernels::orthogonalize_all(&mut matrices, &iteration.kernel())
        .expect("invariant: only matrices of finite values were taken");
    drop(matrices);
    Ok(tensors.into_iter().map(any).collect())
}
