//! Products of f32, multiplied in f32.

use burn::tensor::{DType, Tensor};
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::tensor::CubeTensor;
use cubek_matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek_matmul::launch::launch_ref;
use cubek_matmul::multi_level::Strategy;
use cubek_matmul::multi_level::routines::TileSizeSelection;
use cubek_matmul::multi_level::routines::batch::simple_unit::SimpleUnitSelectionArgs;
use cubek_matmul::routine::BlueprintStrategy;
use cubek_std::InputBinding;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, launch_on_tensors};

/// Rows or columns of an output that is thin: large tiles would leave most of a device idle.
const THIN: usize = 32;

/// `a b`, where both are f32 and of one batch. No kernel is chosen by its speed, so that bits repeat.
pub(in crate::gpu) fn product<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> Option<Tensor<D>> {
    let (of_a, of_b) = (a.dims(), b.dims());
    let one_batch = of_a[..D - 2] == of_b[..D - 2] && of_a.iter().chain(&of_b).all(|&n| n > 0);
    if !one_batch || a.dtype() != DType::F32 || b.dtype() != DType::F32 {
        return None;
    }
    let inputs = Inputs::of(&[&AnyTensor::new(a.clone()), &AnyTensor::new(b.clone())])?;
    let mut shape = of_a;
    shape[D - 1] = of_b[D - 1];
    let [y] = launch_on_tensors(inputs, |tensors| {
        let Ok([a, b]) = <[CubeTensor; 2]>::try_from(tensors) else {
            unreachable!("invariant: two factors");
        };
        let (client, device) = (a.client.clone(), a.device.clone());
        let memory = client.empty(shape.iter().product::<usize>() * size_of::<f32>());
        let y = CubeTensor::new_contiguous(client, device, shape.into(), memory, DType::F32);
        multiply(&a, &b, &y);
        [y]
    });
    Some(of_rank(&y))
}

fn multiply(a: &CubeTensor, b: &CubeTensor, y: &CubeTensor) {
    let shape = y.meta.shape();
    let rank = shape.len();
    let thin = shape[rank - 2].min(shape[rank - 1]) <= THIN;
    let tile_size = if thin { TileSizeSelection::MinTileSize } else { TileSizeSelection::MaxTileSize };
    let units = Strategy::SimpleUnit(BlueprintStrategy::Inferred(SimpleUnitSelectionArgs { tile_size }));
    let f32 = ElemType::Float(FloatKind::F32);
    let run = |strategy: Strategy| {
        let mut dtypes = MatmulElems::from_globals(&MatmulGlobalElems { lhs: f32, rhs: f32, out: f32 });
        let binding = |t: &CubeTensor| InputBinding::new(t.clone().binding(), f32);
        let out = y.clone().binding();
        launch_ref(&strategy.into(), &y.client, binding(a), binding(b), out, &mut dtypes)
    };
    // What has no tiles there has one unit for each element.
    if run(units).is_err()
        && let Err(error) = run(Strategy::Naive)
    {
        panic!("invariant: a product that needs no tiles runs on every device: {error:?}");
    }
}
