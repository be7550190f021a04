//! Rows of a table that train, on the tape.

use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burnish_ops::{AnyTensor, Linear, LowRank, OpsError};

use super::beside;

/// The layer whose rows `ids` (of a whole whose row `first` is this one's first) are `delta`'s: `W + E (delta - W[ids])`
/// with a one in row `ids[k]` and column `k` of `E`, so that neither a copy of the table nor a gradient of its size is
/// made.
pub(super) fn rows(
    layer: Linear,
    delta: &AnyTensor,
    ids: &[usize],
    first: usize,
) -> Result<Linear, OpsError> {
    let (height, device) = (layer.weight.shape()[0], layer.weight.plain().device());
    let own = |id: &usize| id.checked_sub(first).filter(|row| *row < height);
    let mut ones = vec![0.0_f32; height * ids.len()];
    for (column, row) in ids.iter().enumerate().filter_map(|(k, id)| Some((k, own(id)?))) {
        ones[row * ids.len() + column] = 1.0;
    }
    // Of rows that other ranks have any will do.
    let at: Vec<i64> = ids.iter().map(|id| own(id).unwrap_or(0) as i64).collect();
    let frozen = beside(&layer.weight, delta).rank::<2>()?;
    let at = Tensor::<1, Int>::from_data(TensorData::new(at, [ids.len()]), &frozen.device());
    let replaced = frozen.select(0, at).cast(FloatDType::F32);
    let low_rank = Some(LowRank {
        a: AnyTensor::new(delta.rank::<2>()? - replaced),
        b: AnyTensor::from_elements(ones, &[height, ids.len()], &device),
        b_bias: None,
        scale: 1.0,
        dropout: None,
        magnitude: None,
    });
    Ok(Linear { low_rank, ..layer })
}
