//! Products by tensor cores: 16 by 8 by 16 in the registers of a plane.
//!
//! A plane has strips of 16 rows by blocks of 16 columns. What a unit has of one is four pairs: columns 2t and 2t + 1 of rows g
//! and g + 8, then the same of the columns 8 further, where g is a fourth of the unit's place in its plane and t the rest.

use cubecl_core as cubecl;
use cubecl_core::cmma::{MatrixIdent, MmaDefinition};
use cubecl_core::prelude::*;

use super::finish::{Form, Four, Grouping, Place, Sizes, put, share, written_from};
use super::stage::{self, Held, Tile, Window, window};
use super::tiles::Tiles;
use crate::mma::{Eight, PLANE, Pair, STRIP, add, commit, wait};

/// A block of 16 by 16 of an operand, from `across` of rows or columns and `depth`, as products take it.
#[cube]
fn load<E: Float>(
    from: &[Eight<E>],
    at: usize,
    across: usize,
    depth: usize,
    #[comptime] ident: MatrixIdent,
    #[comptime] tile: Tile,
) -> Array<Pair<E>> {
    let product = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let lane = UNIT_POS as usize % PLANE;
    // The second of four matrices of 8 by 8 is further down the rows of the left operand, or the depth of the right one.
    let second_across = comptime!(matches!(ident, MatrixIdent::A));
    let mut of_across = lane / 16 * 8;
    let mut of_depth = lane / 8 % 2 * 8;
    if comptime!(second_across) {
        of_across = lane / 8 % 2 * 8;
        of_depth = lane / 16 * 8;
    }
    let mut line = depth + of_depth + lane % 8;
    let mut eight = across / 8 + of_across / 8;
    if comptime!(tile.along) {
        line = across + of_across + lane % 8;
        eight = depth / 8 + of_depth / 8;
    }
    let at = at + line * comptime!(tile.pitch()) + eight;
    product.load_matrix::<Eight<E>, Const<2>>(&from[at..at + 1], ident, 4usize, comptime!(!tile.along))
}

/// Loads what a plane multiplies in a step of a slab: its strips of the left operand, then its blocks of the right one, four
/// pairs each, to one of two sides of `into`.
#[cube]
fn load_step<E: Float>(
    left: &[Eight<E>],
    left_at: usize,
    right: &[Eight<E>],
    right_at: usize,
    row: usize,
    column: usize,
    into: &mut Array<Pair<E>>,
    #[comptime] step: usize,
    #[comptime] of_left: Tile,
    #[comptime] of_right: Tile,
    #[comptime] tiles: Tiles,
) {
    let (strips, blocks) = comptime!((tiles.strips(), tiles.blocks()));
    let first = comptime!(step % 2 * (strips + blocks) * 4);
    let depth = comptime!(step % tiles.steps() * STRIP).runtime();
    #[unroll]
    for strip in 0..strips {
        let four = load::<E>(left, left_at, row + strip * STRIP, depth, MatrixIdent::A, of_left);
        #[unroll]
        for i in 0..4usize {
            into[comptime!(first + strip * 4 + i)] = four[i];
        }
    }
    #[unroll]
    for block in 0..blocks {
        let four = load::<E>(right, right_at, column + block * STRIP, depth, MatrixIdent::B, of_right);
        #[unroll]
        for i in 0..4usize {
            into[comptime!(first + (strips + block) * 4 + i)] = four[i];
        }
    }
}

/// Four pairs from `at`.
#[cube]
fn four<E: Float>(of: &Array<Pair<E>>, #[comptime] at: usize) -> Array<Pair<E>> {
    let mut four = Array::<Pair<E>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        four[i] = of[comptime!(at + i)];
    }
    four
}

