//! A unit for each vector of elements.

use cubecl_core::prelude::{Client, Const, CubeCount, CubeDim, Vector};

/// Four neighbours.
pub(crate) type Four = Vector<f32, Const<4>>;

/// Units of a cube.
const UNITS: usize = 256;

/// Cubes and units for so many vectors; units beyond them have nothing to do.
pub(crate) fn launch(client: &Client, vectors: usize) -> (CubeCount, CubeDim) {
    let units = UNITS.min(client.properties().hardware.max_units_per_cube as usize);
    (crate::row::cubes(client, vectors.div_ceil(units)), CubeDim::new_1d(units as u32))
}
