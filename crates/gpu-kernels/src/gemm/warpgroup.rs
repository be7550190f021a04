//! Products by `wgmma`: a plane that does nothing else asks for slabs of the factors, two warpgroups multiply them.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;
use cubecl_core::zspace::{shape, strides};

use super::finish::{Form, Grouping, Place, Share, Sizes, put_run, share, written_from};
use super::tiles::Tiles;
use super::{Finish, Matrices, Product};
use crate::buffer::FloatType;
use crate::mma::{Eight, PLANE, Pair, STRIP, pair};
use crate::tma::{BARRIER, announce, arrive, bring, init, pass, publish};
use crate::wgmma::{
    ALIGNMENT, DESCRIBED, LINE, Name, PLANES, QUAD, ROWS, Tile, add, address, begin, begin_sums, commit,
    exchange, prefetch, sum, wait,
};

/// Factors of a sum that are in shared memory together.
const DEPTH: usize = 64;
/// Fewer rows or columns are others' to multiply.
const LEAST: usize = 128;
/// The registers of sums.
const SUMS: Name = "sum";

/// Whether a device has such tensor cores, and shared memory for these tiles.
pub(super) fn multiplies(client: &Client) -> bool {
    crate::wgmma::multiplies(client, bytes(LARGE))
}

const fn new(rows: usize, columns: usize, stages: usize) -> Tiles {
    Tiles { rows, columns, down: 2 * PLANES, across: 1, depth: DEPTH, stages }
}

/// The most factors are used twice.
const LARGE: Tiles = new(128, 256, 4);
/// Two cubes are on a multiprocessor, so that one multiplies while the other begins or writes.
const SMALL: Tiles = new(128, 128, 3);
/// Cubes of large tiles from which on these are taken: two turns of a device.
const MANY: usize = 264;

/// Shared memory of a cube.
const fn bytes(tiles: Tiles) -> usize {
    ((tiles.rows + tiles.columns) * tiles.depth * 2 + 2 * BARRIER) * tiles.stages
}

/// The tiles of a product that can be multiplied so: where all operands are copied as they are, and tiles are filled.
pub(super) fn tiles(
    factors: FloatType,
    of: Product,
    a: &Matrices,
    b: &Matrices,
    finish: &Finish,
) -> Option<Tiles> {
    let copied = |m: &Matrices, along: bool, across: usize, depth: usize| {
        let apart = of.batches == 1 || m.matrix > 0;
        m.buffer.dtype == factors && apart && m.vector(if along { depth } else { across }, 8) == 8
    };
    let both = |a: &Matrices, b: &Matrices, depth: usize| {
        copied(a, !a.transposed, of.rows, depth) && copied(b, b.transposed, of.columns, depth)
    };
    let more = finish.more.as_ref().is_none_or(|more| both(&more.a, &more.b, more.depth));
    let fits = of.rows.min(of.columns) >= LEAST && of.depth >= DEPTH;
    let large = of.batches * of.rows.div_ceil(LARGE.rows) * of.columns.div_ceil(LARGE.columns) >= MANY;
    (fits && more && both(a, b, of.depth)).then_some(if large { LARGE } else { SMALL })
}

