//! Attention's gradients by tensor cores: one pass over tiles of queries, one over tiles of keys.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{self, Eight, PLANE, Pair, STRIP, Tiles};
use super::score::{Form, Numbers, Rows, passes, score, sees, sight, slope_of};

/// The gradient of queries.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_queries_by_cores<E: Float>(
    q: &[Eight<E>],
    k: &[Eight<E>],
    v: &[Eight<E>],
    upstream: &[Eight<E>],
    plan: &[u32],
    slopes: &[f32],
    sums: &[f32],
    rows: &[f32],
    gradient: &mut [Pair<f32>],
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
    to: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let blocks = comptime!(head_dim.div_ceil(STRIP));
    let pitch = comptime!(cores::pitch(head_dim));
    let width = comptime!(head_dim / 8);
    let (heads, head) = (CUBE_COUNT_Y as usize, CUBE_POS_Y as usize);
    let tokens = numbers.tokens;
    let tile = numbers.tiles - 1 - CUBE_POS_X as usize;
    let first_row = tile * comptime!(tiles.rows());
    let unit = UNIT_POS as usize;
    let own = unit / PLANE * comptime!(tiles.strips * STRIP);
    let (g, t) = (unit % PLANE / 4, unit % 4);
    let row = first_row + own + g;

    let mut queries = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.rows() * pitch), 16usize);
    let mut of_out = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.rows() * pitch), 16usize);
    let mut keys = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.other_rows() * pitch), 16usize);
    let mut values = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.other_rows() * pitch), 16usize);
    let mut scores = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut gradients = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut held = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(tiles.strips * blocks * 4) {
        held[i] = Pair::<f32>::new(0.0);
    }
    let slope = slope_of(slopes, head, form);
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
    cores::stage::<E>(
        upstream,
        head * width,
        heads * width,
        first_row,
        tokens,
        &mut of_out,
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
            cores::multiply::<E>(&of_out, own, &values, &mut gradients, head_dim, tiles);
            #[unroll]
            for of_row in 0..comptime!(tiles.strips * 2) {
                let (strip, half) = comptime!((of_row / 2, of_row % 2));
                let query = row + comptime!(strip * STRIP + half * 8);
                let sight = sight(plan, tokens, query, form);
                let mut sum = 0.0f32;
                let mut whole = 0.0f32;
                if query < tokens {
                    sum = sums[head * tokens + query];
                    whole = rows[head * tokens + query];
                }
                #[unroll]
                for i in 0..comptime!(tiles.others * 2) {
                    let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
                    let pair = scores[at];
                    let mut of = gradients[at];
                    #[unroll]
                    for c in 0..2usize {
                        let key = key + comptime!(i * 8 + c) + t * 2;
                        let mut gradient = 0.0f32;
                        if key < end && sees(&sight, query, key, form) {
                            let product = pair.extract(c);
                            let share = (score(product, &numbers, slope, query, key, form) - sum).exp();
                            gradient = share * (of.extract(c) - whole) * passes(product, &numbers, form);
                        }
                        of.insert(c, gradient);
                    }
                    gradients[at] = of;
                }
            }
            cores::accumulate::<E>(&gradients, &keys, 0usize, &mut held, head_dim, blocks, tiles);
        }
    }
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let query = row + comptime!(strip * STRIP + half * 8);
        if query < tokens {
            #[unroll]
            for i in 0..comptime!(head_dim / 8) {
                let pair =
                    held[comptime!((strip * blocks * 2 + i) * 2 + half)] * Pair::<f32>::new(numbers.scale);
                gradient[to.first + query * to.stride + head * to.head + comptime!(i * 4) + t] = pair;
            }
        }
    }
}

