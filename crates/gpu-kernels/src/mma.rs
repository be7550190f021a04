//! Tensor cores: products of 16 by 8 by 16 in the registers of a plane.

use cubecl_core as cubecl;
use cubecl_core::cmma::MmaDefinition;
use cubecl_core::ir::features::MmaConfig;
use cubecl_core::prelude::*;

use crate::buffer::FloatType;

/// Units of a plane.
pub(crate) const PLANE: usize = 32;
/// Rows of a strip, columns of a block, and what a product is summed over at a time.
pub(crate) const STRIP: usize = 16;

/// Two neighbours.
pub(crate) type Pair<E> = Vector<E, Const<2>>;
/// Sixteen bytes.
pub(crate) type Eight<E> = Vector<E, Const<8>>;

/// Whether a device multiplies such factors so, from shared memory.
pub(crate) fn multiplies(client: &Client, factors: FloatType) -> bool {
    let properties = client.properties();
    let (of, sums) = (factors.elem(), FloatType::F32.elem());
    let config = MmaConfig { a_type: of, b_type: of, cd_type: sums, m: 16, n: 8, k: 16 };
    let matmul = &properties.features.matmul;
    factors != FloatType::F32
        && matmul.mma.contains(&config)
        && matmul.ldmatrix.contains(&of)
        && properties.hardware.plane_size_max == PLANE as u32
}

/// Two elements as neighbours.
#[cube]
pub(crate) fn pair<E: Float>(first: E, second: E) -> Pair<E> {
    let mut pair = Pair::<E>::new(first);
    pair.insert(1usize, second);
    pair
}

/// Adds a product of 16 by 16 and 16 by 8 to the two pairs of `into` from `at`.
#[cube]
pub(crate) fn add<E: Float>(
    left: &Array<Pair<E>>,
    right: &Array<Pair<E>>,
    #[comptime] side: usize,
    into: &mut Array<Pair<f32>>,
    #[comptime] at: usize,
) {
    let product = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let mut half = Array::<Pair<E>>::new(2usize);
    half[0] = right[2 * side];
    half[1] = right[2 * side + 1];
    let mut sum = Array::<Pair<f32>>::new(2usize);
    sum[0] = into[at];
    sum[1] = into[at + 1];
    let sum = product.execute(left, &half, &sum);
    into[at] = sum[0];
    into[at + 1] = sum[1];
}

/// Ends a group of copies to shared memory.
#[cube]
pub(crate) fn commit() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until all groups of this unit's copies but the last so many are there.
#[cube]
pub(crate) fn wait(#[comptime] but: usize) {
    gpu_asm!("cp.async.wait_group {but};", but = const but);
}
