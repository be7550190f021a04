//! Attention's gradients by tensor cores: one pass over tiles of queries, one over tiles of keys.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{self, Eight, PLANE, Pair, STAGES, STRIP, Tiles, pair, power_of_two};
use super::score::{
    Form, HIDDEN, LOG2_E, Numbers, Rows, Sight, passes, score_in_units, sees, sight_from, slope_of, unit,
};
use super::seen::{self, own_sights};
use super::walk;

/// What is added to scores in their units times `unit * LOG2_E` for shares to be powers of two of it.
#[cube]
pub(super) fn less(sum: f32) -> f32 {
    // Where a row sees nothing, its shares are hidden one by one.
    select(sum <= HIDDEN, 0.0, sum * -LOG2_E)
}

/// Share and gradient of a pair's score, from how much more than the row's its product with the output's gradient is.
#[cube]
fn share(
    product: f32,
    more: f32,
    less: f32,
    by: f32,
    sight: &Sight,
    numbers: &Numbers,
    slope: f32,
    query: usize,
    key: usize,
    there: bool,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> (f32, f32) {
    let score = score_in_units(product, numbers, slope, query, key, form);
    let mut share = power_of_two(fma(score, by, less));
    let mut gradient = share * more;
    if comptime!(form.softcap) {
        gradient *= passes(product, numbers, form);
    }
    if comptime!(!whole) {
        let seen = there && sees(sight, query, key, form);
        share = select(seen, share, 0.0);
        gradient = select(seen, gradient, 0.0);
    }
    (share, gradient)
}

/// The gradients of a tile's scores in rows of queries, of keys that are before `end`.
#[cube]
pub(super) fn of_scores(
    scores: &Array<Pair<f32>>,
    gradients: &mut Array<Pair<f32>>,
    less_sums: &Array<f32>,
    by: f32,
    sights: &Sequence<Sight>,
    numbers: &Numbers,
    slope: f32,
    row: usize,
    key: usize,
    end: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let t = UNIT_POS as usize % 4;
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let query = row + comptime!(strip * STRIP + half * 8);
        #[unroll]
        for i in 0..comptime!(tiles.others * 2) {
            let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
            let products = scores[at];
            let mut of = gradients[at];
            #[unroll]
            for c in 0..2usize {
                let key = key + comptime!(i * 8 + c) + t * 2;
                let (_, gradient) = share(
                    products.extract(c),
                    of.extract(c),
                    less_sums[of_row],
                    by,
                    sights.index(of_row),
                    numbers,
                    slope,
                    query,
                    key,
                    key < end,
                    whole,
                    form,
                );
                of.insert(c, gradient);
            }
            gradients[at] = of;
        }
    }
}

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
    let (rows_own, other_rows, units) = comptime!((tiles.rows(), tiles.other_rows(), tiles.units()));
    let (heads, head) = (CUBE_COUNT_X as usize, CUBE_POS_X as usize);
    let tokens = numbers.tokens;
    let tile = walk::tile(plan, &numbers);
    let first_row = tile * rows_own;
    let place = UNIT_POS as usize;
    let own = place / PLANE * comptime!(tiles.strips * STRIP);
    let (g, t) = (place % PLANE / 4, place % 4);
    let row = first_row + own + g;

    let mut queries = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows_own * pitch), 16usize);
    let mut of_out = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows_own * pitch), 16usize);
    let mut keys = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(STAGES * other_rows * pitch), 16usize);
    let mut values = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(STAGES * other_rows * pitch), 16usize);
    let mut scores = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut gradients = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut held = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(tiles.strips * blocks * 4) {
        held[i] = Pair::<f32>::new(0.0);
    }
    let kv = head / form.group;
    let (of_keys, of_values) = (of_k.first + kv * of_k.head, of_v.first + kv * of_v.head);
    let (of_queries, of_upstream) = (of_q.first + head * of_q.head, heads * width);
    let mut ahead = walk::begin(plan, &numbers, tile);
    cores::copy_both::<E>(
        q,
        upstream,
        of_queries,
        head * width,
        of_q.stride,
        of_upstream,
        first_row,
        tokens,
        &mut queries,
        &mut of_out,
        0usize,
        rows_own,
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
    let by = unit(&numbers, form) * LOG2_E;
    let sights = own_sights(plan, tokens, row, form, tiles);
    let seen = seen::by_own(&sights, first_row + own, tokens, row, tiles);
    let mut less_sums = Array::<f32>::new(comptime!(tiles.strips * 2));
    let mut wholes = Array::<f32>::new(comptime!(tiles.strips * 2));
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let query = row + comptime!(of_row / 2 * STRIP + of_row % 2 * 8);
        let mut sum = 0.0f32;
        let mut whole = 0.0f32;
        if query < tokens {
            sum = sums[head * tokens + query];
            whole = rows[head * tokens + query];
        }
        less_sums[of_row] = less(sum);
        wholes[of_row] = -whole;
    }
    if comptime!(tiles.kept) {
        cores::wait(0usize);
        sync_cube();
    }
    let kept_queries = cores::keep::<E>(&queries, own, head_dim, tiles);
    let kept_of_out = cores::keep::<E>(&of_out, own, head_dim, tiles);
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
                gradients[i] = Pair::<f32>::new(wholes[comptime!(i / (tiles.others * 4) * 2 + i % 2)]);
            }
            cores::multiply::<E>(&queries, &kept_queries, own, &keys, at, &mut scores, head_dim, tiles);
            cores::multiply::<E>(&of_out, &kept_of_out, own, &values, at, &mut gradients, head_dim, tiles);
            // Keys past the end are zeros, and so is what they are multiplied by.
            if seen::all_of(&seen, key, end, other_rows) {
                of_scores(
                    &scores,
                    &mut gradients,
                    &less_sums,
                    by,
                    &sights,
                    &numbers,
                    slope,
                    row,
                    key,
                    end,
                    true,
                    form,
                    tiles,
                );
            } else {
                of_scores(
                    &scores,
                    &mut gradients,
                    &less_sums,
                    by,
                    &sights,
                    &numbers,
                    slope,
                    row,
                    key,
                    end,
                    false,
                    form,
                    tiles,
                );
            }
            cores::accumulate::<E>(&gradients, &keys, at, 0usize, &mut held, head_dim, blocks, tiles);
        }
        at = next;
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

