//! A row for each cube: how many units share it, and their sum.

use cubecl_core as cubecl;
use cubecl_core::ir::features::Plane;
use cubecl_core::prelude::*;

use crate::mma;

/// The most units that share a row.
const MOST: usize = 256;

/// Units for a row of so many vectors: a power of two, so that their sum is a tree.
pub(crate) fn units(client: &Client, vectors: usize) -> u32 {
    let most = most_units(client);
    vectors.next_power_of_two().clamp(most.min(32), most) as u32
}

/// Units of a cube of many rows: the most that share one.
pub(crate) fn most_units(client: &Client) -> usize {
    1 << MOST.min(client.properties().hardware.max_units_per_cube as usize).ilog2()
}

/// Whether groups of so many neighbouring units hand each other numbers without shared memory.
pub(crate) fn shuffles(client: &Client, units: usize) -> bool {
    let properties = client.properties();
    let hardware = &properties.hardware;
    units <= mma::PLANE
        && properties.features.plane.contains(Plane::Ops)
        && [hardware.plane_size_min, hardware.plane_size_max] == [mma::PLANE as u32; 2]
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
    sum_of_groups(value, shared, units, false)
}

/// The sum over each group of so many neighbouring units, a power of two, for all of the group; always the same tree.
/// Groups of a plane hand each other what they have where this is `shuffled`, else all of the cube is to come here.
#[cube]
pub(crate) fn sum_of_groups<V: CubeAdd + core::ops::AddAssign>(
    value: V,
    shared: &mut Shared<[V]>,
    #[comptime] units: u32,
    #[comptime] shuffled: bool,
) -> V {
    let mut value = value;
    if comptime!(shuffled) {
        #[unroll]
        for level in 0..comptime!(units.ilog2()) {
            let other = plane_shuffle_xor(value, comptime!(units >> (level + 1)));
            value += other;
        }
    } else {
        let unit = UNIT_POS as usize;
        let of_group = unit % comptime!(units as usize);
        // Others may still read the sum before.
        sync_cube();
        shared[unit] = value;
        sync_cube();
        #[unroll]
        for level in 0..comptime!(units.ilog2()) {
            let half = comptime!((units >> (level + 1)) as usize);
            if of_group < half {
                let other = shared[unit + half];
                shared[unit] += other;
            }
            sync_cube();
        }
        value = shared[unit - of_group];
    }
    value
}

/// The sum over the cube's units, for all of them: over planes where they hand each other numbers, then over what planes have.
#[cube]
pub(crate) fn sum_of_planes<V: CubeAdd + core::ops::AddAssign>(
    value: V,
    shared: &mut Shared<[V]>,
    #[comptime] units: u32,
    #[comptime] shuffled: bool,
) -> V {
    let plane = comptime!(if shuffled { units.min(mma::PLANE as u32) } else { units });
    let mut value = sum_of_groups(value, shared, plane, shuffled);
    if comptime!(plane < units) {
        hand_out(value, shared, plane);
        value = shared[0];
        #[unroll]
        for of in 1..comptime!((units / plane) as usize) {
            value += shared[of];
        }
    }
    value
}

/// Puts what each group of so many units has to shared memory.
#[cube]
fn hand_out<V: CubePrimitive>(value: V, shared: &mut Shared<[V]>, #[comptime] group: u32) {
    let (unit, group) = (UNIT_POS as usize, comptime!(group as usize));
    // Others may still read what was there before.
    sync_cube();
    if unit.is_multiple_of(group) {
        shared[unit / group] = value;
    }
    sync_cube();
}

/// [`sum`] of the elements of each unit's vector, which are added from first to last before.
#[cube]
pub(crate) fn sum_vectors<N: Size>(
    value: Vector<f32, N>,
    shared: &mut Shared<[f32]>,
    #[comptime] units: u32,
) -> f32 {
    sum(sum_of_vector(value), shared, units)
}

/// The sum of a vector's elements, from first to last.
#[cube]
pub(crate) fn sum_of_vector<N: Size>(value: Vector<f32, N>) -> f32 {
    let mut own = 0.0f32;
    #[unroll]
    for k in 0..N::value() {
        own += value.extract(k);
    }
    own
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

/// [`largest`] over planes where units hand each other numbers, then over what planes have.
#[cube]
pub(crate) fn largest_of_planes(
    value: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] units: u32,
    #[comptime] shuffled: bool,
) -> f32 {
    let mut value = value;
    if comptime!(shuffled) {
        let plane = comptime!(units.min(mma::PLANE as u32));
        #[unroll]
        for level in 0..comptime!(plane.ilog2()) {
            value = max(value, plane_shuffle_xor(value, comptime!(plane >> (level + 1))));
        }
        if comptime!(plane < units) {
            hand_out(value, shared, plane);
            value = shared[0];
            #[unroll]
            for of in 1..comptime!((units / plane) as usize) {
                value = max(value, shared[of]);
            }
        }
    } else {
        value = largest(value, shared, units);
    }
    value
}
