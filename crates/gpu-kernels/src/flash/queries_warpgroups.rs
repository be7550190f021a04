//! The gradient of queries by `wgmma`: a plane that does nothing else asks for tiles of keys and values, warpgroups hold 64 queries
//! each against them.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;

use super::backward_cores::{less, of_scores};
use super::backward_warpgroups::{
    Barriers, Cursor, Layout, PRODUCTS, SCORES, add_by_lefts, advance, await_tile, await_turn,
    begin_barriers, begin_cursor, begin_tile, give_turn, multiply, put_pair, release, taken,
};
use super::cores::{PLANE, Pair, STRIP, Tiles};
use super::score::{Form, LOG2_E, Numbers, Rows, Sight, slope_of, unit};
use super::seen::{self, Seen, own_sights};
use super::walk;
use crate::buffer::FloatType;
use crate::mma::Eight;
use crate::tma::{BARRIER, announce, arrive, bring, pass};
use crate::wgmma::{
    ALIGNMENT, Name, PLANES, ROWS, Tile, address, begin, commit, name_sums, registers, set_registers, wait,
    zero_sums,
};

/// Registers of the sums.
const OF_QUERIES: Name = "of_queries";
/// Words that say of a tile which it is: its first key, and the end of its range.
const NOTES: usize = 2;
/// The first key of the tile after the last.
const END: u32 = u32::MAX;

/// Bytes of shared memory of a cube.
pub(super) fn bytes(layout: Layout, head_dim: usize) -> usize {
    layout.bytes(head_dim, NOTES)
}