/// What tiles of keys are held against: queries, the output's gradient, and of each query the log-sum-exp, the sum of its
/// output times the gradient, and the first key that it sees.
#[derive(CubeType)]
struct Others<E: Float> {
    queries: Shared<[Eight<E>]>,
    of_out: Shared<[Eight<E>]>,
    sums: Shared<[f32]>,
    rows: Shared<[f32]>,
    lows: Shared<[u32]>,
}

/// Begins to copy a tile of them to the row `to`.
#[cube]
fn bring<E: Float>(
    q: &[Eight<E>],
    upstream: &[Eight<E>],
    plan: &[u32],
    sums: &[f32],
    rows: &[f32],
    of_q: &Rows,
    others: &mut Others<E>,
    ahead: &walk::Walk,
    first_head: usize,
    heads: usize,
    tokens: usize,
    to: usize,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let head_dim = comptime!(form.head_dim);
    let width = comptime!(head_dim / 8);
    let (other_rows, units) = comptime!((tiles.other_rows(), tiles.units()));
    let head = first_head + ahead.turn;
    let (query, end) = (ahead.row, ahead.end);
    let first = of_q.first + head * of_q.head;
    cores::copy_both::<E>(
        q,
        upstream,
        first,
        head * width,
        of_q.stride,
        heads * width,
        query,
        end,
        &mut others.queries,
        &mut others.of_out,
        to,
        other_rows,
        head_dim,
        units,
    );
    cores::copy_words(sums, head * tokens, query, end, &mut others.sums, to, other_rows, units);
    cores::copy_words(rows, head * tokens, query, end, &mut others.rows, to, other_rows, units);
    cores::copy_words(plan, 0usize, query, end, &mut others.lows, to, other_rows, units);
}

