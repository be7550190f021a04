//! The gradients of keys and values by `wgmma`: a plane that does nothing else asks for tiles of queries, warpgroups hold 64 keys
//! each against them.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;

use super::backward_cores::{less, of_column};
use super::backward_warpgroups::{
    Barriers, Cursor, Layout, PRODUCTS, SCORES, add_by_lefts, advance, await_tile, await_turn,
    begin_barriers, begin_cursor, begin_tile, give_turn, multiply, put_pair, release, taken,
};
use super::cores::{PLANE, Pair, STRIP, pair};
use super::score::{Form, LOG2_E, Numbers, Rows, sight_from, slope_of, unit};
use super::seen;
use super::walk;
use crate::buffer::FloatType;
use crate::mma::Eight;
use crate::tma::{BARRIER, announce, arrive, bring, pass};
use crate::wgmma::{
    ALIGNMENT, Name, PLANES, ROWS, Tile, address, begin, begin_lefts, commit, name_sums, registers,
    set_registers, wait, zero_sums,
};

/// Registers of a tile's shares as left factors.
const SHARES: Name = "shares";
/// Of the sums.
const OF_KEYS: Name = "of_keys";
const OF_VALUES: Name = "of_values";
/// Four of two neighbours.
type Addends = Vector<f32, Const<4>>;
/// Words that say of a tile which it is: its first query, its head in the group, the least and the largest first key that is seen.
const NOTES: usize = 4;
/// The first query of the tile after the last.
const END: u32 = u32::MAX;

/// Bytes of shared memory of a cube.
pub(super) fn bytes(layout: Layout, head_dim: usize) -> usize {
    layout.bytes(head_dim, 3 * layout.tiles.other_rows() + NOTES)
}

