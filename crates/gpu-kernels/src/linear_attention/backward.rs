//! Texts from their last chunk to their first: the gradients of states, and of what tokens learn.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::records::{Part, bring_pairs, bring_part, record_of};
use super::tile::{
    self, BESIDE, FOURS, Four, SIDE, SLICE, SLICE_PITCH, Weights, add_outer, add_product, add_state,
    bring_keys, bring_slice, keep_state, put_pairs, put_state, row_of, share_state, solve,
};
use super::{Form, Numbers};
use crate::text_plan::{CHILDREN, FIRST_CHUNK, NUMBER, TEXT_WORDS};

/// A text, a head and a slice of its values for each cube.
///
/// `of_states` are gradients of the states behind chunks, `of_learned` those of what a token learns before the system is solved.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn walk_back(
    qkv: &[f32],
    head_weights: &[f32],
    words: &[u32],
    dy: &[f32],
    of_left: &mut [f32],
    of_states: &mut [f32],
    of_learned: &mut [f32],
    numbers: Numbers,
    #[comptime] form: Form,
) {
    let (chunk, key_dim, value_dim) = comptime!((form.chunk, form.key_dim, form.value_dim));
    let (head, first_column) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize * SLICE);
    let text = words[numbers.order + CUBE_POS_X as usize] as usize * TEXT_WORDS;
    let (start, end) = (words[text] as usize, words[text + 1] as usize);
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    let column = first_column + x * 4;
    let (heads, width) = (numbers.heads, numbers.width);
    let key_column = head / form.each * key_dim;
    let state_size = comptime!(key_dim * value_dim);

    let mut weights = Weights::new(form);
    let mut q = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut k = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut state = Shared::<[Four]>::new_slice(comptime!(4 * form.fours() * FOURS));
    let mut upstream = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut new = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut columns = Shared::<[f32]>::new_slice(comptime!(form.columns()));
    let mut system = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut of_queries = Shared::<[f32]>::new_slice(comptime!(form.chunk));
    let mut of_keys = Shared::<[f32]>::new_slice(comptime!(form.chunk));

    let mut own = Array::<Four>::new(comptime!(4 * form.parts()));
    #[unroll]
    for i in 0..comptime!(4 * form.parts()) {
        own[i] = Four::new(0.0);
    }
    if comptime!(form.leaves) {
        // Those of the texts that continue this one, in their order.
        for child in words[text + CHILDREN] as usize..words[text + CHILDREN + 1] as usize {
            let first = (words[numbers.children + child] as usize * heads + head) * state_size;
            add_state(&*of_left, first, column, &mut own, form);
        }
    }

    let chunks = (end - start).div_ceil(chunk);
    for step in 0..chunks {
        let at = chunks - 1 - step;
        let row = start + at * chunk;
        let count = min(end - row, chunk);
        sync_cube();
        let first = (head * numbers.chunks + words[text + FIRST_CHUNK] as usize + at) * state_size;
        share_state(&own, &mut state, form);
        put_state(of_states, first, column, &own, form);
        let record = record_of(head, words[text + FIRST_CHUNK] as usize + at, &numbers, form);
        if comptime!(form.channels) {
            bring_part(head_weights, record, &mut k, Part::KeysUntil, form);
            bring_part(head_weights, record, &mut q, Part::QueriesSince, form);
            bring_pairs(head_weights, record, &mut system, &mut scores, true, form);
        } else {
            bring_keys(qkv, row * width + numbers.k + key_column, width, count, &mut k, form);
            bring_keys(qkv, row * width + numbers.q + key_column, width, count, &mut q, form);
        }
        let of_row = (row * heads + head) * value_dim;
        bring_slice(dy, of_row, heads * value_dim, count, first_column, &mut upstream, form);
        if comptime!(form.channels) {
            weights.bring_betas(head_weights, record, form);
        } else {
            weights.bring(head_weights, numbers.of_heads, row, count, heads, head, form);
        }
        if (UNIT_POS as usize) < chunk {
            let token = UNIT_POS as usize;
            let until = weights.until(token, form);
            of_queries[token] = until;
            of_keys[token] = -(until * weights.beta[token]);
        }

        let (fours, pitch) = comptime!((form.fours(), form.pitch()));
        let mut gradient = Array::<Four>::new(comptime!(form.turns()));
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            gradient[turn] = Four::new(0.0);
        }
        add_product(&k, &state, &mut gradient, fours, pitch, FOURS, form);
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let token = y + turn * SIDE;
            if token < chunk {
                gradient[turn] *= Four::new(weights.after(token, form));
            }
        }
        if comptime!(!form.channels) {
            put_pairs(&q, &k, &weights, &mut system, &mut scores, true, form);
        }
        sync_cube();
        for later in 0..chunk {
            let value = upstream[later * SLICE_PITCH + x];
            #[unroll]
            for turn in 0..comptime!(form.turns()) {
                let score = scores[later * comptime!(form.chunk + 1) + row_of(y, turn, form)];
                gradient[turn] = fma(Four::new(score), value, gradient[turn]);
            }
        }
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let token = y + turn * SIDE;
            if token < chunk {
                new[token * SLICE_PITCH + x] = gradient[turn];
            }
        }
        sync_cube();
        if comptime!(form.delta) {
            solve(&system, &mut new, &mut columns, true, form);
            sync_cube();
        }
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let token = y + turn * SIDE;
            if token < count {
                let first = ((row + token) * heads + head) * value_dim;
                tile::put_four(of_learned, first, column, new[token * SLICE_PITCH + x], value_dim);
            }
        }
        keep_state(&mut own, head_weights, record, &weights, form);
        add_outer(&q, &upstream, &of_queries, &mut own, form);
        if comptime!(form.delta) {
            if comptime!(form.channels) {
                bring_part(head_weights, record, &mut k, Part::KeysSince, form);
                sync_cube();
            }
            add_outer(&k, &new, &of_keys, &mut own, form);
        }
    }

    if comptime!(form.begins) {
        let first = (words[text + NUMBER] as usize * heads + head) * state_size;
        put_state(of_left, first, column, &own, form);
    }
}
