//! A row for each cube: how many units share it, and their sum.

use cubecl_core as cubecl;
use cubecl_core::ir::features::Plane;
use cubecl_core::prelude::*;

use crate::mma;

/// The most units that share a row.
const MOST: usize = 256;

/// Units that share a row, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Units {
    pub(crate) count: u32,
    /// Whether those of a plane hand each other numbers without shared memory.
    shuffled: bool,
}

impl Units {
    /// As many as find each other without shared memory.
    fn plane(self) -> u32 {
        if self.shuffled { self.count.min(mma::PLANE as u32) } else { self.count }
    }

    /// Planes of the cube.
    fn planes(self) -> usize {
        (self.count / self.plane()) as usize
    }
}

/// Units for a row of so many vectors.
pub(crate) fn units(client: &Client, vectors: usize) -> Units {
    let most = most_units(client);
    let count = vectors.next_power_of_two().clamp(most.min(32), most) as u32;
    Units { count, shuffled: shuffles(client, mma::PLANE) }
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

/// The sum over the cube's units, for all of them: over planes, always the same tree, then over what planes have. `shared` has an
/// element for each unit.
#[cube]
pub(crate) fn sum<V: CubeAdd + core::ops::AddAssign>(
    value: V,
    shared: &mut Shared<[V]>,
    #[comptime] units: Units,
) -> V {
    let mut value = sum_of_groups(value, shared, comptime!(units.plane()), units.shuffled);
    if comptime!(units.planes() > 1) {
        hand_out(value, shared, units);
        value = shared[0];
        #[unroll]
        for plane in 1..comptime!(units.planes()) {
            value += shared[plane];
        }
    }
    value
}

/// Puts what planes have to shared memory.
#[cube]
fn hand_out<V: CubePrimitive>(value: V, shared: &mut Shared<[V]>, #[comptime] units: Units) {
    let (unit, plane) = (UNIT_POS as usize, comptime!(units.plane() as usize));
    // Others may still read what was there before.
    sync_cube();
    if unit.is_multiple_of(plane) {
        shared[unit / plane] = value;
    }
    sync_cube();
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

/// [`sum`] of the elements of each unit's vector, which are added from first to last before.
#[cube]
pub(crate) fn sum_vectors<N: Size>(
    value: Vector<f32, N>,
    shared: &mut Shared<[f32]>,
    #[comptime] units: Units,
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
pub(crate) fn largest(value: f32, shared: &mut Shared<[f32]>, #[comptime] units: Units) -> f32 {
    let mut value = value;
    if comptime!(units.shuffled) {
        #[unroll]
        for level in 0..comptime!(units.plane().ilog2()) {
            value = max(value, plane_shuffle_xor(value, comptime!(units.plane() >> (level + 1))));
        }
        if comptime!(units.planes() > 1) {
            hand_out(value, shared, units);
            value = shared[0];
            #[unroll]
            for plane in 1..comptime!(units.planes()) {
                value = max(value, shared[plane]);
            }
        }
    } else {
        let unit = UNIT_POS as usize;
        sync_cube();
        shared[unit] = value;
        sync_cube();
        #[unroll]
        for level in 0..comptime!(units.count.ilog2()) {
            let half = comptime!((units.count >> (level + 1)) as usize);
            if unit < half {
                shared[unit] = max(shared[unit], shared[unit + half]);
            }
            sync_cube();
        }
        value = shared[0];
    }
    value
}
