//! Attention's output and log-sum-exp by tensor cores.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{self, Eight, PLANE, Pair, STRIP, Tiles};
use super::score::{Form, HIDDEN, Numbers, Rows, score, sees, sight, slope_of};

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
    let (heads, head) = (CUBE_COUNT_Y as usize, CUBE_POS_Y as usize);
    let tokens = numbers.tokens;
    // The last tiles see most: they begin first.
    let tile = numbers.tiles - 1 - CUBE_POS_X as usize;
    let first_row = tile * comptime!(tiles.rows());
    let unit = UNIT_POS as usize;
    let own = unit / PLANE * comptime!(tiles.strips * STRIP);
    let (g, t) = (unit % PLANE / 4, unit % 4);
    let row = first_row + own + g;

    let mut queries = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.rows() * pitch), 16usize);
    let mut keys = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.other_rows() * pitch), 16usize);
    let mut values = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.other_rows() * pitch), 16usize);
    let mut scores = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut held = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(tiles.strips * blocks * 4) {
        held[i] = Pair::<f32>::new(0.0);
    }
    let slope = slope_of(slopes, head, form);
    // Of each of this unit's rows: the largest score so far, and the sum of the shares that this unit has seen.
    let mut tops = Array::<f32>::new(comptime!(tiles.strips * 2));
    let mut totals = Array::<f32>::new(comptime!(tiles.strips * 2));
    #[unroll]
    for i in 0..comptime!(tiles.strips * 2) {
        tops[i] = f32::new(HIDDEN);
        totals[i] = 0.0;
        if comptime!(form.sinks) {
            tops[i] = sinks[head];
            if t == 0 {
                totals[i] = 1.0;
            }
        }
    }
    cores::stage::<E>(
        q,
        of_q.first + head * of_q.head,
        of_q.stride,
        first_row,
        tokens,
        &mut queries,
        comptime!(tiles.rows()),
        head_dim,
        comptime!(tiles.units()),
    );
    let kv = head / form.group;

    for range in plan[numbers.ranges + tile] as usize..plan[numbers.ranges + tile + 1] as usize {
        let pair = numbers.ranges + numbers.tiles + 1 + 2 * range;
        let end = plan[pair + 1] as usize;
        for key in range_stepped(plan[pair] as usize, end, comptime!(tiles.other_rows())) {
            sync_cube();
            cores::stage::<E>(
                k,
                of_k.first + kv * of_k.head,
                of_k.stride,
                key,
                end,
                &mut keys,
                comptime!(tiles.other_rows()),
                head_dim,
                comptime!(tiles.units()),
            );
            cores::stage::<E>(
                v,
                of_v.first + kv * of_v.head,
                of_v.stride,
                key,
                end,
                &mut values,
                comptime!(tiles.other_rows()),
                head_dim,
                comptime!(tiles.units()),
            );
            sync_cube();
            cores::multiply::<E>(&queries, own, &keys, &mut scores, head_dim, tiles);
            #[unroll]
            for of_row in 0..comptime!(tiles.strips * 2) {
                let (strip, half) = comptime!((of_row / 2, of_row % 2));
                let query = row + comptime!(strip * STRIP + half * 8);
                let sight = sight(plan, tokens, query, form);
                let mut top = tops[of_row];
                #[unroll]
                for i in 0..comptime!(tiles.others * 2) {
                    let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
                    let mut pair = scores[at];
                    #[unroll]
                    for c in 0..2usize {
                        let key = key + comptime!(i * 8 + c) + t * 2;
                        let mut one = score(pair.extract(c), &numbers, slope, query, key, form);
                        if key >= end || !sees(&sight, query, key, form) {
                            one = f32::new(HIDDEN);
                        }
                        pair.insert(c, one);
                        top = max(top, one);
                    }
                    scores[at] = pair;
                }
                top = max(top, plane_shuffle_xor(top, 1u32));
                top = max(top, plane_shuffle_xor(top, 2u32));
                let less = (tops[of_row] - top).exp();
                tops[of_row] = top;
                let mut total = totals[of_row] * less;
                #[unroll]
                for i in 0..comptime!(tiles.others * 2) {
                    let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
                    let mut pair = scores[at];
                    #[unroll]
                    for c in 0..2usize {
                        let one = pair.extract(c);
                        let share = select(one <= HIDDEN, 0.0, (one - top).exp());
                        pair.insert(c, share);
                        total += share;
                    }
                    scores[at] = pair;
                }
                totals[of_row] = total;
                #[unroll]
                for i in 0..comptime!(blocks * 2) {
                    let at = comptime!((strip * blocks * 2 + i) * 2 + half);
                    held[at] *= Pair::<f32>::new(less);
                }
            }
            cores::accumulate::<E>(&scores, &values, 0usize, &mut held, head_dim, blocks, tiles);
        }
    }
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let query = row + comptime!(strip * STRIP + half * 8);
        let mut total = totals[of_row];
        total += plane_shuffle_xor(total, 1u32);
        total += plane_shuffle_xor(total, 2u32);
        if query < tokens {
            if t == 0 {
                sums[head * tokens + query] = tops[of_row] + total.ln();
            }
            let share = select(total == 0.0, 0.0, 1.0 / total);
            #[unroll]
            for i in 0..comptime!(head_dim / 8) {
                let pair = held[comptime!((strip * blocks * 2 + i) * 2 + half)] * Pair::<f32>::new(share);
                out[(query * heads + head) * comptime!(head_dim / 2) + comptime!(i * 4) + t] =
                    Pair::<E>::cast_from(pair);
            }
        }
    }
}