/// Boxes of so many matrices, as tiles of `across` rows or columns take them.
pub(super) fn boxes(
    m: &Matrices,
    batches: usize,
    along: bool,
    [all_across, depth]: [usize; 2],
    across: usize,
) -> TensorMapArg<Tiled> {
    let bytes = m.buffer.dtype.bytes();
    let handle = m.buffer.handle.clone().offset_start((m.first * bytes) as u64);
    let [lines, elements, boxed] =
        if along { [all_across, depth, across] } else { [depth, all_across, DEPTH] };
    let matrix = if batches == 1 { lines * m.line } else { m.matrix };
    // SAFETY: the matrices lie in their buffer.
    let tensor = unsafe {
        TensorArg::from_raw_parts(handle, strides![matrix, m.line, 1], shape![batches, lines, elements])
    };
    TensorMapArg::new(TiledArgs { tile_size: shape![1, boxed, LINE] }, tensor, m.buffer.dtype.elem())
        .with_swizzle(TensorMapSwizzle::B128)
        .with_prefetch(TensorMapPrefetch::B256)
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn multiply_by_warpgroups<E: Float, C: Float, O: Float, N: Size>(
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    p: &TensorMap<E, Tiled>,
    q: &TensorMap<E, Tiled>,
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_c: Place,
    of_d: Place,
    sizes: Sizes,
    groups: Grouping,
    #[comptime] along: [bool; 2],
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[comptime] dtype: FloatType,
    #[comptime] of_line: usize,
    #[define(E)] _factors: ElemType,
    #[define(C)] _c_type: ElemType,
    #[define(O)] _d_type: ElemType,
) {
    let stages = comptime!(tiles.stages);
    let planes = comptime!(tiles.down);
    begin_sums(SUMS, comptime!(tiles.rows / planes * tiles.columns / PLANE));
    let share = share(&sizes, &groups, tiles.rows, tiles.columns);
    if !share.any {
        terminate!();
    }
    let left = comptime!(Tile { along: along[0], across: tiles.rows, depth: DEPTH });
    let right = comptime!(Tile { along: along[1], across: tiles.columns, depth: DEPTH });
    let both = comptime!(left.eights() + right.eights());
    let mut held = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(both * stages), ALIGNMENT);
    let barriers = Shared::<[Barrier]>::new_aligned_slice(comptime!(2 * stages), BARRIER);
    let there = address::<Barrier>(barriers.as_ptr());
    let free = there + comptime!((stages * BARRIER) as u32);
    if UNIT_POS == 0 {
        #[unroll]
        for stage in 0..stages {
            init(there + comptime!((stage * BARRIER) as u32), 1usize);
            init(free + comptime!((stage * BARRIER) as u32), planes);
        }
        publish();
    }
    sync_cube();
    let own = (share.to - share.from).div_ceil(DEPTH);
    let mut slabs = own;
    if comptime!(form.more) {
        slabs += share.more.div_ceil(DEPTH);
    }
    let plane = plane_broadcast(UNIT_POS / PLANE as u32, 0u32) as usize;
    let lane = UNIT_POS as usize % PLANE;
    if plane == planes {
        if lane == 0 {
            for slab in 0..slabs {
                let stage = slab % stages;
                let of_stage = (stage * BARRIER) as u32;
                // Its place is free from the first.
                pass(free + of_stage, (slab / stages + 1) as u32 % 2);
                announce(there + of_stage, comptime!(both * 16));
                let barrier = &barriers[stage];
                let at = stage * both;
                let right_at = at + comptime!(left.eights());
                if slab < own {
                    let depth = share.from + slab * DEPTH;
                    bring::<E>(a, barrier, &mut held, at, share.left, share.row, depth, left);
                    bring::<E>(b, barrier, &mut held, right_at, share.right, share.column, depth, right);
                }
                if comptime!(form.more) {
                    if slab >= own {
                        let depth = (slab - own) * DEPTH;
                        bring::<E>(p, barrier, &mut held, at, share.left, share.row, depth, left);
                        bring::<E>(q, barrier, &mut held, right_at, share.right, share.column, depth, right);
                    }
                }
            }
        }
    } else {
        let warpgroup = plane / PLANES;
        let strips = comptime!(tiles.rows * PLANES / planes / ROWS);
        let place = address::<Eight<E>>(held.as_ptr()) / 16u32;
        let lefts =
            place + (warpgroup * comptime!(left.from(strips * ROWS))) as u32 + comptime!(left.described());
        let rights = place + comptime!(left.eights() as u32 + right.described());
        if comptime!(form.whole && form.add) {
            ask_for_added::<C, N>(c, &share, &of_c, &sizes, of_line, tiles);
        }
        for slab in 0..slabs {
            let stage = slab % stages;
            pass(there + (stage * BARRIER) as u32, (slab / stages) as u32 % 2);
            add_slab(lefts, rights, (stage * both) as u32, strips, left, right, along, dtype);
            wait(1usize);
            // The products of the slab before are done.
            let arrives = select(slab > 0 && lane == 0, 1u32, 0u32);
            arrive(free + ((slab + stages - 1) % stages * BARRIER) as u32, arrives);
        }
        wait(0usize);
        write::<C, O, N>(&share, c, bias, d, &of_c, &of_d, &sizes, form, tiles);
    }
}

/// Has what is added to this cube's sums brought to the second-level cache while they are made: `c` may be `d`, so that a unit loads
/// a vector when it has written the one before, and would wait for memory each time. A line has `of_line` vectors.
#[cube]
fn ask_for_added<C: Float, N: Size>(
    c: &[Vector<C, N>],
    share: &Share,
    of_c: &Place,
    sizes: &Sizes,
    #[comptime] of_line: usize,
    #[comptime] tiles: Tiles,
) {
    let size = N::value();
    let units = comptime!(tiles.units());
    let lines = comptime!(tiles.columns.div_ceil(of_line * size));
    let first = of_c.first + share.batch * of_c.matrix;
    #[unroll]
    for turn in 0..comptime!(tiles.rows * lines / units) {
        let number = turn * units + UNIT_POS as usize;
        let row = share.row + number / lines;
        let column = share.column / size + number % lines * of_line;
        if row < sizes.rows && column * size < sizes.columns {
            let at = first + row * of_c.line + column;
            prefetch::<Vector<C, N>>(c[at..at + 1].as_ptr());
        }
    }
}