/// The gradient of queries.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_queries_by_warpgroups<E: Float>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    upstream: &TensorMap<E, Tiled>,
    plan: &[u32],
    slopes: &[f32],
    sums: &[f32],
    rows: &[f32],
    gradient: &mut [Pair<f32>],
    to: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[comptime] layout: Layout,
    #[comptime] dtype: FloatType,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let (tiles, stages) = comptime!((layout.tiles, layout.stages));
    let (rows_own, other_rows, planes) = comptime!((tiles.rows(), tiles.other_rows(), tiles.planes));
    let (fewer, more) = comptime!(registers(layout.warpgroups()));
    name_sums(OF_QUERIES, comptime!(head_dim / 2));
    begin_tile(layout);
    let of_own = comptime!(Tile { along: true, across: rows_own, depth: head_dim });
    let of_other = comptime!(Tile { along: true, across: other_rows, depth: head_dim });
    let first_stage = comptime!(2 * of_own.eights());
    let of_stage = comptime!(2 * of_other.eights());
    let mut held =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(first_stage + stages * of_stage), ALIGNMENT);
    let mut notes = Shared::<[u32]>::new_slice(comptime!(stages * NOTES));
    let barriers = Shared::<[Barrier]>::new_aligned_slice(comptime!(layout.barriers()), BARRIER);
    let signals = begin_barriers(address::<Barrier>(barriers.as_ptr()), layout);
    let head = CUBE_POS_X as usize;
    let tokens = numbers.tokens;
    let tile = walk::tile(plan, &numbers);
    let first_row = tile * rows_own;
    let plane = plane_broadcast(UNIT_POS / PLANE as u32, 0u32) as usize;
    let lane = UNIT_POS as usize % PLANE;
    let mut stage = 0usize;
    let mut turn = 0u32;
    if plane >= planes {
        set_registers(fewer, false);
        if plane == planes && lane == 0 {
            announce(signals.own, comptime!(2 * of_own.eights() * 16));
            let barrier = &barriers[comptime!(2 * stages)];
            bring::<E>(q, barrier, &mut held, 0usize, head, first_row, 0usize, of_own);
            let at = comptime!(of_own.eights());
            bring::<E>(upstream, barrier, &mut held, at, head, first_row, 0usize, of_own);
            let kv = head / form.group;
            let mut ahead = walk::begin(plan, &numbers, tile);
            while walk::goes_on(&ahead) {
                // Its place is free from the first.
                pass(signals.free + (stage * BARRIER) as u32, (turn + 1) % 2);
                notes[stage * NOTES] = ahead.row as u32;
                notes[stage * NOTES + 1] = ahead.end as u32;
                announce(signals.there + (stage * BARRIER) as u32, comptime!(of_stage * 16));
                let barrier = &barriers[stage];
                let at = first_stage + stage * of_stage;
                bring::<E>(k, barrier, &mut held, at, kv, ahead.row, 0usize, of_other);
                let at = at + comptime!(of_other.eights());
                bring::<E>(v, barrier, &mut held, at, kv, ahead.row, 0usize, of_other);
                walk::step(&mut ahead, plan, &numbers, other_rows, 1usize);
                stage += 1;
                if stage == stages {
                    stage = 0usize;
                    turn += 1;
                }
            }
            pass(signals.free + (stage * BARRIER) as u32, (turn + 1) % 2);
            notes[stage * NOTES] = END.runtime();
            arrive(signals.there + (stage * BARRIER) as u32, 1u32);
        }
    } else {
        set_registers(more, true);
        zero_sums(OF_QUERIES, comptime!(head_dim / 2));
        let warpgroup = plane / PLANES;
        let (g, t) = (lane / 4, lane % 4);
        let row = first_row + plane * STRIP + g;
        let first_query = first_row + warpgroup * ROWS;
        let place = address::<Eight<E>>(held.as_ptr()) / 16u32;
        let queries = place + (warpgroup * comptime!(of_own.from(ROWS))) as u32;
        let stage_place = place + comptime!(first_stage as u32);
        let slope = slope_of(slopes, head, form);
        let by = unit(&numbers, form) * LOG2_E;
        let sights = own_sights(plan, tokens, row, form, tiles);
        let turns = comptime!(ROWS / PLANE);
        let mut lows = Array::<u32>::new(turns);
        #[unroll]
        for i in 0..turns {
            // Rows past the end are not written, and may see what the last one does.
            let query = first_query + comptime!(i * PLANE) + lane;
            lows[i] = plan[select(query < tokens, query, tokens - 1)];
        }
        let seen = seen::by_lows(&lows, first_query, ROWS);
        let mut less_sums = Array::<f32>::new(2usize);
        let mut wholes = Array::<f32>::new(2usize);
        #[unroll]
        for half in 0..2usize {
            let query = row + comptime!(half * 8);
            less_sums[half] = 0.0;
            wholes[half] = 0.0;
            if query < tokens {
                less_sums[half] = less(sums[head * tokens + query]);
                wholes[half] = -rows[head * tokens + query];
            }
        }
        pass(signals.own, 0u32);
        let mut cursor = begin_cursor();
        let mut there = seek(&mut cursor, &signals, &notes, &seen, warpgroup, other_rows, form, layout);
        if comptime!(layout.ahead) {
            await_turn(&mut cursor, &signals, warpgroup);
            if there {
                let place_of = stage_place + (cursor.stage * of_stage) as u32;
                multiply(queries, place_of, SCORES, of_own, of_other, dtype);
                multiply(queries, place_of, PRODUCTS, of_own, of_other, dtype);
                give_turn(&mut cursor, &signals, warpgroup, layout);
                loop {
                    let mut at = 0usize;
                    at += cursor.stage;
                    let place_of = stage_place + (at * of_stage) as u32;
                    advance(&mut cursor, layout);
                    there = seek(&mut cursor, &signals, &notes, &seen, warpgroup, other_rows, form, layout);
                    let (key, end) = (notes[at * NOTES] as usize, notes[at * NOTES + 1] as usize);
                    wait(0usize);
                    if seen::all_of(&seen, key, end, other_rows) {
                        of_tile::<E>(
                            &less_sums, &wholes, &sights, by, &numbers, slope, row, key, end, true, form,
                            layout,
                        );
                    } else {
                        of_tile::<E>(
                            &less_sums, &wholes, &sights, by, &numbers, slope, row, key, end, false, form,
                            layout,
                        );
                    }
                    await_turn(&mut cursor, &signals, warpgroup);
                    accumulate(place_of, of_other, layout, dtype);
                    if !there {
                        break;
                    }
                    let place_of = stage_place + (cursor.stage * of_stage) as u32;
                    multiply(queries, place_of, SCORES, of_own, of_other, dtype);
                    wait(1usize);
                    release(at, &signals);
                    multiply(queries, place_of, PRODUCTS, of_own, of_other, dtype);
                    give_turn(&mut cursor, &signals, warpgroup, layout);
                }
                give_turn(&mut cursor, &signals, warpgroup, layout);
                wait(0usize);
            } else {
                give_turn(&mut cursor, &signals, warpgroup, layout);
            }
        } else {
            while there {
                let at = cursor.stage;
                let place_of = stage_place + (at * of_stage) as u32;
                await_turn(&mut cursor, &signals, warpgroup);
                multiply(queries, place_of, SCORES, of_own, of_other, dtype);
                multiply(queries, place_of, PRODUCTS, of_own, of_other, dtype);
                give_turn(&mut cursor, &signals, warpgroup, layout);
                let (key, end) = (notes[at * NOTES] as usize, notes[at * NOTES + 1] as usize);
                wait(0usize);
                if seen::all_of(&seen, key, end, other_rows) {
                    of_tile::<E>(
                        &less_sums, &wholes, &sights, by, &numbers, slope, row, key, end, true, form, layout,
                    );
                } else {
                    of_tile::<E>(
                        &less_sums, &wholes, &sights, by, &numbers, slope, row, key, end, false, form, layout,
                    );
                }
                accumulate(place_of, of_other, layout, dtype);
                wait(0usize);
                release(at, &signals);
                advance(&mut cursor, layout);
                there = seek(&mut cursor, &signals, &notes, &seen, warpgroup, other_rows, form, layout);
            }
        }
        #[unroll]
        for half in 0..2usize {
            let query = row + comptime!(half * 8);
            if query < tokens {
                let first = to.first + query * to.stride + head * to.head + t;
                #[unroll]
                for i in 0..comptime!(head_dim / 8) {
                    gradient[first + comptime!(i * 4)] =
                        taken(OF_QUERIES, comptime!(i * 2 + half)) * Pair::<f32>::new(numbers.scale);
                }
            }
        }
    }
}

