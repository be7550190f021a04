//! A row for each cube: how many units share it, and their sum.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// The most units that share a row.
const MOST: usize = 256;

/// Units for a row of so many vectors: a power of two, so that their sum is a tree.
pub(crate) fn units(client: &Client, vectors: usize) -> u32 {
    let most = MOST.min(client.properties().hardware.max_units_per_cube as usize);
    let most = 1 << most.ilog2();
    vectors.next_power_of_two().clamp(most.min(32), most) as u32
}

/// A cube for each of `rows`, in as many dimensions as the device needs.
pub(crate) fn cubes(client: &Client, rows: usize) -> CubeCount {
    let most = client.properties().hardware.max_cube_count.0 as usize;
    if rows <= most {
        CubeCount::Static(rows as u32, 1, 1)
    } else {
        CubeCount::Static(most as u32, rows.div_ceil(most) as u32, 1)
    }
}

/// The sum over the cube's units, for all of them; always the same tree. `shared` has an element for each unit.
#[cube]
pub(crate) fn sum<V: CubeAdd + core::ops::AddAssign>(
    value: V,
    shared: &mut Shared<[V]>,
    #[comptime] units: u32,
) -> V {
    let unit = UNIT_POS as usize;
    // Others may still read the sum before.
    sync_cube();
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        let half = comptime!((units >> (level + 1)) as usize);
        if unit < half {
            let other = shared[unit + half];
            shared[unit] += other;
        }
        sync_cube();
    }
    shared[0]
}

/// [`sum`] of the elements of each unit's vector, which are added from first to last before.
#[cube]
pub(crate) fn sum_vectors<N: Size>(
    value: Vector<f32, N>,
    shared: &mut Shared<[f32]>,
    #[comptime] units: u32,
) -> f32 {
    let mut own = 0.0f32;
    #[unroll]
    for k in 0..N::value() {
        own += value.extract(k);
    }
    sum(own, shared, units)
}

/// The largest over the cube's units, for all of them.
#[cube]
pub(crate) fn largest(value: f32, shared: &mut Shared<[f32]>, #[comptime] units: u32) -> f32 {
    let unit = UNIT_POS as usize;
    sync_cube();
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        let half = comptime!((units >> (level + 1)) as usize);
        if unit < half {
            shared[unit] = max(shared[unit], shared[unit + half]);
        }
        sync_cube();
    }
    shared[0]
}