/// Begins the products of a slab, a group, of which the tiles are `at` further in shared memory than `lefts` and `rights` say.
#[cube]
fn add_slab(
    lefts: u32,
    rights: u32,
    at: u32,
    #[comptime] strips: usize,
    #[comptime] left: Tile,
    #[comptime] right: Tile,
    #[comptime] along: [bool; 2],
    #[comptime] factors: FloatType,
) {
    begin();
    #[unroll]
    for step in 0..comptime!(DEPTH / STRIP) {
        #[unroll]
        for strip in 0..strips {
            let of_left = lefts + at + comptime!((left.step(step) + left.from(strip * ROWS)) as u32);
            let of_right = rights + at + comptime!(right.step(step) as u32);
            add(
                u64::cast_from(of_left) | DESCRIBED,
                u64::cast_from(of_right) | DESCRIBED,
                SUMS,
                comptime!(strip * right.across / 2),
                comptime!(right.across),
                along,
                factors,
            );
        }
    }
    commit();
}

/// Writes the sums of this unit.
#[cube]
fn write<C: Float, O: Float, N: Size>(
    share: &Share,
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_c: &Place,
    of_d: &Place,
    sizes: &Sizes,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let strips = comptime!(tiles.rows * PLANES / tiles.down / ROWS);
    let of_strip = comptime!(tiles.columns / 2);
    let lane = UNIT_POS as usize % PLANE;
    let plane = UNIT_POS as usize / PLANE;
    let row = share.row + plane / PLANES * comptime!(strips * ROWS) + plane % PLANES * STRIP + lane / 4;
    let column = share.column + lane % QUAD * 8;
    let d_first = written_from(share, sizes, of_d, form);
    let c_first = of_c.first + share.batch * of_c.matrix;
    #[unroll]
    for strip in 0..strips {
        #[unroll]
        for half in 0..2usize {
            #[unroll]
            for group in 0..comptime!(tiles.columns / 8 / QUAD) {
                let mut pairs = Array::<Pair<f32>>::new(QUAD);
                #[unroll]
                for block in 0..QUAD {
                    let at = comptime!(strip * of_strip + (group * QUAD + block) * 4 + half * 2);
                    pairs[block] = pair::<f32>(sum(SUMS, at), sum(SUMS, comptime!(at + 1)));
                }
                exchange_pairs(&mut pairs, 1usize);
                exchange_pairs(&mut pairs, 2usize);
                put_run::<C, O, N>(
                    &pairs,
                    QUAD,
                    row + comptime!(strip * ROWS + half * 8),
                    column + comptime!(group * QUAD * 8),
                    c,
                    bias,
                    share.bias,
                    d,
                    c_first,
                    of_c.line,
                    d_first,
                    of_d.line,
                    sizes,
                    form,
                );
            }
        }
    }
}

/// [`exchange`] of pairs.
#[cube]
fn exchange_pairs(pairs: &mut Array<Pair<f32>>, #[comptime] across: usize) {
    #[unroll]
    for k in 0..2usize {
        let mut ones = Array::<f32>::new(QUAD);
        #[unroll]
        for i in 0..QUAD {
            ones[i] = pairs[i].extract(k);
        }
        exchange::<f32>(&mut ones, across);
        #[unroll]
        for i in 0..QUAD {
            let mut pair = pairs[i];
            pair.insert(k, ones[i]);
            pairs[i] = pair;
        }
    }
}

/// Elements of a vector of sixteen bytes at most, of what is written and what is added.
pub(super) fn written(c: &Matrices, d: &Matrices) -> usize {
    16 / c.buffer.dtype.bytes().max(d.buffer.dtype.bytes())
}

/// Vectors of a buffer in a line of the caches, of 128 bytes.
pub(super) fn of_line(m: &Matrices, size: usize) -> usize {
    128 / m.buffer.dtype.bytes() / size
}

/// Units of a cube: those that multiply, and a plane that asks for tiles.
pub(super) fn units(tiles: Tiles) -> usize {
    tiles.units() + PLANE
}