/// The gradients of a tile's scores, from the registers of scores and products to those of left factors.
#[cube]
fn of_tile<E: Float>(
    less_sums: &Array<f32>,
    wholes: &Array<f32>,
    sights: &Sequence<Sight>,
    by: f32,
    numbers: &Numbers,
    slope: f32,
    row: usize,
    key: usize,
    end: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
    #[comptime] layout: Layout,
) {
    let tiles = comptime!(layout.tiles);
    let block = comptime!(Tiles { others: 1, ..tiles });
    #[unroll]
    for i in 0..tiles.others {
        let mut scores = Array::<Pair<f32>>::new(4usize);
        let mut gradients = Array::<Pair<f32>>::new(4usize);
        #[unroll]
        for j in 0..4usize {
            scores[j] = taken(SCORES, comptime!(i * 4 + j));
            gradients[j] = taken(PRODUCTS, comptime!(i * 4 + j)) + Pair::<f32>::new(wholes[j % 2]);
        }
        let key = key + comptime!(i * STRIP);
        of_scores(
            &scores,
            &mut gradients,
            less_sums,
            by,
            sights,
            numbers,
            slope,
            row,
            key,
            end,
            whole,
            form,
            block,
        );
        #[unroll]
        for j in 0..4usize {
            put_pair::<E>(layout.changes(), comptime!(i * 4 + j), gradients[j]);
        }
    }
}

/// Begins to add the products of the left factors and a stage's keys, which begin at `at`, a group.
#[cube]
fn accumulate(at: u32, #[comptime] other: Tile, #[comptime] layout: Layout, #[comptime] dtype: FloatType) {
    begin();
    add_by_lefts(layout.changes(), at, OF_QUERIES, other, dtype);
    commit();
}

/// Goes to the next tile from here on that some of the warpgroup's queries see, if there is one.
#[cube]
fn seek(
    cursor: &mut Cursor,
    barriers: &Barriers,
    notes: &[u32],
    seen: &Seen,
    warpgroup: usize,
    #[comptime] others: usize,
    #[comptime] form: Form,
    #[comptime] layout: Layout,
) -> bool {
    let mut seeks = true;
    let mut there = false;
    let mut left_out = 0u32;
    while seeks {
        await_tile(cursor, barriers);
        let key = notes[cursor.stage * NOTES];
        if key == END {
            seeks = false;
        } else if seen::any_of(seen, key as usize, others, form)
            || left_out == comptime!(layout.left_out() as u32)
        {
            seeks = false;
            there = true;
        } else {
            await_turn(cursor, barriers, warpgroup);
            give_turn(cursor, barriers, warpgroup, layout);
            release(cursor.stage, barriers);
            left_out += 1;
            advance(cursor, layout);
        }
    }
    there
}
