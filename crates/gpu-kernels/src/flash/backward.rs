//! Attention's gradients: one pass over tiles of queries, one over tiles of keys; probabilities are made again.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::score::{Form, Numbers, Rows, passes, score, sees, sight, slope_of};
use super::tile::{self, Four, PITCH, SIDE, SLAB, TILE};

/// The sum of each output row times its gradient: `[heads, tokens]`, 16 rows for a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn row_sums<E: Float, N: Size>(
    out: &[Vector<E, N>],
    upstream: &[Vector<E, N>],
    rows: &mut [f32],
    tokens: usize,
    heads: usize,
    #[comptime] head_dim: usize,
    #[define(E)] _operands: ElemType,
) {
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    let row = CUBE_POS * SIDE + y;
    let size = N::value();
    let vectors = comptime!(head_dim / size);
    let mut parts = Shared::<[f32]>::new_slice(comptime!(SIDE * PITCH));
    let mut sum = 0.0f32;
    if row < tokens * heads {
        for turn in 0..comptime!(vectors.div_ceil(SIDE)) {
            let column = turn * SIDE + x;
            if column < vectors {
                let (own, gradient) = (out[row * vectors + column], upstream[row * vectors + column]);
                #[unroll]
                for i in 0..size {
                    sum += f32::cast_from(own.extract(i)) * f32::cast_from(gradient.extract(i));
                }
            }
        }
    }
    parts[y * PITCH + x] = sum;
    sync_cube();
    if x == 0 && row < tokens * heads {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..SIDE {
            sum += parts[y * PITCH + i];
        }
        rows[row % heads * tokens + row / heads] = sum;
    }
}

/// The gradient of each sink: what it takes of each row times what the row's gradient says. A cube for each head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_sinks(sinks: &[f32], sums: &[f32], rows: &[f32], gradient: &mut [f32], tokens: usize) {
    let head = CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let mut parts = Shared::<[f32]>::new_slice(tile::UNITS);
    let mut sum = 0.0f32;
    for token in range_stepped(unit, tokens, tile::UNITS) {
        let at = head * tokens + token;
        sum -= (sinks[head] - sums[at]).exp() * rows[at];
    }
    parts[unit] = sum;
    sync_cube();
    if unit == 0 {
        let mut sum = 0.0f32;
        for i in 0..tile::UNITS {
            sum += parts[i];
        }
        gradient[head] = sum;
    }
}

/// Share and gradient of the score of a pair: `scores` and `slopes` become them. Rows are queries, or keys.
#[cube]
fn shares(
    scores: &mut Array<Four>,
    gradients: &mut Array<Four>,
    plan: &[u32],
    sums: &[f32],
    rows: &[f32],
    head: usize,
    row: usize,
    row_end: usize,
    column: usize,
    column_end: usize,
    numbers: &Numbers,
    slope: f32,
    #[comptime] by_keys: bool,
    #[comptime] form: Form,
) {
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    let tokens = numbers.tokens;
    #[unroll]
    for i in 0..4usize {
        let mut four = scores[i];
        let mut of = gradients[i];
        #[unroll]
        for j in 0..4usize {
            let row = row + y * 4 + i;
            let column = column + x * 4 + j;
            let mut query = row;
            let mut key = column;
            if comptime!(by_keys) {
                query = column;
                key = row;
            }
            let mut share = 0.0f32;
            let mut gradient = 0.0f32;
            let sight = sight(plan, tokens, query, form);
            if row < row_end && column < column_end && sees(&sight, query, key, form) {
                let product = four.extract(j);
                let at = head * tokens + query;
                share = (score(product, numbers, slope, query, key, form) - sums[at]).exp();
                gradient = share * (of.extract(j) - rows[at]) * passes(product, numbers, form);
            }
            four.insert(j, share);
            of.insert(j, gradient);
        }
        scores[i] = four;
        gradients[i] = of;
    }
}

/// The gradient of queries.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_queries<E: Float>(
    q: &[E],
    k: &[E],
    v: &[E],
    upstream: &[E],
    plan: &[u32],
    slopes: &[f32],
    sums: &[f32],
    rows: &[f32],
    gradient: &mut [f32],
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
    to: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let blocks = comptime!(head_dim.div_ceil(TILE));
    let heads = CUBE_COUNT_Y as usize;
    let head = CUBE_POS_Y as usize;
    let tile = numbers.tiles - 1 - CUBE_POS_X as usize;
    let tokens = numbers.tokens;
    let row = tile * TILE;
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);

    let mut left = Shared::<[Four]>::new_slice(comptime!(SLAB * PITCH));
    let mut right = Shared::<[Four]>::new_slice(comptime!(tile::right(head_dim)));
    let mut of_scores = Shared::<[Four]>::new_slice(comptime!(TILE * PITCH));
    let mut scores = Array::<Four>::new(4usize);
    let mut gradients = Array::<Four>::new(4usize);
    let mut held = Array::<Four>::new(comptime!(4 * blocks));
    #[unroll]
    for i in 0..comptime!(4 * blocks) {
        held[i] = Four::new(0.0);
    }
    let slope = slope_of(slopes, head, form);
    let kv = head / form.group;
    let q_first = of_q.first + head * of_q.head;
    let k_first = of_k.first + kv * of_k.head;
    let v_first = of_v.first + kv * of_v.head;
    let width = heads * head_dim;

    for range in plan[numbers.ranges + tile] as usize..plan[numbers.ranges + tile + 1] as usize {
        let pair = numbers.ranges + numbers.tiles + 1 + 2 * range;
        let end = plan[pair + 1] as usize;
        for key in range_stepped(plan[pair] as usize, end, TILE) {
            tile::product::<E>(
                q,
                q_first,
                of_q.stride,
                row,
                tokens,
                k,
                k_first,
                of_k.stride,
                key,
                end,
                &mut left,
                &mut right,
                &mut scores,
                head_dim,
            );
            tile::product::<E>(
                upstream,
                head * head_dim,
                width,
                row,
                tokens,
                v,
                v_first,
                of_v.stride,
                key,
                end,
                &mut left,
                &mut right,
                &mut gradients,
                head_dim,
            );
            shares(
                &mut scores,
                &mut gradients,
                plan,
                sums,
                rows,
                head,
                row,
                tokens,
                key,
                end,
                &numbers,
                slope,
                false,
                form,
            );
            tile::put_columns(&mut of_scores, &gradients);
            tile::add_rows::<E>(
                &of_scores,
                k,
                k_first,
                of_k.stride,
                key,
                end,
                &mut right,
                &mut held,
                head_dim,
                comptime!(tile::depth(head_dim)),
            );
        }
    }
    #[unroll]
    for i in 0..4usize {
        let query = row + y * 4 + i;
        if query < tokens {
            #[unroll]
            for block in 0..blocks {
                #[unroll]
                for j in 0..4usize {
                    let column = block * TILE + x * 4 + j;
                    if column < head_dim {
                        let one = held[block * 4 + i].extract(j) * numbers.scale;
                        gradient[to.first + query * to.stride + head * to.head + column] = one;
                    }
                }
            }
        }
    }
}

