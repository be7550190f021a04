//! Products with a thin matrix, as an adapter's are, by tensor cores: the long one goes from memory straight to the registers that
//! multiply it, sixteen bytes at a time.
//!
//! Which factor of a sum stands where is free as long as both operands agree, so a unit takes eight neighbours of a line and
//! calls them what its registers are called.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::finish::Place;
use super::{Add, Finish, Matrices, Product};
use crate::buffer::{Buffer, FloatType, address};
use crate::mma::{Eight, PLANE, Pair, STRIP, add, pair};
use crate::row;

/// Columns of a thin matrix at most.
pub(super) const MOST: usize = burnish_core::ADAPTERS_TOGETHER[1];
/// Strips of rows of a cube, and planes that share the factors of each.
const STRIPS: usize = 2;
const SHARES: usize = 4;
/// Planes of a cube that share the lines of its columns; fewer where a thin matrix is wider than a strip.
const PLANES: usize = 8;
const FEW_PLANES: usize = 4;
/// Blocks of 32 factors, and of 16, that a unit asks for together.
const ROWS_AHEAD: usize = 8;
const COLUMNS_AHEAD: usize = 4;
/// Eights of a column of the thin matrix that a plane has in shared memory, and from column to column: neighbouring columns lie in
/// other banks.
const SLAB: usize = 4 * ROWS_AHEAD;
const PITCH: usize = SLAB + 4;
/// Rows of an output, or factors of a sum, from which on this is done; below few planes would have anything to do.
const LONG: usize = burnish_core::ADAPTERS_TOGETHER[0];
/// Columns of a plane: a unit has eight neighbours.
pub(super) const WIDE: usize = 64;
/// Cubes that fill a device, of no device in particular; and parts of a sum at most.
const FULL: usize = 264;
const PARTS: usize = 16;

/// Shared memory of [`by_rows`]: slabs of the thin matrix, and sums of all shares.
fn bytes_of_rows(columns: usize) -> usize {
    let blocks = columns.div_ceil(8);
    SHARES * blocks * 8 * PITCH * 16 + STRIPS * SHARES * PLANE * blocks * 2 * 8
}

/// A product of `[rows, depth]`, whose lines are rows, and a thin `[depth, columns]` of which a cube's slabs are within `shared` bytes.
pub(super) fn of_rows(factors: FloatType, of: Product, a: &Matrices, finish: &Finish, shared: usize) -> bool {
    let plain = finish.more.is_none() && finish.bias.is_none() && matches!(finish.add, Add::Nothing);
    let held = !a.transposed && a.buffer.dtype == factors && a.vector(of.depth, 8) == 8;
    plain && held && of.batches == 1 && fits(of.rows, of.columns, shared)
}

/// Whether there are rows for so many planes, and shared memory for so many columns.
pub(super) fn fits(rows: usize, columns: usize, shared: usize) -> bool {
    rows >= LONG && columns <= MOST && bytes_of_rows(columns) <= shared
}

/// The operands of a product that sums over the lines of both: the thin one first, and whether the output has a line for each
/// column of the long one.
pub(super) fn of_columns<'m>(
    factors: FloatType,
    of: Product,
    a: &'m Matrices,
    b: &'m Matrices,
    finish: &Finish,
) -> Option<[&'m Matrices; 2]> {
    if finish.more.is_some() || of.batches != 1 || of.depth < LONG || !a.transposed || b.transposed {
        return None;
    }
    let held = |m: &Matrices, width| width > MOST && m.buffer.dtype == factors && m.vector(width, 8) == 8;
    if of.rows <= MOST && held(b, of.columns) {
        Some([a, b])
    } else if of.columns <= MOST && held(a, of.rows) {
        Some([b, a])
    } else {
        None
    }
}

/// Where lines of a long matrix begin that belong to a second and a third thin one.
#[derive(Clone, Copy)]
pub(super) struct Bounds([usize; 2]);

impl Bounds {
    /// One behind the other with so many each, three at most.
    pub(super) fn of(lengths: &[usize]) -> Self {
        let end = |count: usize| lengths.iter().take(count).sum();
        Self([end(1), end(2)])
    }
}

