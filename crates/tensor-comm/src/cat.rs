//! Flat tensors put together where they lie.

use burn::tensor::Tensor;
use burnish_ops::AnyTensor;

/// Flat tensors of one dtype, one behind the other, as a tensor of `shape`. No copy where there is one.
///
/// # Panics
/// If there is none, one is not flat, or `shape` has another number of elements or not 1 to 4 dimensions.
#[must_use]
pub fn joined(flat: Vec<AnyTensor>, shape: &[usize]) -> AnyTensor {
    let all: usize = shape.iter().product();
    let first = flat[0].clone();
    let mut some: Vec<Tensor<1>> = flat
        .into_iter()
        .filter(|t| t.shape() != [0])
        .map(|t| t.rank::<1>().expect("invariant: flat, as the caller says"))
        .collect();
    let whole = match some.len() {
        0 => return first.piece(0..0, shape),
        1 => some.remove(0),
        _ => Tensor::cat(some, 0),
    };
    AnyTensor::new(whole).piece(0..all, shape)
}