/// Adds the products of a step of a slab to this plane's sums.
#[cube]
fn multiply_step<E: Float>(
    of: &Array<Pair<E>>,
    into: &mut Array<Pair<f32>>,
    #[comptime] step: usize,
    #[comptime] tiles: Tiles,
) {
    let (strips, blocks) = comptime!((tiles.strips(), tiles.blocks()));
    let first = comptime!(step % 2 * (strips + blocks) * 4);
    #[unroll]
    for block in 0..blocks {
        let right = four::<E>(of, comptime!(first + (strips + block) * 4));
        #[unroll]
        for strip in 0..strips {
            let left = four::<E>(of, comptime!(first + strip * 4));
            let at = comptime!((strip * blocks + block) * 4);
            add::<E>(&left, &right, 0usize, into, at);
            add::<E>(&left, &right, 1usize, into, comptime!(at + 2));
        }
    }
}

/// Of pairs of neighbouring columns, and of those eight columns further, four neighbours: units beside each other swap one, so
/// that the one has the first eight columns' and the other those of the next.
#[cube]
fn fours(first: Pair<f32>, second: Pair<f32>, lane: usize) -> Four {
    let odd = lane % 2 == 1;
    let mut four = Four::new(0.0);
    #[unroll]
    for i in 0..2usize {
        let (near, far) = (first.extract(i), second.extract(i));
        let other = plane_shuffle_xor(select(odd, near, far), 1u32);
        four.insert(i, select(odd, other, near));
        four.insert(comptime!(2 + i), select(odd, far, other));
    }
    four
}

/// Begins to bring a tile to `at` of shared memory: to there, or to registers.
#[cube]
fn begin<S: Float, L: Size, E: Float>(
    source: &[Vector<S, L>],
    window: &Window,
    slab: usize,
    raw: &mut Array<Vector<S, L>>,
    into: &mut [Eight<E>],
    at: usize,
    #[comptime] held: Held,
    #[comptime] tile: Tile,
) {
    if comptime!(held.asynchronous) {
        stage::copy::<S, L, E>(source, window, slab, into, at, tile);
    } else {
        stage::fetch::<S, L>(source, window, slab, raw, tile);
    }
}

/// Puts to shared memory what registers hold.
#[cube]
fn end<S: Float, L: Size, E: Float>(
    raw: &Array<Vector<S, L>>,
    into: &mut [Eight<E>],
    at: usize,
    #[comptime] held: Held,
    #[comptime] tile: Tile,
) {
    if comptime!(!held.asynchronous) {
        stage::put::<S, L, E>(raw, into, at, tile);
    }
}