/// [`of_rows`]'s product, written to `d`, of whose matrices each has `each` of the columns; of the factors between `bounds` each by
/// itself, to a matrix of its own.
pub(super) fn multiply_rows(
    client: &Client,
    (factors, of): (FloatType, Product),
    [a, b, d]: [&Matrices; 3],
    (each, bounds): (usize, Bounds),
    scale: f32,
) {
    let Bounds([second, third]) = bounds;
    let count = 1 + usize::from(second < of.depth) + usize::from(third < of.depth);
    let strips = of.rows.div_ceil(STRIPS * STRIP);
    let along = b.transposed;
    let size = b.vector(if along { of.depth } else { of.columns }, 16 / b.buffer.dtype.bytes());
    // SAFETY: the kernel reads and writes rows and columns that there are, of matrices that lie in their buffers.
    unsafe {
        by_rows::launch_unchecked(
            client,
            row::cubes(client, count * strips),
            CubeDim::new_1d((STRIPS * SHARES * PLANE) as u32),
            address(&[&a.buffer, &b.buffer, &d.buffer]),
            size,
            a.buffer.arg(8),
            b.buffer.arg(size),
            d.buffer.arg(1),
            a.place(8),
            b.place(size),
            d.place(1),
            of.rows,
            of.depth,
            second,
            third,
            strips,
            scale,
            of.columns,
            each,
            along,
            b.buffer.dtype.elem(),
            d.buffer.dtype.elem(),
            factors.elem(),
        );
    }
}

/// Parts of [`of_columns`]'s sums, one matrix after the other in f32, and how many. Each of the thin one's matrices has `each_thin` of
/// its columns; lines of the output between `bounds`, multiples of [`WIDE`], are by matrices of their own.
pub(super) fn sums_of_columns(
    client: &Client,
    (factors, of): (FloatType, Product),
    [thin, long]: [&Matrices; 2],
    (each_thin, bounds): (usize, Bounds),
) -> (Buffer, usize) {
    let Bounds([second, third]) = bounds;
    let turned = of.columns <= MOST && of.rows > MOST;
    let (rank, width) = if turned { (of.columns, of.rows) } else { (of.rows, of.columns) };
    let groups = width.div_ceil(WIDE);
    let planes = if rank <= STRIP { PLANES } else { FEW_PLANES };
    let wanted = FULL.div_ceil(groups).clamp(1, PARTS);
    let each = of.depth.div_ceil(wanted).next_multiple_of(STRIP * COLUMNS_AHEAD * planes);
    let parts = of.depth.div_ceil(each);
    let sums = Buffer::empty(client, parts * rank * width, FloatType::F32);
    // SAFETY: as in `multiply_rows`.
    unsafe {
        by_columns::launch_unchecked(
            client,
            row::cubes(client, groups * parts),
            CubeDim::new_1d((planes * PLANE) as u32),
            address(&[&thin.buffer, &long.buffer, &sums]),
            thin.buffer.arg(1),
            long.buffer.arg(8),
            sums.arg(1),
            thin.place(1),
            long.place(8),
            width,
            of.depth,
            second,
            third,
            each,
            parts,
            rank,
            each_thin,
            turned,
            planes,
            thin.buffer.dtype.elem(),
            factors.elem(),
        );
    }
    (sums, parts)
}

/// Eight neighbours of this unit's two rows for each block of a slab; behind the last those of the last, which zeros meet.
#[cube]
fn fetch<E: Float>(
    a: &[Eight<E>],
    upper: usize,
    lower: usize,
    begin: usize,
    eights: usize,
    uppers: &mut Array<Eight<E>>,
    lowers: &mut Array<Eight<E>>,
) {
    #[unroll]
    for i in 0..ROWS_AHEAD {
        let at = min(begin + comptime!(4 * i) + UNIT_POS as usize % 4, eights - 1);
        uppers[i] = a[upper + at];
        lowers[i] = a[lower + at];
    }
}

