//! Attention's output and log-sum-exp by tensor cores.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{self, Eight, PLANE, Pair, STAGES, STRIP, Tiles};
use super::score::{Form, Numbers, Rows, slope_of};
use super::seen::{self, own_sights};
use super::{softmax, walk};

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend_by_cores<E: Float>(
    q: &[Eight<E>],
    k: &[Eight<E>],
    v: &[Eight<E>],
    plan: &[u32],
    slopes: &[f32],
    sinks: &[f32],
    out: &mut [Pair<E>],
    sums: &mut [f32],
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let blocks = comptime!(head_dim.div_ceil(STRIP));
    let pitch = comptime!(cores::pitch(head_dim));
    let (rows, other_rows, units) = comptime!((tiles.rows(), tiles.other_rows(), tiles.units()));
    let (heads, head) = (CUBE_COUNT_X as usize, CUBE_POS_X as usize);
    let tokens = numbers.tokens;
    let tile = walk::tile(plan, &numbers);
    let first_row = tile * rows;
    let place = UNIT_POS as usize;
    let own = place / PLANE * comptime!(tiles.strips * STRIP);
    let (g, t) = (place % PLANE / 4, place % 4);
    let row = first_row + own + g;

    let mut queries = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows * pitch), 16usize);
    let mut keys = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(STAGES * other_rows * pitch), 16usize);
    let mut values = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(STAGES * other_rows * pitch), 16usize);
    let mut scores = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut held = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(tiles.strips * blocks * 4) {
        held[i] = Pair::<f32>::new(0.0);
    }
    let kv = head / form.group;
    let (of_keys, of_values) = (of_k.first + kv * of_k.head, of_v.first + kv * of_v.head);
    let mut ahead = walk::begin(plan, &numbers, tile);
    let of_queries = of_q.first + head * of_q.head;
    cores::copy::<E>(
        q,
        of_queries,
        of_q.stride,
        first_row,
        tokens,
        &mut queries,
        0usize,
        rows,
        head_dim,
        units,
    );
    if walk::goes_on(&ahead) {
        let (key, end) = (ahead.row, ahead.end);
        cores::copy_both::<E>(
            k,
            v,
            of_keys,
            of_values,
            of_k.stride,
            of_v.stride,
            key,
            end,
            &mut keys,
            &mut values,
            0usize,
            other_rows,
            head_dim,
            units,
        );
    }
    cores::commit();

    let slope = slope_of(slopes, head, form);
    let mut softmax = softmax::begin(sinks, &numbers, head, t, form, tiles);
    let sights = own_sights(plan, tokens, row, form, tiles);
    let seen = seen::by_own(&sights, first_row + own, tokens, row, tiles);
    if comptime!(tiles.kept) {
        cores::wait(0usize);
        sync_cube();
    }
    let kept = cores::keep::<E>(&queries, own, head_dim, tiles);
    let mut at = 0usize;

    while walk::goes_on(&ahead) {
        let mut key = 0usize;
        let mut end = 0usize;
        key += ahead.row;
        end += ahead.end;
        let next = comptime!(STAGES - 1) * other_rows - at;
        walk::step(&mut ahead, plan, &numbers, other_rows, 1usize);
        // This tile is there, and all units are done with the one before, whose place the next one takes.
        cores::wait(0usize);
        sync_cube();
        if walk::goes_on(&ahead) {
            let (key, end) = (ahead.row, ahead.end);
            cores::copy_both::<E>(
                k,
                v,
                of_keys,
                of_values,
                of_k.stride,
                of_v.stride,
                key,
                end,
                &mut keys,
                &mut values,
                next,
                other_rows,
                head_dim,
                units,
            );
        }
        cores::commit();
        if seen::any_of(&seen, key, other_rows, form) {
            #[unroll]
            for i in 0..comptime!(tiles.strips * tiles.others * 4) {
                scores[i] = Pair::<f32>::new(0.0);
            }
            cores::multiply::<E>(&queries, &kept, own, &keys, at, &mut scores, head_dim, tiles);
            softmax::make_scores(&mut scores, &sights, &seen, &numbers, slope, row, t, key, end, form, tiles);
            softmax::make_shares(&mut softmax, &mut scores, &numbers, false, form, tiles);
            #[unroll]
            for i in 0..comptime!(tiles.strips * blocks * 4) {
                let of_row = comptime!(i / (blocks * 4) * 2 + i % 2);
                held[i] *= Pair::<f32>::new(softmax.less[of_row]);
            }
            cores::accumulate::<E>(&scores, &values, at, 0usize, &mut held, head_dim, blocks, tiles);
        }
        at = next;
    }
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let query = row + comptime!(strip * STRIP + half * 8);
        let (sum, share) = softmax::end(&softmax, &numbers, of_row, form);
        if query < tokens {
            if t == 0 {
                sums[head * tokens + query] = sum;
            }
            #[unroll]
            for i in 0..comptime!(head_dim / 8) {
                let pair = held[comptime!((strip * blocks * 2 + i) * 2 + half)] * Pair::<f32>::new(share);
                out[(query * heads + head) * comptime!(head_dim / 2) + comptime!(i * 4) + t] =
                    Pair::<E>::cast_from(pair);
            }
        }
    }
}