/// Begins to bring slab `turn` of both operands, of the first product or then of the other one, which is all brought.
#[cube]
fn bring<A: Float, B: Float, P: Float, Q: Float, E: Float, L: Size, R: Size, S: Size, T: Size>(
    a: &[Vector<A, L>],
    b: &[Vector<B, R>],
    p: &[Vector<P, S>],
    q: &[Vector<Q, T>],
    of_a: &Window,
    of_b: &Window,
    of_p: &Window,
    of_q: &Window,
    raw_a: &mut Array<Vector<A, L>>,
    raw_b: &mut Array<Vector<B, R>>,
    lefts: &mut [Eight<E>],
    rights: &mut [Eight<E>],
    left_at: usize,
    right_at: usize,
    turn: usize,
    own: usize,
    slabs: usize,
    #[comptime] first: [Held; 2],
    #[comptime] more: [Held; 2],
    #[comptime] form: Form,
    #[comptime] of_left: Tile,
    #[comptime] of_right: Tile,
    #[comptime] copies: bool,
) {
    if turn < own {
        begin::<A, L, E>(a, of_a, turn, raw_a, lefts, left_at, comptime!(first[0]), of_left);
        begin::<B, R, E>(b, of_b, turn, raw_b, rights, right_at, comptime!(first[1]), of_right);
    }
    if comptime!(form.more) {
        if turn >= own && turn < slabs {
            let slab = turn - own;
            let (s, t) = (S::value(), T::value());
            let mut raw_p = Array::<Vector<P, S>>::new(comptime!(of_left.turns() * 8 / s));
            let mut raw_q = Array::<Vector<Q, T>>::new(comptime!(of_right.turns() * 8 / t));
            begin::<P, S, E>(p, of_p, slab, &mut raw_p, lefts, left_at, comptime!(more[0]), of_left);
            begin::<Q, T, E>(q, of_q, slab, &mut raw_q, rights, right_at, comptime!(more[1]), of_right);
            end::<P, S, E>(&raw_p, lefts, left_at, comptime!(more[0]), of_left);
            end::<Q, T, E>(&raw_q, rights, right_at, comptime!(more[1]), of_right);
        }
    }
    if comptime!(copies) {
        commit();
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn multiply_by_cores<
    A: Float,
    B: Float,
    P: Float,
    Q: Float,
    C: Float,
    O: Float,
    E: Float,
    L: Size,
    R: Size,
    S: Size,
    T: Size,
    N: Size,
>(
    a: &[Vector<A, L>],
    b: &[Vector<B, R>],
    p: &[Vector<P, S>],
    q: &[Vector<Q, T>],
    c: &[Vector<C, N>],
    bias: &[f32],
    d: &mut [Vector<O, N>],
    of_a: Place,
    of_b: Place,
    of_p: Place,
    of_q: Place,
    of_c: Place,
    of_d: Place,
    sizes: Sizes,
    groups: Grouping,
    #[comptime] first: [Held; 2],
    #[comptime] more: [Held; 2],
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(A)] _a_type: ElemType,
    #[define(B)] _b_type: ElemType,
    #[define(P)] _p_type: ElemType,
    #[define(Q)] _q_type: ElemType,
    #[define(C)] _c_type: ElemType,
    #[define(O)] _d_type: ElemType,
    #[define(E)] _factors: ElemType,
) {
    let share = share(&sizes, &groups, tiles.rows, tiles.columns);
    if !share.any {
        terminate!();
    }
    let copies = comptime!(first.iter().chain(&more).any(|held| held.asynchronous));
    let of_left = comptime!(Tile::new(first[0].along, tiles.rows, tiles.depth, tiles.units()));
    let of_right = comptime!(Tile::new(first[1].along, tiles.columns, tiles.depth, tiles.units()));
    let (left_eights, right_eights) = comptime!((of_left.eights(), of_right.eights()));
    let mut lefts = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(left_eights * tiles.stages), 16usize);
    let mut rights = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(right_eights * tiles.stages), 16usize);
    let (l, r, s, t) = (L::value(), R::value(), S::value(), T::value());
    let mut raw_a = Array::<Vector<A, L>>::new(comptime!(of_left.turns() * 8 / l));
    let mut raw_b = Array::<Vector<B, R>>::new(comptime!(of_right.turns() * 8 / r));
    let (strips, blocks) = comptime!((tiles.strips(), tiles.blocks()));
    let mut sums = Array::<Pair<f32>>::new(comptime!(strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(strips * blocks * 4) {
        sums[i] = Pair::<f32>::new(0.0);
    }
    let plane = UNIT_POS as usize / PLANE;
    let row = plane / tiles.across * comptime!(strips * STRIP);
    let column = plane % tiles.across * comptime!(blocks * STRIP);
    let (across, all) = (share.row, sizes.rows);
    let of_a = window(
        of_a.first + share.left * of_a.matrix,
        of_a.line,
        across,
        all,
        share.from,
        share.to,
        l,
        of_left,
    );
    let of_p =
        window(of_p.first + share.left * of_p.matrix, of_p.line, across, all, 0usize, share.more, s, of_left);
    let (across, all) = (share.column, sizes.columns);
    let of_b = window(
        of_b.first + share.right * of_b.matrix,
        of_b.line,
        across,
        all,
        share.from,
        share.to,
        r,
        of_right,
    );
    let of_q = window(
        of_q.first + share.right * of_q.matrix,
        of_q.line,
        across,
        all,
        0usize,
        share.more,
        t,
        of_right,
    );
    // Slabs of the first product, then of the other one.
    let own = (share.to - share.from).div_ceil(tiles.depth);
    let mut slabs = own;
    if comptime!(form.more) {
        slabs += share.more.div_ceil(tiles.depth);
    }
    let lead = comptime!(tiles.stages - 1);
    let steps = comptime!(tiles.steps());
    let mut factors = Array::<Pair<E>>::new(comptime!(2 * (strips + blocks) * 4));

    // Some are brought before anything is multiplied; from then on one for each that is, to where the one before it lay.
    for turn in 0..lead {
        let (left_at, right_at) = (turn * left_eights, turn * right_eights);
        bring::<A, B, P, Q, E, L, R, S, T>(
            a,
            b,
            p,
            q,
            &of_a,
            &of_b,
            &of_p,
            &of_q,
            &mut raw_a,
            &mut raw_b,
            &mut lefts,
            &mut rights,
            left_at,
            right_at,
            turn,
            own,
            slabs,
            first,
            more,
            form,
            of_left,
            of_right,
            copies,
        );
        if turn < own {
            end::<A, L, E>(&raw_a, &mut lefts, left_at, comptime!(first[0]), of_left);
            end::<B, R, E>(&raw_b, &mut rights, right_at, comptime!(first[1]), of_right);
        }
    }
    if comptime!(copies) {
        wait(comptime!(tiles.stages - 2));
    }
    sync_cube();
    load_step::<E>(
        &lefts,
        0usize,
        &rights,
        0usize,
        row,
        column,
        &mut factors,
        0usize,
        of_left,
        of_right,
        tiles,
    );
    let mut here = 0usize;
    let mut free = comptime!(lead).runtime();
    for slab in 0..slabs {
        let mut next = here + 1;
        if next == tiles.stages {
            next = 0usize;
        }
        let turn = slab + lead;
        let (left_at, right_at) = (free * left_eights, free * right_eights);
        // The factors of a step are loaded while those of the step before it are multiplied.
        #[unroll]
        for step in 0..steps {
            if comptime!(step + 1 == steps) {
                // The next slab is there, for all units; and all have loaded what this one holds.
                if comptime!(copies) {
                    wait(comptime!(tiles.stages - 2));
                }
                sync_cube();
            }
            let from = if comptime!(step + 1 == steps) { next } else { here };
            load_step::<E>(
                &lefts,
                from * left_eights,
                &rights,
                from * right_eights,
                row,
                column,
                &mut factors,
                comptime!(step + 1),
                of_left,
                of_right,
                tiles,
            );
            if comptime!(step == 0) {
                bring::<A, B, P, Q, E, L, R, S, T>(
                    a,
                    b,
                    p,
                    q,
                    &of_a,
                    &of_b,
                    &of_p,
                    &of_q,
                    &mut raw_a,
                    &mut raw_b,
                    &mut lefts,
                    &mut rights,
                    left_at,
                    right_at,
                    turn,
                    own,
                    slabs,
                    first,
                    more,
                    form,
                    of_left,
                    of_right,
                    copies,
                );
            }
            multiply_step::<E>(&factors, &mut sums, step, tiles);
        }
        if turn < own {
            end::<A, L, E>(&raw_a, &mut lefts, left_at, comptime!(first[0]), of_left);
            end::<B, R, E>(&raw_b, &mut rights, right_at, comptime!(first[1]), of_right);
        }
        free = here;
        here = next;
    }
    let lane = UNIT_POS as usize % PLANE;
    let d_first = written_from(&share, &sizes, &of_d, form);
    let c_first = of_c.first + share.batch * of_c.matrix;
    #[unroll]
    for strip in 0..strips {
        #[unroll]
        for block in 0..blocks {
            #[unroll]
            for down in 0..2usize {
                let at = comptime!((strip * blocks + block) * 4 + down);
                put::<C, O, N>(
                    fours(sums[at], sums[comptime!(at + 2)], lane),
                    share.row + row + lane / 4 + comptime!(strip * STRIP + down * 8),
                    share.column + column + lane % 2 * 8 + lane % 4 / 2 * 4 + comptime!(block * STRIP),
                    c,
                    bias,
                    share.bias,
                    d,
                    c_first,
                    of_c.line,
                    d_first,
                    of_d.line,
                    &sizes,
                    form,
                );
            }
        }
    }
}