/// Brings the slabs of all shares of the thin matrix to shared memory, column by column; zeros behind the last factor.
#[cube]
fn stage<B: Float, S: Size, E: Float>(
    b: &[Vector<B, S>],
    of_b: &Place,
    begin: usize,
    eights: usize,
    into: &mut [Eight<E>],
    #[comptime] columns: usize,
    #[comptime] along: bool,
) {
    let size = S::value();
    let all = comptime!(columns.div_ceil(8) * 8);
    // Eights of neighbouring columns that a unit brings at once: where those lie beside each other, as many as a vector has.
    let together = comptime!(if along { 1 } else { size });
    let groups = comptime!(all / together);
    let items = comptime!(groups * SHARES * SLAB);
    let units = comptime!(STRIPS * SHARES * PLANE);
    #[unroll]
    for turn in 0..comptime!(items.div_ceil(units)) {
        let item = turn * units + UNIT_POS as usize;
        // Neighbouring units bring what lies beside each other.
        let mut group = item % groups;
        let mut of_slab = item / groups;
        if comptime!(along) {
            group = item / comptime!(SHARES * SLAB);
            of_slab = item % comptime!(SHARES * SLAB);
        }
        if item < items {
            let there = begin + of_slab < eights;
            let factor = min(begin + of_slab, eights - 1) * 8;
            let of_group = min(group, comptime!(columns.div_ceil(together) - 1));
            let mut brought = Array::<Eight<E>>::new(together);
            if comptime!(along) {
                let mut eight = Eight::<E>::new(E::from_int(0));
                #[unroll]
                for k in 0..comptime!(8 / size) {
                    let vector = b[of_b.first + of_group * of_b.line + factor / size + k];
                    #[unroll]
                    for j in 0..size {
                        let one = select(there, E::cast_from(vector.extract(j)), E::from_int(0));
                        eight.insert(comptime!(k * size + j), one);
                    }
                }
                brought[0] = eight;
            } else {
                let mut lines = Array::<Vector<B, S>>::new(8usize);
                #[unroll]
                for k in 0..8usize {
                    lines[k] = b[of_b.first + (factor + k) * of_b.line + of_group];
                }
                #[unroll]
                for j in 0..together {
                    let mut eight = Eight::<E>::new(E::from_int(0));
                    #[unroll]
                    for k in 0..8usize {
                        let one = select(there, E::cast_from(lines[k].extract(j)), E::from_int(0));
                        eight.insert(k, one);
                    }
                    brought[j] = eight;
                }
            }
            let at = (of_slab / SLAB * all + group * together) * PITCH + of_slab % SLAB;
            #[unroll]
            for j in 0..together {
                into[at + comptime!(j * PITCH)] = brought[j];
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn by_rows<B: Float, O: Float, E: Float, S: Size>(
    a: &[Eight<E>],
    b: &[Vector<B, S>],
    d: &mut [O],
    of_a: Place,
    of_b: Place,
    of_d: Place,
    rows: usize,
    depth: usize,
    second: usize,
    third: usize,
    strips: usize,
    scale: f32,
    #[comptime] columns: usize,
    #[comptime] each: usize,
    #[comptime] along: bool,
    #[define(B)] _b_type: ElemType,
    #[define(O)] _d_type: ElemType,
    #[define(E)] _factors: ElemType,
) {
    let blocks = comptime!(columns.div_ceil(8));
    let unit = UNIT_POS as usize;
    let (lane, plane) = (unit % PLANE, unit / PLANE);
    let (strip, share) = (plane % STRIPS, plane / STRIPS);
    let (g, t) = (lane / 4, lane % 4);
    let (which, of_cube) = (CUBE_POS / strips, CUBE_POS % strips * comptime!(STRIPS * STRIP));
    let from = select(which == 0, 0, select(which == 1, second, third));
    let to = select(which == 0, second, select(which == 1, third, depth));
    if which > 2 || from >= to {
        terminate!();
    }
    let upper = of_cube + strip * STRIP + g;
    let lower = upper + 8;
    // Rows that there are not are computed as the last one, and not written.
    let upper_at = of_a.first + min(upper, rows - 1) * of_a.line;
    let lower_at = of_a.first + min(lower, rows - 1) * of_a.line;
    let (first, eights) = (from / 8, to / 8);
    let own = share * SLAB;
    let step = comptime!(SHARES * SLAB);
    let rights_at = share * comptime!(blocks * 8 * PITCH);
    let mut rights = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(SHARES * blocks * 8 * PITCH), 16usize);
    let mut shared =
        Shared::<[Pair<f32>]>::new_aligned_slice(comptime!(STRIPS * SHARES * PLANE * blocks * 2), 16usize);
    let mut sums = Array::<Pair<f32>>::new(comptime!(blocks * 2));
    #[unroll]
    for i in 0..comptime!(blocks * 2) {
        sums[i] = Pair::<f32>::new(0.0);
    }
    let mut uppers = Array::<Eight<E>>::new(ROWS_AHEAD);
    let mut lowers = Array::<Eight<E>>::new(ROWS_AHEAD);
    let mut next_uppers = Array::<Eight<E>>::new(ROWS_AHEAD);
    let mut next_lowers = Array::<Eight<E>>::new(ROWS_AHEAD);
    fetch::<E>(a, upper_at, lower_at, first + own, eights, &mut uppers, &mut lowers);
    for begin in range_stepped(first, eights, step) {
        if begin + step < eights {
            // On its way while this slab is multiplied.
            let next = begin + step + own;
            fetch::<E>(a, upper_at, lower_at, next, eights, &mut next_uppers, &mut next_lowers);
        }
        sync_cube();
        stage::<B, S, E>(b, &of_b, begin, eights, &mut rights, columns, along);
        sync_cube();
        #[unroll]
        for i in 0..ROWS_AHEAD {
            let mut lefts = Sequence::<Array<Pair<E>>>::new();
            #[unroll]
            for step in 0..2usize {
                let mut left = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for half in 0..2usize {
                    let k = comptime!(step * 4 + half * 2);
                    left[comptime!(half * 2)] =
                        pair::<E>(uppers[i].extract(k), uppers[i].extract(comptime!(k + 1)));
                    left[comptime!(half * 2 + 1)] =
                        pair::<E>(lowers[i].extract(k), lowers[i].extract(comptime!(k + 1)));
                }
                lefts.push(left);
            }
            #[unroll]
            for block in 0..blocks {
                let eight = rights[rights_at + (g + comptime!(block * 8)) * PITCH + t + comptime!(i * 4)];
                let mut right = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for k in 0..4usize {
                    right[k] =
                        pair::<E>(eight.extract(comptime!(2 * k)), eight.extract(comptime!(2 * k + 1)));
                }
                #[unroll]
                for step in 0..2usize {
                    add::<E>(lefts.index(step), &right, step, &mut sums, comptime!(block * 2));
                }
            }
        }
        #[unroll]
        for i in 0..ROWS_AHEAD {
            uppers[i] = next_uppers[i];
            lowers[i] = next_lowers[i];
        }
    }
    #[unroll]
    for i in 0..comptime!(blocks * 2) {
        shared[(i * comptime!(STRIPS * SHARES) + plane) * PLANE + lane] = sums[i];
    }
    sync_cube();
    // Each plane adds what all shares of its strip have of some blocks and halves.
    #[unroll]
    for turn in 0..comptime!((blocks * 2).div_ceil(SHARES)) {
        let i = turn * SHARES + share;
        if i < comptime!(blocks * 2) {
            let mut sum = Pair::<f32>::new(0.0);
            #[unroll]
            for of in 0..SHARES {
                sum += shared[(i * comptime!(STRIPS * SHARES) + strip + of * STRIPS) * PLANE + lane];
            }
            let row = upper + i % 2 * 8;
            #[unroll]
            for k in 0..2usize {
                let column = i / 2 * 8 + t * 2 + k;
                if column < columns && row < rows {
                    let matrix = of_d.first + (which + column / each) * of_d.matrix;
                    d[matrix + row * of_d.line + column % each] = O::cast_from(sum.extract(k) * scale);
                }
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn by_columns<A: Float, E: Float>(
    thin: &[A],
    long: &[Eight<E>],
    sums: &mut [f32],
    of_thin: Place,
    of_long: Place,
    width: usize,
    depth: usize,
    second: usize,
    third: usize,
    each: usize,
    parts: usize,
    #[comptime] rank: usize,
    #[comptime] each_thin: usize,
    #[comptime] turned: bool,
    #[comptime] planes: usize,
    #[define(A)] _thin_type: ElemType,
    #[define(E)] _factors: ElemType,
) {
    let strips = comptime!(rank.div_ceil(STRIP));
    let unit = UNIT_POS as usize;
    let (lane, plane) = (unit % PLANE, unit / PLANE);
    let (g, t) = (lane / 4, lane % 4);
    let (group, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if group * WIDE >= width {
        terminate!();
    }
    // Columns that there are not are computed as others, and not written.
    let column = min(group * WIDE + g * 8, width - 8);
    let (from, to) = (part * each, min(part * each + each, depth));
    let first = of_long.first + column / 8;
    let which = select(group * WIDE >= third, 2usize, select(group * WIDE >= second, 1usize, 0usize));
    let mut held = Array::<Pair<f32>>::new(comptime!(strips * 16));
    #[unroll]
    for i in 0..comptime!(strips * 16) {
        held[i] = Pair::<f32>::new(0.0);
    }
    let mut rows = Array::<Eight<E>>::new(comptime!(COLUMNS_AHEAD * 4));
    let mut lefts = Array::<Pair<E>>::new(comptime!(COLUMNS_AHEAD * strips * 4));
    let zero = Eight::<E>::new(E::from_int(0));
    let mut shared =
        Shared::<[Pair<f32>]>::new_aligned_slice(comptime!(planes * PLANE * strips * 16), 16usize);
    let ahead = comptime!(STRIP * COLUMNS_AHEAD);
    for begin in range_stepped(from + plane * ahead, to, comptime!(planes * STRIP * COLUMNS_AHEAD)) {
        // All is asked for before anything is multiplied. Behind the last line are zeros, and what zeros meet.
        #[unroll]
        for i in 0..comptime!(COLUMNS_AHEAD * 4) {
            let line = begin + t * 2 + comptime!(i / 4 * STRIP + i % 4 / 2 * 8 + i % 2);
            rows[i] = long[first + min(line, to - 1) * of_long.line];
        }
        #[unroll]
        for i in 0..comptime!(COLUMNS_AHEAD * strips * 4) {
            // Rows g and g + 8 of the left operand, then the same of the lines 8 further.
            let row = min(g + comptime!(i / 4 % strips * STRIP + i % 2 * 8), comptime!(rank - 1));
            let line = begin + t * 2 + comptime!(i / 4 / strips * STRIP + i % 4 / 2 * 8);
            let mut both = Pair::<E>::new(E::from_int(0));
            #[unroll]
            for k in 0..2usize {
                let matrix = of_thin.first + (which + row / each_thin) * of_thin.matrix;
                let at = matrix + min(line + k, to - 1) * of_thin.line + row % each_thin;
                both.insert(k, E::cast_from(thin[at]));
            }
            lefts[i] = both;
        }
        #[unroll]
        for i in 0..comptime!(COLUMNS_AHEAD * 4) {
            let line = begin + t * 2 + comptime!(i / 4 * STRIP + i % 4 / 2 * 8 + i % 2);
            if line >= to {
                rows[i] = zero;
            }
        }
        #[unroll]
        for step in 0..COLUMNS_AHEAD {
            #[unroll]
            for two in 0..4usize {
                let mut right = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for i in 0..4usize {
                    let of_block = comptime!(two * 2 + i / 2);
                    let line = comptime!(step * 4 + i % 2 * 2);
                    right[i] =
                        pair::<E>(rows[line].extract(of_block), rows[comptime!(line + 1)].extract(of_block));
                }
                #[unroll]
                for strip in 0..strips {
                    let mut left = Array::<Pair<E>>::new(4usize);
                    #[unroll]
                    for i in 0..4usize {
                        left[i] = lefts[comptime!((step * strips + strip) * 4 + i)];
                    }
                    #[unroll]
                    for side in 0..2usize {
                        let at = comptime!((strip * 8 + two * 2 + side) * 2);
                        add::<E>(&left, &right, side, &mut held, at);
                    }
                }
            }
        }
    }
    #[unroll]
    for i in 0..comptime!(strips * 16) {
        shared[(i * planes + plane) * PLANE + lane] = held[i];
    }
    sync_cube();
    let matrix = part * comptime!(rank) * width;
    // Each plane adds what all have of some strips, blocks and halves.
    #[unroll]
    for turn in 0..comptime!(strips * 16 / planes) {
        let i = turn * planes + plane;
        let mut sum = Pair::<f32>::new(0.0);
        #[unroll]
        for of in 0..planes {
            sum += shared[(i * planes + of) * PLANE + lane];
        }
        let row = g + i / 16 * STRIP + i % 2 * 8;
        #[unroll]
        for k in 0..2usize {
            let column = group * WIDE + (t * 2 + k) * 8 + i / 2 % 8;
            if row < rank && column < width {
                if comptime!(turned) {
                    sums[matrix + column * rank + row] = sum.extract(k);
                } else {
                    sums[matrix + row * width + column] = sum.extract(k);
                }
            }
        }
    }
}
