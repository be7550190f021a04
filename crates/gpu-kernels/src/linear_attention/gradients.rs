//! The gradients of a chunk's queries, keys, values and weights, from the states and gradients that two walks left.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::tile::{
    self, BESIDE, FOURS, Four, SIDE, SLICE, SLICE_PITCH, UNITS, Weights, add_dots, add_product, bring_keys,
    bring_slice,
};
use super::{Form, Numbers};

/// Sums that a token's units have of it.
pub(super) const SUMS: usize = 5;
/// Products of an upstream gradient, of the query and what the state gives it.
const OF_QUERY: usize = 0;
/// The same of the key and the gradient of what it learns.
const OF_KEY: usize = 1;
/// The same of the key and what it adds to the state behind.
const OF_REST: usize = 2;
/// Of pairs of tokens, their decay's.
const OF_PAIRS: usize = 3;
/// What of beta's is no state's.
const OF_BETA: usize = 4;

/// A chunk and a head of keys for each cube, whose heads of values come one after another.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_chunks(
    qkv: &[f32],
    head_weights: &[f32],
    words: &[u32],
    dy: &[f32],
    states: &[f32],
    learned: &[f32],
    of_states: &[f32],
    of_learned: &[f32],
    of_qkv: &mut [f32],
    of_weights: &mut [f32],
    numbers: Numbers,
    #[comptime] form: Form,
) {
    let (chunk, key_dim, value_dim) = comptime!((form.chunk, form.key_dim, form.value_dim));
    let (chunk_at, key_head) = (CUBE_POS_X as usize, CUBE_POS_Y as usize);
    let row = words[numbers.order + 2 * chunk_at] as usize;
    let count = words[numbers.order + 2 * chunk_at + 1] as usize;
    let unit = UNIT_POS as usize;
    let (x, y) = (unit % BESIDE, unit / BESIDE);
    let (heads, width) = (numbers.heads, numbers.width);
    let key_column = key_head * key_dim;
    let state_size = comptime!(key_dim * value_dim);
    let slices = comptime!(value_dim.div_ceil(SLICE));
    let (turns, others) = comptime!((form.turns(), form.chunk / BESIDE));
    let (fours, pitch, across) = comptime!((form.fours(), form.pitch(), form.chunk + 1));

    let mut weights = Weights::new(form);
    let mut q = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut k = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut upstream = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut new = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut of_new = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    // A state by its columns, and the gradient of the one behind.
    let mut state = Shared::<[Four]>::new_slice(comptime!(SLICE * SLICE_PITCH));
    let mut of_state = Shared::<[Four]>::new_slice(comptime!(SLICE * SLICE_PITCH));
    // Gradients of products of queries and keys, and of keys with each other; parts of the decay's.
    let mut of_scores = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut of_system = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut pairs = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(SUMS * form.chunk * BESIDE));
    let mut of_sums = Shared::<[f32]>::new_slice(comptime!(form.chunk));
    let mut totals = Shared::<[f32]>::new_slice(UNITS);

    bring_keys(qkv, row * width + numbers.k + key_column, width, count, &mut k, form);
    bring_keys(qkv, row * width + numbers.q + key_column, width, count, &mut q, form);
    for of_group in 0..comptime!(form.each) {
        let head = key_head * form.each + of_group;
        // Others still read what the head before brought.
        sync_cube();
        weights.bring(head_weights, numbers.of_heads, row, count, heads, head, form);
        let of_row = (row * heads + head) * value_dim;
        let token_stride = heads * value_dim;

        let mut own = Array::<f32>::new(comptime!(SUMS * form.turns()));
        #[unroll]
        for i in 0..comptime!(SUMS * form.turns()) {
            own[i] = 0.0f32;
        }
        let mut scores = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
        let mut system = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
        let mut of_seen = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
        let mut of_below = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
        #[unroll]
        for i in 0..comptime!(form.turns() * form.chunk / BESIDE) {
            scores[i] = 0.0f32;
            system[i] = 0.0f32;
            of_seen[i] = 0.0f32;
            of_below[i] = 0.0f32;
        }
        add_dots(&q, &k, &mut scores, fours, pitch, form);
        if comptime!(form.delta) {
            add_dots(&k, &k, &mut system, fours, pitch, form);
        }
        #[unroll]
        for slice in 0..slices {
            let column = comptime!(slice * SLICE);
            if comptime!(slice > 0) {
                sync_cube();
            }
            bring_slice(dy, of_row, token_stride, count, column, &mut upstream, form);
            bring_slice(learned, of_row, token_stride, count, column, &mut new, form);
            bring_slice(of_learned, of_row, token_stride, count, column, &mut of_new, form);
            sync_cube();
            add_dots(&upstream, &new, &mut of_seen, FOURS, SLICE_PITCH, form);
            if comptime!(form.delta) {
                add_dots(&of_new, &new, &mut of_below, FOURS, SLICE_PITCH, form);
            }
            #[unroll]
            for turn in 0..turns {
                let token = y + turn * SIDE;
                if token < count {
                    let gradient = of_new[token * SLICE_PITCH + x];
                    let first = (row + token) * width + numbers.v + head * value_dim;
                    let value = tile::four(qkv, first, column + x * 4, value_dim);
                    let both = gradient * value;
                    #[unroll]
                    for i in 0..4usize {
                        own[OF_BETA * turns + turn] += both.extract(i);
                    }
                    let gradient = gradient * Four::new(weights.beta[token]);
                    tile::put_four(of_qkv, first, column + x * 4, gradient, value_dim);
                }
            }
        }
        #[unroll]
        for turn in 0..turns {
            let token = y + turn * SIDE;
            if token < chunk {
                let learns = weights.beta[token];
                #[unroll]
                for j in 0..others {
                    let other = x + j * BESIDE;
                    let at = turn * others + j;
                    let mut of_score = 0.0f32;
                    let mut of_pair = 0.0f32;
                    if other <= token {
                        let kept = weights.between(other, token);
                        of_score = of_seen[at] * kept;
                        if comptime!(form.delta) {
                            if other < token {
                                // What is solved goes down by what is known already.
                                let of_product = -(of_below[at] * kept);
                                of_pair = of_product * learns;
                                own[OF_BETA * turns + turn] += of_product * system[at];
                            }
                        }
                    }
                    of_scores[token * across + other] = of_score;
                    let pair = of_score * scores[at] + of_pair * system[at];
                    if comptime!(form.delta) {
                        of_system[token * across + other] = of_pair;
                    }
                    pairs[token * across + other] = pair;
                    own[OF_PAIRS * turns + turn] += pair;
                }
            }
        }

        // The total of the products of the state and the gradient of the one behind.
        let mut total = 0.0f32;
        let first = (head * numbers.chunks + chunk_at) * state_size;
        for block in 0..comptime!(form.fours().div_ceil(FOURS)) {
            let mut of_query = Array::<Four>::new(turns);
            let mut of_key = Array::<Four>::new(turns);
            let mut of_rest = Array::<Four>::new(turns);
            #[unroll]
            for turn in 0..turns {
                of_query[turn] = Four::new(0.0);
                of_key[turn] = Four::new(0.0);
                of_rest[turn] = Four::new(0.0);
            }
            #[unroll]
            for slice in 0..slices {
                let column = comptime!(slice * SLICE);
                // Others still read what is there.
                sync_cube();
                if comptime!(slices > 1) {
                    bring_slice(dy, of_row, token_stride, count, column, &mut upstream, form);
                    bring_slice(learned, of_row, token_stride, count, column, &mut new, form);
                    bring_slice(of_learned, of_row, token_stride, count, column, &mut of_new, form);
                }
                let value = unit % SLICE;
                #[unroll]
                for turn in 0..comptime!(FOURS * SLICE / UNITS) {
                    let four = unit / SLICE + turn * comptime!(UNITS / SLICE);
                    // Both together: apart, as `tile::key_four` brings them, they spill 80 bytes.
                    let mut own = Four::new(0.0);
                    let mut of_own = Four::new(0.0);
                    #[unroll]
                    for i in 0..4usize {
                        let key = (block * FOURS + four) * 4 + i;
                        if key < key_dim {
                            if column + value < value_dim {
                                let place = first + key * value_dim + column + value;
                                own.insert(i, states[place]);
                                of_own.insert(i, of_states[place]);
                            }
                        }
                    }
                    state[value * SLICE_PITCH + four] = own;
                    of_state[value * SLICE_PITCH + four] = of_own;
                    let both = own * of_own;
                    #[unroll]
                    for i in 0..4usize {
                        total += both.extract(i);
                    }
                }
                sync_cube();
                add_product(&upstream, &state, &mut of_query, FOURS, SLICE_PITCH, SLICE_PITCH, form);
                if comptime!(form.delta) {
                    add_product(&of_new, &state, &mut of_key, FOURS, SLICE_PITCH, SLICE_PITCH, form);
                }
                add_product(&new, &of_state, &mut of_rest, FOURS, SLICE_PITCH, SLICE_PITCH, form);
            }
            let four = block * FOURS + x;
            if four < fours {
                #[unroll]
                for turn in 0..turns {
                    let token = y + turn * SIDE;
                    if token < count {
                        let until = weights.until(token, form);
                        let (key, query) = (k[token * pitch + four], q[token * pitch + four]);
                        let mut dq = of_query[turn] * Four::new(until);
                        let mut dk = of_rest[turn] * Four::new(weights.after(token, form));
                        let (by_query, by_rest) = (query * dq, key * dk);
                        let mut by_key = Four::new(0.0);
                        if comptime!(form.delta) {
                            let of_key = of_key[turn] * Four::new(until);
                            by_key = key * of_key;
                            dk -= of_key * Four::new(weights.beta[token]);
                        }
                        #[unroll]
                        for i in 0..4usize {
                            own[OF_QUERY * turns + turn] += by_query.extract(i);
                            own[OF_REST * turns + turn] += by_rest.extract(i);
                            if comptime!(form.delta) {
                                own[OF_KEY * turns + turn] += by_key.extract(i);
                            }
                        }
                        for other in 0..chunk {
                            let (key, query) = (k[other * pitch + four], q[other * pitch + four]);
                            dq = fma(Four::new(of_scores[token * across + other]), key, dq);
                            dk = fma(Four::new(of_scores[other * across + token]), query, dk);
                            if comptime!(form.delta) {
                                let pair =
                                    of_system[token * across + other] + of_system[other * across + token];
                                dk = fma(Four::new(pair), key, dk);
                            }
                        }
                        let place = (row + token) * width + key_column;
                        let (to_q, to_k) = (place + numbers.q, place + numbers.k);
                        if of_group > 0 {
                            dq += tile::four(&*of_qkv, to_q, four * 4, key_dim);
                            dk += tile::four(&*of_qkv, to_k, four * 4, key_dim);
                        }
                        tile::put_four(of_qkv, to_q, four * 4, dq, key_dim);
                        tile::put_four(of_qkv, to_k, four * 4, dk, key_dim);
                    }
                }
            }
        }

        #[unroll]
        for turn in 0..turns {
            let token = y + turn * SIDE;
            if token < chunk {
                #[unroll]
                for sum in 0..SUMS {
                    sums[(sum * chunk + token) * BESIDE + x] = own[sum * turns + turn];
                }
            }
        }
        totals[unit] = total;
        sync_cube();
        if unit < chunk {
            let mut all = Array::<f32>::new(SUMS);
            #[unroll]
            for sum in 0..SUMS {
                let mut value = 0.0f32;
                #[unroll]
                for i in 0..BESIDE {
                    value += sums[(sum * chunk + unit) * BESIDE + i];
                }
                all[sum] = value;
            }
            let mut column = 0.0f32;
            for later in 0..chunk {
                column += pairs[later * across + unit];
            }
            let learns = weights.beta[unit];
            of_sums[unit] = all[OF_PAIRS] - column + all[OF_QUERY] - learns * all[OF_KEY] - all[OF_REST];
            if unit < count {
                of_weights[numbers.of_heads + (row + unit) * heads + head] = all[OF_BETA] - all[OF_KEY];
            }
            // Where the sum over the chunk goes on from.
            sums[(OF_REST * chunk + unit) * BESIDE] = all[OF_REST];
        }
        sync_cube();
        if unit < count {
            // What comes behind a token: all of a chunk's end.
            let mut gradient = 0.0f32;
            for i in 0..UNITS {
                gradient += totals[i];
            }
            gradient *= weights.until(comptime!(form.chunk - 1), form);
            for i in 0..chunk {
                gradient += sums[(OF_REST * chunk + i) * BESIDE];
            }
            for later in unit..chunk {
                gradient += of_sums[later];
            }
            of_weights[(row + unit) * heads + head] = gradient;
        }
    }
}
