//! Pieces of tensors put together where they lie.

use std::ops::Range;

use burn::tensor::Tensor;

use crate::AnyTensor;

/// Elements of tensors of one dtype, one behind the other, as a tensor of `shape`. No copy where all are of one tensor.
///
/// # Panics
/// If there is no piece, or `shape` has another number of elements or not 1 to 4 dimensions.
#[must_use]
pub fn joined(mut pieces: Vec<(AnyTensor, Range<usize>)>, shape: &[usize]) -> AnyTensor {
    let all: usize = shape.iter().product();
    if all == 0 {
        return pieces[0].0.piece(0..0, shape);
    }
    pieces.retain(|(_, range)| !range.is_empty());
    if let [(value, range)] = &pieces[..] {
        return value.piece(range.clone(), shape);
    }
    #[cfg(feature = "cube")]
    if let Some(whole) = crate::cube::joined(&pieces, shape) {
        return whole;
    }
    let flat = |(value, range): (AnyTensor, Range<usize>)| {
        let elements = range.len();
        value.piece(range, &[elements]).rank::<1>().expect("invariant: one dimension was asked for")
    };
    AnyTensor::new(Tensor::cat(pieces.into_iter().map(flat).collect(), 0)).piece(0..all, shape)
}

/// All elements of tensors of one dtype, one behind the other, as a tensor of `shape`.
///
/// # Panics
/// As [`joined`].
#[must_use]
pub fn all_joined(tensors: Vec<AnyTensor>, shape: &[usize]) -> AnyTensor {
    let whole = |tensor: AnyTensor| {
        let elements = tensor.shape().iter().product();
        (tensor, 0..elements)
    };
    joined(tensors.into_iter().map(whole).collect(), shape)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn pieces_lie_one_behind_the_other() {
        let device = Device::flex();
        let a = AnyTensor::from_elements(vec![0.0_f32, 1.0, 2.0, 3.0], &[2, 2], &device);
        let b = AnyTensor::from_elements(vec![4.0_f32, 5.0], &[2], &device);
        let both = joined(vec![(a.clone(), 1..3), (b.clone(), 0..0), (b.clone(), 0..2)], &[2, 2]);
        assert_eq!((both.shape(), both.to_f32()), (vec![2, 2], vec![1.0, 2.0, 4.0, 5.0]));
        assert_eq!(joined(vec![(a.clone(), 2..4), (b, 1..1)], &[1, 2]).to_f32(), [2.0, 3.0]);
        assert_eq!(joined(vec![(a, 2..2)], &[0, 5]).shape(), [0, 5]);
    }
}