/// The gradients of keys and values: the heads of a group one after another, a part of the columns for each cube.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_keys_by_cores<E: Float>(
    q: &[Eight<E>],
    k: &[Eight<E>],
    v: &[Eight<E>],
    upstream: &[Eight<E>],
    plan: &[u32],
    slopes: &[f32],
    sums: &[f32],
    rows: &[f32],
    of_keys: &mut [Pair<f32>],
    of_values: &mut [Pair<f32>],
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
    to: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let blocks = comptime!(cores::blocks(head_dim) / cores::parts(head_dim));
    let pitch = comptime!(cores::pitch(head_dim));
    let width = comptime!(head_dim / 8);
    let (kv_heads, kv_head) = (CUBE_COUNT_Y as usize, CUBE_POS_Y as usize);
    let part = CUBE_POS_Z as usize;
    let tokens = numbers.tokens;
    let tile = CUBE_POS_X as usize;
    let first_row = tile * comptime!(tiles.rows());
    let unit = UNIT_POS as usize;
    let own = unit / PLANE * comptime!(tiles.strips * STRIP);
    let (g, t) = (unit % PLANE / 4, unit % 4);
    let row = first_row + own + g;

    let mut keys = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.rows() * pitch), 16usize);
    let mut values = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.rows() * pitch), 16usize);
    let mut queries = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.other_rows() * pitch), 16usize);
    let mut of_out = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(tiles.other_rows() * pitch), 16usize);
    let mut scores = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut gradients = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut held_k = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    let mut held_v = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(tiles.strips * blocks * 4) {
        held_k[i] = Pair::<f32>::new(0.0);
        held_v[i] = Pair::<f32>::new(0.0);
    }
    cores::stage::<E>(
        k,
        of_k.first + kv_head * of_k.head,
        of_k.stride,
        first_row,
        tokens,
        &mut keys,
        comptime!(tiles.rows()),
        head_dim,
        comptime!(tiles.units()),
    );
    cores::stage::<E>(
        v,
        of_v.first + kv_head * of_v.head,
        of_v.stride,
        first_row,
        tokens,
        &mut values,
        comptime!(tiles.rows()),
        head_dim,
        comptime!(tiles.units()),
    );

    for range in plan[numbers.ranges + tile] as usize..plan[numbers.ranges + tile + 1] as usize {
        let pair = numbers.ranges + numbers.tiles + 1 + 2 * range;
        let end = plan[pair + 1] as usize;
        for of_group in 0..form.group {
            let head = kv_head * form.group + of_group;
            let slope = slope_of(slopes, head, form);
            for query in range_stepped(plan[pair] as usize, end, comptime!(tiles.other_rows())) {
                sync_cube();
                cores::stage::<E>(
                    q,
                    of_q.first + head * of_q.head,
                    of_q.stride,
                    query,
                    end,
                    &mut queries,
                    comptime!(tiles.other_rows()),
                    head_dim,
                    comptime!(tiles.units()),
                );
                cores::stage::<E>(
                    upstream,
                    head * width,
                    kv_heads * comptime!(form.group * width),
                    query,
                    end,
                    &mut of_out,
                    comptime!(tiles.other_rows()),
                    head_dim,
                    comptime!(tiles.units()),
                );
                sync_cube();
                cores::multiply::<E>(&keys, own, &queries, &mut scores, head_dim, tiles);
                cores::multiply::<E>(&values, own, &of_out, &mut gradients, head_dim, tiles);
                #[unroll]
                for i in 0..comptime!(tiles.others * 2) {
                    #[unroll]
                    for c in 0..2usize {
                        let query = query + comptime!(i * 8 + c) + t * 2;
                        let sight = sight(plan, tokens, query, form);
                        let mut sum = 0.0f32;
                        let mut whole = 0.0f32;
                        if query < end {
                            sum = sums[head * tokens + query];
                            whole = rows[head * tokens + query];
                        }
                        #[unroll]
                        for of_row in 0..comptime!(tiles.strips * 2) {
                            let (strip, half) = comptime!((of_row / 2, of_row % 2));
                            let key = row + comptime!(strip * STRIP + half * 8);
                            let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
                            let mut pair = scores[at];
                            let mut of = gradients[at];
                            let mut share = 0.0f32;
                            let mut gradient = 0.0f32;
                            if query < end && key < tokens && sees(&sight, query, key, form) {
                                let product = pair.extract(c);
                                share = (score(product, &numbers, slope, query, key, form) - sum).exp();
                                gradient = share * (of.extract(c) - whole) * passes(product, &numbers, form);
                            }
                            pair.insert(c, share);
                            of.insert(c, gradient);
                            scores[at] = pair;
                            gradients[at] = of;
                        }
                    }
                }
                let first = part * blocks;
                cores::accumulate::<E>(&scores, &of_out, first, &mut held_v, head_dim, blocks, tiles);
                cores::accumulate::<E>(&gradients, &queries, first, &mut held_k, head_dim, blocks, tiles);
            }
        }
    }
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let key = row + comptime!(strip * STRIP + half * 8);
        if key < tokens {
            #[unroll]
            for i in 0..comptime!(blocks * 2) {
                let from = comptime!((strip * blocks * 2 + i) * 2 + half);
                let column = part * comptime!(blocks * 8) + comptime!(i * 4) + t;
                if column < comptime!(head_dim / 2) {
                    let at = to.first + key * to.stride + kv_head * to.head + column;
                    of_keys[at] = held_k[from] * Pair::<f32>::new(numbers.scale);
                    of_values[at] = held_v[from];
                }
            }
        }
    }
}
