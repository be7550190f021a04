//! Attention's output and log-sum-exp by two warpgroups: one's softmax is computed while the other's products are.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;

use super::cores::{self, Eight, PLANE, Pair, STRIP};
use super::ring::{
    self, Cube, Operand, Ring, ask_keys, ask_queries, ask_values, described, give_turn, item, leave, release,
    wait_for, wait_turn,
};
use super::score::{Form, Numbers, Sight, sight_from, slope_of};
use super::seen::{self, Seen};
use super::softmax;
use super::walk::{self, Walk};
use crate::buffer::FloatType;
use crate::mma::pair;
use crate::tma::BARRIER;
use crate::wgmma::{
    ALIGNMENT, Name, QUAD, ROWS, add_lefts, address, begin, begin_lefts, begin_sums, commit, exchange,
    put_left, put_product, scale, sum, told, wait, zero_sums,
};

/// Registers of scores, of what is summed of values, and of shares as left factors.
const SCORES: Name = "score";
const VALUES: Name = "value";
const SHARES: Name = "share";

/// Begins the products of a warpgroup's queries and a tile of keys, a group.
#[cube]
fn multiply_keys(
    queries: u32,
    keys: u32,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
    #[comptime] factors: FloatType,
) {
    let (left, right) =
        comptime!((ring.tile(Operand::Queries, head_dim), ring.tile(Operand::Keys, head_dim)));
    #[unroll]
    for step in 0..comptime!(head_dim / STRIP) {
        put_product(
            told(queries, left.step(step)),
            told(keys, right.step(step)),
            SCORES,
            0usize,
            comptime!(right.across),
            comptime!(step > 0),
            comptime!([true, true]),
            factors,
        );
    }
    commit();
}

/// Begins the products of shares and a tile of values, a group.
#[cube]
fn multiply_values(
    values: u32,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
    #[comptime] factors: FloatType,
) {
    let right = comptime!(ring.tile(Operand::Values, head_dim));
    #[unroll]
    for step in 0..comptime!(right.depth / STRIP) {
        add_lefts(
            SHARES,
            comptime!(step * 4),
            told(values, right.step(step)),
            VALUES,
            0usize,
            head_dim,
            false,
            factors,
        );
    }
    commit();
}

/// The scores of this unit, once their products are done.
#[cube]
fn take_scores(scores: &mut Array<Pair<f32>>, #[comptime] keys: usize) {
    #[unroll]
    for i in 0..comptime!(keys / 4) {
        scores[i] = pair::<f32>(sum(SCORES, comptime!(2 * i)), sum(SCORES, comptime!(2 * i + 1)));
    }
}

/// Puts shares where products take left factors from, and holds sums against the same scores.
#[cube]
fn put_shares<E: Float>(
    scores: &Array<Pair<f32>>,
    less: &Array<f32>,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
) {
    if plane_any(less[0] != 1.0 || less[1] != 1.0) {
        scale(VALUES, comptime!(head_dim / 2), less[0], less[1]);
    }
    #[unroll]
    for i in 0..comptime!(ring.tiles.others * 4) {
        put_left::<E>(SHARES, i, cores::rounded::<E>(scores[i]));
    }
}

/// A tile of queries of this cube, as a unit sees it.
#[derive(CubeType)]
struct Work {
    /// Its number among all.
    item: usize,
    head: usize,
    /// The first row.
    row: usize,
    walk: Walk,
    /// The first keys that the unit's rows see.
    low: usize,
    low_below: usize,
    /// The least and the largest of those of its plane, and the least of its warpgroup.
    least: usize,
    most: usize,
    least_of_all: usize,
}

/// Looks up the cube's tile of queries number `turn`, if there is one.
#[cube]
fn look_up(
    work: &mut Work,
    cube: &Cube,
    plan: &[u32],
    numbers: &Numbers,
    turn: usize,
    #[comptime] ring: Ring,
) {
    work.item = item(turn);
    if work.item < cube.items {
        let number = work.item / cube.heads;
        work.head = work.item % cube.heads;
        work.row = walk::tile_of(plan, numbers, number) * comptime!(ring.tiles.rows());
        walk::go_to(&mut work.walk, plan, numbers, number);
        let lane = UNIT_POS as usize % PLANE;
        let of_all = work.row + cube.warpgroup * ROWS;
        let of_plane = work.row + cube.plane * STRIP;
        let mut lows = Array::<u32>::new(comptime!(ROWS / PLANE));
        #[unroll]
        for i in 0..comptime!(ROWS / PLANE) {
            lows[i] = low_of(plan, numbers.tokens, of_all + comptime!(i * PLANE) + lane);
        }
        let mut own = Array::<u32>::new(1usize);
        own[0] = low_of(plan, numbers.tokens, of_plane + lane % STRIP);
        let (all, seen) = (seen::by_lows(&lows, of_all, ROWS), seen::by_lows(&own, of_plane, STRIP));
        work.least_of_all = all.least;
        work.least = seen.least;
        work.most = seen.most;
        work.low = plane_shuffle(own[0], (lane / 4) as u32) as usize;
        work.low_below = plane_shuffle(own[0], (lane / 4 + 8) as u32) as usize;
    }
}