/// The gradients of keys and values: the heads of a group one after another.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_keys<E: Float>(
    q: &[E],
    k: &[E],
    v: &[E],
    upstream: &[E],
    plan: &[u32],
    slopes: &[f32],
    sums: &[f32],
    rows: &[f32],
    of_keys: &mut [f32],
    of_values: &mut [f32],
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
    to: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let blocks = comptime!(head_dim.div_ceil(TILE));
    let kv_heads = CUBE_COUNT_Y as usize;
    let kv_head = CUBE_POS_Y as usize;
    let tile = CUBE_POS_X as usize;
    let tokens = numbers.tokens;
    let row = tile * TILE;
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);

    let mut left = Shared::<[Four]>::new_slice(comptime!(SLAB * PITCH));
    let mut right = Shared::<[Four]>::new_slice(comptime!(tile::right(head_dim)));
    let mut pairs = Shared::<[Four]>::new_slice(comptime!(TILE * PITCH));
    let mut scores = Array::<Four>::new(4usize);
    let mut gradients = Array::<Four>::new(4usize);
    let mut held_k = Array::<Four>::new(comptime!(4 * blocks));
    let mut held_v = Array::<Four>::new(comptime!(4 * blocks));
    #[unroll]
    for i in 0..comptime!(4 * blocks) {
        held_k[i] = Four::new(0.0);
        held_v[i] = Four::new(0.0);
    }
    let k_first = of_k.first + kv_head * of_k.head;
    let v_first = of_v.first + kv_head * of_v.head;
    let width = kv_heads * form.group * head_dim;

    for range in plan[numbers.ranges + tile] as usize..plan[numbers.ranges + tile + 1] as usize {
        let pair = numbers.ranges + numbers.tiles + 1 + 2 * range;
        let end = plan[pair + 1] as usize;
        for of_group in 0..form.group {
            let head = kv_head * form.group + of_group;
            let q_first = of_q.first + head * of_q.head;
            let slope = slope_of(slopes, head, form);
            for query in range_stepped(plan[pair] as usize, end, TILE) {
                tile::product::<E>(
                    k,
                    k_first,
                    of_k.stride,
                    row,
                    tokens,
                    q,
                    q_first,
                    of_q.stride,
                    query,
                    end,
                    &mut left,
                    &mut right,
                    &mut scores,
                    head_dim,
                );
                tile::product::<E>(
                    v,
                    v_first,
                    of_v.stride,
                    row,
                    tokens,
                    upstream,
                    head * head_dim,
                    width,
                    query,
                    end,
                    &mut left,
                    &mut right,
                    &mut gradients,
                    head_dim,
                );
                shares(
                    &mut scores,
                    &mut gradients,
                    plan,
                    sums,
                    rows,
                    head,
                    row,
                    tokens,
                    query,
                    end,
                    &numbers,
                    slope,
                    true,
                    form,
                );
                tile::put_columns(&mut pairs, &scores);
                tile::add_rows::<E>(
                    &pairs,
                    upstream,
                    head * head_dim,
                    width,
                    query,
                    end,
                    &mut right,
                    &mut held_v,
                    head_dim,
                    comptime!(tile::depth(head_dim)),
                );
                sync_cube();
                tile::put_columns(&mut pairs, &gradients);
                tile::add_rows::<E>(
                    &pairs,
                    q,
                    q_first,
                    of_q.stride,
                    query,
                    end,
                    &mut right,
                    &mut held_k,
                    head_dim,
                    comptime!(tile::depth(head_dim)),
                );
            }
        }
    }
    #[unroll]
    for i in 0..4usize {
        let key = row + y * 4 + i;
        if key < tokens {
            #[unroll]
            for block in 0..blocks {
                #[unroll]
                for j in 0..4usize {
                    let column = block * TILE + x * 4 + j;
                    if column < head_dim {
                        let at = to.first + key * to.stride + kv_head * to.head + column;
                        of_keys[at] = held_k[block * 4 + i].extract(j) * numbers.scale;
                        of_values[at] = held_v[block * 4 + i].extract(j);
                    }
                }
            }
        }
    }
}