/// Shares and gradients of a tile's scores in columns of queries: `scores` and `gradients` become them.
#[cube]
fn of_columns<E: Float>(
    scores: &mut Array<Pair<f32>>,
    gradients: &mut Array<Pair<f32>>,
    others: &Others<E>,
    plan: &[u32],
    by: f32,
    numbers: &Numbers,
    slope: f32,
    row: usize,
    query: usize,
    at: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let t = UNIT_POS as usize % 4;
    #[unroll]
    for i in 0..comptime!(tiles.others * 2) {
        #[unroll]
        for c in 0..2usize {
            let column = comptime!(i * 8 + c) + t * 2;
            let query = query + column;
            let less = less(others.sums[at + column]);
            let sight =
                sight_from(others.lows[at + column] as usize, plan, numbers.tokens, query, whole, form);
            of_column(
                scores,
                gradients,
                comptime!(i * 2),
                comptime!(tiles.others * 4),
                c,
                less,
                by,
                &sight,
                numbers,
                slope,
                row,
                query,
                whole,
                form,
                tiles.strips,
            );
        }
    }
}

/// The same of one query, the column `c` of the pairs from `first` on, those of a strip `apart` from the next one's.
#[cube]
pub(super) fn of_column(
    scores: &mut Array<Pair<f32>>,
    gradients: &mut Array<Pair<f32>>,
    #[comptime] first: usize,
    #[comptime] apart: usize,
    #[comptime] c: usize,
    less: f32,
    by: f32,
    sight: &Sight,
    numbers: &Numbers,
    slope: f32,
    row: usize,
    query: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
    #[comptime] strips: usize,
) {
    #[unroll]
    for of_row in 0..comptime!(strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let key = row + comptime!(strip * STRIP + half * 8);
        let at = comptime!(first + strip * apart + half);
        let mut pair = scores[at];
        let mut of = gradients[at];
        let (share, gradient) = share(
            pair.extract(c),
            of.extract(c),
            less,
            by,
            sight,
            numbers,
            slope,
            query,
            key,
            true,
            whole,
            form,
        );
        pair.insert(c, share);
        of.insert(c, gradient);
        scores[at] = pair;
        gradients[at] = of;
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
    let (rows_own, other_rows, units) = comptime!((tiles.rows(), tiles.other_rows(), tiles.units()));
    let (kv_heads, kv_head) = (CUBE_COUNT_X as usize, CUBE_POS_X as usize);
    let part = CUBE_POS_Z as usize;
    let tokens = numbers.tokens;
    let tile = walk::tile(plan, &numbers);
    let first_row = tile * rows_own;
    let place = UNIT_POS as usize;
    let own = place / PLANE * comptime!(tiles.strips * STRIP);
    let (g, t) = (place % PLANE / 4, place % 4);
    let row = first_row + own + g;

    let mut keys = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows_own * pitch), 16usize);
    let mut values = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows_own * pitch), 16usize);
    let mut others = Others::<E> {
        queries: Shared::<[Eight<E>]>::new_aligned_slice(comptime!(STAGES * other_rows * pitch), 16usize),
        of_out: Shared::<[Eight<E>]>::new_aligned_slice(comptime!(STAGES * other_rows * pitch), 16usize),
        sums: Shared::<[f32]>::new_slice(comptime!(STAGES * other_rows)),
        rows: Shared::<[f32]>::new_slice(comptime!(STAGES * other_rows)),
        lows: Shared::<[u32]>::new_slice(comptime!(STAGES * other_rows)),
    };
    let mut scores = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut gradients = Array::<Pair<f32>>::new(comptime!(tiles.strips * tiles.others * 4));
    let mut held_k = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    let mut held_v = Array::<Pair<f32>>::new(comptime!(tiles.strips * blocks * 4));
    #[unroll]
    for i in 0..comptime!(tiles.strips * blocks * 4) {
        held_k[i] = Pair::<f32>::new(0.0);
        held_v[i] = Pair::<f32>::new(0.0);
    }
    let (of_keys_first, of_values_first) =
        (of_k.first + kv_head * of_k.head, of_v.first + kv_head * of_v.head);
    let mut ahead = walk::begin(plan, &numbers, tile);
    cores::copy_both::<E>(
        k,
        v,
        of_keys_first,
        of_values_first,
        of_k.stride,
        of_v.stride,
        first_row,
        tokens,
        &mut keys,
        &mut values,
        0usize,
        rows_own,
        head_dim,
        units,
    );
    let heads = kv_heads * form.group;
    let first_head = kv_head * form.group;
    if walk::goes_on(&ahead) {
        bring::<E>(
            q,
            upstream,
            plan,
            sums,
            rows,
            &of_q,
            &mut others,
            &ahead,
            first_head,
            heads,
            tokens,
            0usize,
            form,
            tiles,
        );
    }
    cores::commit();
    let by = unit(&numbers, form) * LOG2_E;
    if comptime!(tiles.kept) {
        cores::wait(0usize);
        sync_cube();
    }
    let kept_keys = cores::keep::<E>(&keys, own, head_dim, tiles);
    let kept_values = cores::keep::<E>(&values, own, head_dim, tiles);
    let mut at = 0usize;

    while walk::goes_on(&ahead) {
        let mut query = 0usize;
        let mut head = first_head;
        query += ahead.row;
        head += ahead.turn;
        let next = comptime!(STAGES - 1) * other_rows - at;
        walk::step(&mut ahead, plan, &numbers, other_rows, form.group);
        // This tile is there, and all units are done with the one before, whose place the next one takes.
        cores::wait(0usize);
        sync_cube();
        if walk::goes_on(&ahead) {
            bring::<E>(
                q,
                upstream,
                plan,
                sums,
                rows,
                &of_q,
                &mut others,
                &ahead,
                first_head,
                heads,
                tokens,
                next,
                form,
                tiles,
            );
        }
        cores::commit();
        let seen = seen::by_others(&others.lows, at, query, tiles);
        let (first_key, last_key) = (first_row + own, first_row + own + comptime!(tiles.strips * STRIP - 1));
        let mut any = first_key <= seen.last;
        if comptime!(!form.before) {
            any = any && last_key >= seen.least;
        }
        if any {
            #[unroll]
            for i in 0..comptime!(tiles.others * 2) {
                let of_query = at + comptime!(i * 8) + t * 2;
                let wholes = pair::<f32>(-others.rows[of_query], -others.rows[of_query + 1]);
                #[unroll]
                for of_row in 0..comptime!(tiles.strips * 2) {
                    let at = comptime!((of_row / 2 * tiles.others * 2 + i) * 2 + of_row % 2);
                    scores[at] = Pair::<f32>::new(0.0);
                    gradients[at] = wholes;
                }
            }
            cores::multiply::<E>(&keys, &kept_keys, own, &others.queries, at, &mut scores, head_dim, tiles);
            cores::multiply::<E>(
                &values,
                &kept_values,
                own,
                &others.of_out,
                at,
                &mut gradients,
                head_dim,
                tiles,
            );
            let slope = slope_of(slopes, head, form);
            // Queries past the end are zeros, and so is what they are multiplied by.
            if last_key <= query && first_key >= seen.most {
                of_columns::<E>(
                    &mut scores,
                    &mut gradients,
                    &others,
                    plan,
                    by,
                    &numbers,
                    slope,
                    row,
                    query,
                    at,
                    true,
                    form,
                    tiles,
                );
            } else {
                of_columns::<E>(
                    &mut scores,
                    &mut gradients,
                    &others,
                    plan,
                    by,
                    &numbers,
                    slope,
                    row,
                    query,
                    at,
                    false,
                    form,
                    tiles,
                );
            }
            let first = part * blocks;
            cores::accumulate::<E>(&scores, &others.of_out, at, first, &mut held_v, head_dim, blocks, tiles);
            cores::accumulate::<E>(
                &gradients,
                &others.queries,
                at,
                first,
                &mut held_k,
                head_dim,
                blocks,
                tiles,
            );
        }
        at = next;
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