/// The first key that a query sees: none where there is no such query.
#[cube]
fn low_of(plan: &[u32], tokens: usize, query: usize) -> u32 {
    let mut low = u32::MAX.runtime();
    if query < tokens {
        low = plan[query];
    }
    low
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend_by_warpgroups<E: Float>(
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    plan: &[u32],
    slopes: &[f32],
    sinks: &[f32],
    out: &mut [Eight<E>],
    sums: &mut [f32],
    numbers: Numbers,
    heads: usize,
    #[comptime] form: Form,
    #[comptime] ring: Ring,
    #[comptime] factors: FloatType,
    #[define(E)] _operands: ElemType,
) {
    let (head_dim, tiles) = comptime!((form.head_dim, ring.tiles));
    let (other_rows, values_ahead) = comptime!((tiles.other_rows(), ring.values_ahead()));
    begin_sums(SCORES, comptime!(other_rows / 2));
    begin_sums(VALUES, comptime!(head_dim / 2));
    begin_lefts(SHARES, comptime!(other_rows / 4));
    let mut held = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(ring.eights(head_dim)), ALIGNMENT);
    let barriers = Shared::<[Barrier]>::new_aligned_slice(comptime!(ring.barriers()), BARRIER);
    let cube = ring::begin(address::<Barrier>(barriers.as_ptr()), heads, &numbers, ring);
    let mut asked = ring::ask_first::<E>(&cube, q, k, v, &barriers, &mut held, plan, &numbers, form, ring);
    let tokens = numbers.tokens;
    let lane = UNIT_POS as usize % PLANE;
    let (g, t) = (lane / 4, lane % 4);
    let place = address::<Eight<E>>(held.as_ptr()) / 16u32;
    let of_warpgroup = (cube.warpgroup * comptime!(ring.tile(Operand::Queries, head_dim).from(ROWS))) as u32;

    let mut work = Work {
        item: 0usize,
        head: 0usize,
        row: 0usize,
        walk: walk::none(),
        low: 0usize,
        low_below: 0usize,
        least: 0usize,
        most: 0usize,
        least_of_all: 0usize,
    };
    let mut number = 0usize;
    let mut turn = 0usize;
    look_up(&mut work, &cube, plan, &numbers, turn, ring);
    while work.item < cube.items {
        let mut uses = walk::none();
        walk::follow(&mut uses, &work.walk);
        let mut head = 0usize;
        head += work.head;
        let of_plane = work.row + cube.plane * STRIP;
        let of_all = work.row + cube.warpgroup * ROWS;
        let row = of_plane + g;
        let seen = Seen {
            first: of_plane,
            last: of_plane + comptime!(STRIP - 1),
            least: work.least,
            most: work.most,
        };
        let all = Seen {
            first: of_all,
            last: of_all + comptime!(ROWS - 1),
            least: work.least_of_all,
            most: work.most,
        };
        let mut sights = Sequence::<Sight>::new();
        sights.push(sight_from(work.low, plan, tokens, row, false, form));
        sights.push(sight_from(work.low_below, plan, tokens, row + 8, false, form));
        let slope = slope_of(slopes, head, form);
        let mut softmax = softmax::begin(sinks, &numbers, head, t, form, tiles);
        let mut scores = Array::<Pair<f32>>::new(comptime!(other_rows / 4));
        let queries = described(place, turn, Operand::Queries, head_dim, ring) + of_warpgroup;
        zero_sums(VALUES, comptime!(head_dim / 2));
        wait_for(&cube, turn, Operand::Queries, ring);

        // Tiles that this warpgroup's rows do not see come first or last.
        while walk::goes_on(&uses) && !seen::any_of(&all, uses.row, other_rows, form) {
            leave::<E>(&cube, k, v, &barriers, &mut held, plan, &numbers, &mut asked, number, form, ring);
            walk::step(&mut uses, plan, &numbers, other_rows, 1usize);
            number += 1;
        }
        let some = walk::goes_on(&uses);
        if some {
            wait_for(&cube, number, Operand::Keys, ring);
            wait_turn(&cube, number, ring);
            begin();
            let keys = described(place, number, Operand::Keys, head_dim, ring);
            multiply_keys(queries, keys, head_dim, ring, factors);
            give_turn(&cube, ring);
            ask_values::<E>(
                &cube,
                v,
                &barriers,
                &mut held,
                plan,
                &numbers,
                &mut asked,
                number,
                values_ahead,
                form,
                ring,
            );
            wait(0usize);
            release(&cube, number, Operand::Keys, ring);
            take_scores(&mut scores, other_rows);
            let (key, end) = (uses.row, uses.end);
            softmax::make_scores(&mut scores, &sights, &seen, &numbers, slope, row, t, key, end, form, tiles);
            softmax::make_shares(&mut softmax, &mut scores, &numbers, true, form, tiles);
            ask_keys::<E>(&cube, k, &barriers, &mut held, &asked, number, ring.keys, head_dim, ring);
            put_shares::<E>(&scores, &softmax.less, head_dim, ring);
            walk::step(&mut uses, plan, &numbers, other_rows, 1usize);
            number += 1;
        }
        while walk::goes_on(&uses) && seen::any_of(&all, uses.row, other_rows, form) {
            wait_for(&cube, number, Operand::Keys, ring);
            wait_for(&cube, number - 1, Operand::Values, ring);
            wait_turn(&cube, number, ring);
            begin();
            let keys = described(place, number, Operand::Keys, head_dim, ring);
            multiply_keys(queries, keys, head_dim, ring, factors);
            let values = described(place, number - 1, Operand::Values, head_dim, ring);
            multiply_values(values, head_dim, ring, factors);
            give_turn(&cube, ring);
            ask_values::<E>(
                &cube,
                v,
                &barriers,
                &mut held,
                plan,
                &numbers,
                &mut asked,
                number,
                values_ahead,
                form,
                ring,
            );
            wait(1usize);
            release(&cube, number, Operand::Keys, ring);
            take_scores(&mut scores, other_rows);
            let (key, end) = (uses.row, uses.end);
            softmax::make_scores(&mut scores, &sights, &seen, &numbers, slope, row, t, key, end, form, tiles);
            softmax::make_shares(&mut softmax, &mut scores, &numbers, true, form, tiles);
            // The branch in this also keeps the assembler from waiting before it computes shares.
            ask_keys::<E>(&cube, k, &barriers, &mut held, &asked, number, ring.keys, head_dim, ring);
            wait(0usize);
            release(&cube, number - 1, Operand::Values, ring);
            put_shares::<E>(&scores, &softmax.less, head_dim, ring);
            walk::step(&mut uses, plan, &numbers, other_rows, 1usize);
            number += 1;
        }
        release(&cube, turn, Operand::Queries, ring);
        let next_turn = turn + 1;
        let ahead = turn + ring.queries;
        if some {
            wait_for(&cube, number - 1, Operand::Values, ring);
            begin();
            let values = described(place, number - 1, Operand::Values, head_dim, ring);
            multiply_values(values, head_dim, ring, factors);
            look_up(&mut work, &cube, plan, &numbers, next_turn, ring);
            ask_queries::<E>(&cube, q, &barriers, &mut held, plan, &numbers, ahead, head_dim, ring);
            wait(0usize);
            release(&cube, number - 1, Operand::Values, ring);
        } else {
            look_up(&mut work, &cube, plan, &numbers, next_turn, ring);
            ask_queries::<E>(&cube, q, &barriers, &mut held, plan, &numbers, ahead, head_dim, ring);
        }
        while walk::goes_on(&uses) {
            leave::<E>(&cube, k, v, &barriers, &mut held, plan, &numbers, &mut asked, number, form, ring);
            walk::step(&mut uses, plan, &numbers, other_rows, 1usize);
            number += 1;
        }

        #[unroll]
        for half in 0..2usize {
            let query = row + comptime!(half * 8);
            let (sum_of_row, share) = softmax::end(&softmax, &numbers, half, form);
            if query < tokens && t == 0 {
                sums[head * tokens + query] = sum_of_row;
            }
            #[unroll]
            for i in 0..comptime!(head_dim / 8 / QUAD) {
                let mut words = Array::<u32>::new(QUAD);
                #[unroll]
                for j in 0..QUAD {
                    let at = comptime!((i * QUAD + j) * 4 + half * 2);
                    let pair = pair::<f32>(sum(VALUES, at), sum(VALUES, comptime!(at + 1)));
                    words[j] = u32::reinterpret(cores::rounded::<E>(pair * Pair::<f32>::new(share)));
                }
                exchange::<u32>(&mut words, 1usize);
                exchange::<u32>(&mut words, 2usize);
                let mut eight = Vector::<u32, Const<4>>::new(0u32);
                #[unroll]
                for j in 0..QUAD {
                    eight.insert(j, words[j]);
                }
                if query < tokens {
                    out[(query * heads + head) * comptime!(head_dim / 8) + comptime!(i * QUAD) + t] =
                        Eight::<E>::reinterpret(eight);
                }
            }
        }
        turn += 1;
    }
}