/// The gradients of keys and values: the heads of a group one after another.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_keys_by_warpgroups<E: Float>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    upstream: &TensorMap<E, Tiled>,
    plan: &[u32],
    slopes: &[f32],
    sums: &[f32],
    rows: &[f32],
    of_keys: &mut [Pair<f32>],
    of_values: &mut [Pair<f32>],
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
    name_sums(OF_KEYS, comptime!(head_dim / 2));
    name_sums(OF_VALUES, comptime!(head_dim / 2));
    begin_tile(layout);
    begin_lefts(SHARES, comptime!(other_rows / 4));
    let of_own = comptime!(Tile { along: true, across: rows_own, depth: head_dim });
    let of_other = comptime!(Tile { along: true, across: other_rows, depth: head_dim });
    let first_stage = comptime!(2 * of_own.eights());
    let of_stage = comptime!(2 * of_other.eights());
    let mut held =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(first_stage + stages * of_stage), ALIGNMENT);
    // Of each two queries of a stage what is added to their scores, and what is to their products; and the first keys that they see.
    let mut addends = Shared::<[Addends]>::new_aligned_slice(comptime!(stages * other_rows / 2), 16usize);
    let mut lows = Shared::<[u32]>::new_slice(comptime!(stages * other_rows));
    let mut notes = Shared::<[u32]>::new_slice(comptime!(stages * NOTES));
    let barriers = Shared::<[Barrier]>::new_aligned_slice(comptime!(layout.barriers()), BARRIER);
    let signals = begin_barriers(address::<Barrier>(barriers.as_ptr()), layout);
    let kv_head = CUBE_POS_X as usize;
    let first_head = kv_head * form.group;
    let tokens = numbers.tokens;
    let tile = walk::tile(plan, &numbers);
    let first_row = tile * rows_own;
    let plane = plane_broadcast(UNIT_POS / PLANE as u32, 0u32) as usize;
    let lane = UNIT_POS as usize % PLANE;
    let mut stage = 0usize;
    let mut turn = 0u32;
    if plane >= planes {
        set_registers(fewer, false);
        if plane == planes {
            if lane == 0 {
                announce(signals.own, comptime!(2 * of_own.eights() * 16));
                let barrier = &barriers[comptime!(2 * stages)];
                bring::<E>(k, barrier, &mut held, 0usize, kv_head, first_row, 0usize, of_own);
                let at = comptime!(of_own.eights());
                bring::<E>(v, barrier, &mut held, at, kv_head, first_row, 0usize, of_own);
            }
            let mut ahead = walk::begin(plan, &numbers, tile);
            while walk::goes_on(&ahead) {
                let head = first_head + ahead.turn;
                // A unit has two neighbours of the queries.
                let turns = comptime!(other_rows / PLANE / 2);
                let mut own_addends = Array::<Addends>::new(turns);
                let mut own_lows = Array::<u32>::new(comptime!(2 * turns));
                #[unroll]
                for i in 0..turns {
                    let mut addends = Addends::new(0.0);
                    #[unroll]
                    for c in 0..2usize {
                        let query = ahead.row + comptime!(i * PLANE * 2 + c) + lane * 2;
                        // No key is seen where there is no query.
                        own_lows[comptime!(2 * i + c)] = u32::MAX.runtime();
                        if query < tokens {
                            addends.insert(c, less(sums[head * tokens + query]));
                            addends.insert(comptime!(2 + c), -rows[head * tokens + query]);
                            own_lows[comptime!(2 * i + c)] = plan[query];
                        }
                    }
                    own_addends[i] = addends;
                }
                let seen = seen::by_lows(&own_lows, ahead.row, other_rows);
                // Its place is free from the first.
                pass(signals.free + (stage * BARRIER) as u32, (turn + 1) % 2);
                #[unroll]
                for i in 0..turns {
                    let two = comptime!(i * PLANE) + lane;
                    addends[stage * comptime!(other_rows / 2) + two] = own_addends[i];
                    #[unroll]
                    for c in 0..2usize {
                        lows[stage * other_rows + two * 2 + c] = own_lows[comptime!(2 * i + c)];
                    }
                }
                if lane == 0 {
                    let at = stage * NOTES;
                    notes[at] = ahead.row as u32;
                    notes[at + 1] = ahead.turn as u32;
                    notes[at + 2] = seen.least as u32;
                    notes[at + 3] = seen.most as u32;
                }
                sync_plane();
                if lane == 0 {
                    announce(signals.there + (stage * BARRIER) as u32, comptime!(of_stage * 16));
                    let barrier = &barriers[stage];
                    let at = first_stage + stage * of_stage;
                    bring::<E>(q, barrier, &mut held, at, head, ahead.row, 0usize, of_other);
                    let at = at + comptime!(of_other.eights());
                    bring::<E>(upstream, barrier, &mut held, at, head, ahead.row, 0usize, of_other);
                }
                walk::step(&mut ahead, plan, &numbers, other_rows, form.group);
                stage += 1;
                if stage == stages {
                    stage = 0usize;
                    turn += 1;
                }
            }
            pass(signals.free + (stage * BARRIER) as u32, (turn + 1) % 2);
            if lane == 0 {
                notes[stage * NOTES] = END.runtime();
                arrive(signals.there + (stage * BARRIER) as u32, 1u32);
            }
        }
    } else {
        set_registers(more, true);
        zero_sums(OF_KEYS, comptime!(head_dim / 2));
        zero_sums(OF_VALUES, comptime!(head_dim / 2));
        let warpgroup = plane / PLANES;
        let (g, t) = (lane / 4, lane % 4);
        let row = first_row + plane * STRIP + g;
        let first_key = first_row + warpgroup * ROWS;
        let last_key = first_key + comptime!(ROWS - 1);
        let place = address::<Eight<E>>(held.as_ptr()) / 16u32;
        let keys = place + (warpgroup * comptime!(of_own.from(ROWS))) as u32;
        let stage_place = place + comptime!(first_stage as u32);
        let by = unit(&numbers, form) * LOG2_E;
        pass(signals.own, 0u32);
        let mut cursor = begin_cursor();
        let mut there = seek(&mut cursor, &signals, &notes, first_key, warpgroup, other_rows, form, layout);
        if comptime!(layout.ahead) {
            await_turn(&mut cursor, &signals, warpgroup);
            if there {
                let place_of = stage_place + (cursor.stage * of_stage) as u32;
                multiply(keys, place_of, SCORES, of_own, of_other, dtype);
                multiply(keys, place_of, PRODUCTS, of_own, of_other, dtype);
                give_turn(&mut cursor, &signals, warpgroup, layout);
                loop {
                    let mut at = 0usize;
                    at += cursor.stage;
                    let place_of = stage_place + (at * of_stage) as u32;
                    advance(&mut cursor, layout);
                    there =
                        seek(&mut cursor, &signals, &notes, first_key, warpgroup, other_rows, form, layout);
                    let (query, most) = (notes[at * NOTES] as usize, notes[at * NOTES + 3] as usize);
                    let slope = slope_of(slopes, first_head + notes[at * NOTES + 1] as usize, form);
                    wait(0usize);
                    if last_key <= query && first_key >= most {
                        of_tile::<E>(
                            &addends, &lows, at, plan, by, &numbers, slope, row, query, true, form, layout,
                        );
                    } else {
                        of_tile::<E>(
                            &addends, &lows, at, plan, by, &numbers, slope, row, query, false, form, layout,
                        );
                    }
                    await_turn(&mut cursor, &signals, warpgroup);
                    accumulate(place_of, of_other, layout, dtype);
                    if !there {
                        break;
                    }
                    let place_of = stage_place + (cursor.stage * of_stage) as u32;
                    multiply(keys, place_of, SCORES, of_own, of_other, dtype);
                    wait(1usize);
                    release(at, &signals);
                    multiply(keys, place_of, PRODUCTS, of_own, of_other, dtype);
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
                multiply(keys, place_of, SCORES, of_own, of_other, dtype);
                multiply(keys, place_of, PRODUCTS, of_own, of_other, dtype);
                give_turn(&mut cursor, &signals, warpgroup, layout);
                let (query, most) = (notes[at * NOTES] as usize, notes[at * NOTES + 3] as usize);
                let slope = slope_of(slopes, first_head + notes[at * NOTES + 1] as usize, form);
                wait(0usize);
                if last_key <= query && first_key >= most {
                    of_tile::<E>(
                        &addends, &lows, at, plan, by, &numbers, slope, row, query, true, form, layout,
                    );
                } else {
                    of_tile::<E>(
                        &addends, &lows, at, plan, by, &numbers, slope, row, query, false, form, layout,
                    );
                }
                accumulate(place_of, of_other, layout, dtype);
                wait(0usize);
                release(at, &signals);
                advance(&mut cursor, layout);
                there = seek(&mut cursor, &signals, &notes, first_key, warpgroup, other_rows, form, layout);
            }
        }
        #[unroll]
        for half in 0..2usize {
            let key = row + comptime!(half * 8);
            if key < tokens {
                let first = to.first + key * to.stride + kv_head * to.head + t;
                #[unroll]
                for i in 0..comptime!(head_dim / 8) {
                    let at = first + comptime!(i * 4);
                    of_keys[at] = taken(OF_KEYS, comptime!(i * 2 + half)) * Pair::<f32>::new(numbers.scale);
                    of_values[at] = taken(OF_VALUES, comptime!(i * 2 + half));
                }
            }
        }
    }
}

