//! A parameter of which one row or column gets no gradient: the padding token's, as of `torch.nn.Embedding(padding_idx)`.

use burn::tensor::Tensor;

use crate::{AnyTensor, OpsError, apply};

/// `x` as it is; in backward row (`dim` 0) or column (`dim` 1) `index` of its gradient is zero.
///
/// # Shapes
/// - x and output: `[rows, columns]`
///
/// # Errors
/// If there is no such row or column.
pub fn held(x: &AnyTensor, dim: usize, index: usize) -> Result<AnyTensor, OpsError> {
    const OP: &str = "held";
    let [rows, columns] = crate::check::matrix(x)?;
    let limit = if dim == 0 { rows } else { columns };
    if index >= limit {
        return Err(OpsError::Index { op: OP, got: index, limit });
    }
    apply(OP, std::slice::from_ref(x), |plain, _| {
        let backward = move |upstream: AnyTensor| {
            let upstream = upstream.rank::<2>().expect("invariant: of the rank of the output");
            let (place, size) = if dim == 0 {
                ([index..index + 1, 0..columns], [1, columns])
            } else {
                ([0..rows, index..index + 1], [rows, 1])
            };
            let zeros = Tensor::<2>::zeros(size, (&upstream.device(), upstream.dtype()));
            vec![Some(AnyTensor::new(upstream.slice_assign(place, zeros)))]
        };
        Ok((plain[0].clone(), Box::new(backward)))
    })
}