/// Shares and gradients of a tile's scores, from the registers of scores and products to those of left factors.
#[cube]
fn of_tile<E: Float>(
    addends: &[Addends],
    lows: &[u32],
    stage: usize,
    plan: &[u32],
    by: f32,
    numbers: &Numbers,
    slope: f32,
    row: usize,
    query: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
    #[comptime] layout: Layout,
) {
    let tiles = comptime!(layout.tiles);
    let t = UNIT_POS as usize % 4;
    let first = stage * comptime!(tiles.other_rows() / 2) + t;
    #[unroll]
    for i in 0..comptime!(tiles.others * 2) {
        let two = first + comptime!(i * 4);
        let both = addends[two];
        let of_products = pair::<f32>(both.extract(2usize), both.extract(3usize));
        let mut scores = Array::<Pair<f32>>::new(2usize);
        let mut gradients = Array::<Pair<f32>>::new(2usize);
        #[unroll]
        for half in 0..2usize {
            scores[half] = taken(SCORES, comptime!(i * 2 + half));
            gradients[half] = taken(PRODUCTS, comptime!(i * 2 + half)) + of_products;
        }
        #[unroll]
        for c in 0..2usize {
            let query = query + comptime!(i * 8 + c) + t * 2;
            let low = lows[two * 2 + c] as usize;
            let sight = sight_from(low, plan, numbers.tokens, query, whole, form);
            of_column(
                &mut scores,
                &mut gradients,
                0usize,
                0usize,
                c,
                both.extract(c),
                by,
                &sight,
                numbers,
                slope,
                row,
                query,
                whole,
                form,
                1usize,
            );
        }
        #[unroll]
        for half in 0..2usize {
            put_pair::<E>(SHARES, comptime!(i * 2 + half), scores[half]);
            put_pair::<E>(layout.changes(), comptime!(i * 2 + half), gradients[half]);
        }
    }
}

/// Adds the products of the left factors and a stage's queries and gradients of the output, which begin at `at`.
#[cube]
fn accumulate(at: u32, #[comptime] other: Tile, #[comptime] layout: Layout, #[comptime] dtype: FloatType) {
    let of_out = at + comptime!(other.eights() as u32);
    begin();
    add_by_lefts(SHARES, of_out, OF_VALUES, other, dtype);
    add_by_lefts(layout.changes(), at, OF_KEYS, other, dtype);
    commit();
}

/// Goes to the next tile from here on that sees some of the warpgroup's keys, from `first_key`, if there is one.
#[cube]
fn seek(
    cursor: &mut Cursor,
    barriers: &Barriers,
    notes: &[u32],
    first_key: usize,
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
        let query = notes[cursor.stage * NOTES];
        if query == END {
            seeks = false;
        } else {
            let mut any = first_key < query as usize + others;
            if comptime!(!form.before) {
                any = any && first_key + comptime!(ROWS - 1) >= notes[cursor.stage * NOTES + 2] as usize;
            }
            if any || left_out == comptime!(layout.left_out() as u32) {
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
    }
    there
}
