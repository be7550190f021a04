//! Texts from their first chunk to their last.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::records::{Part, bring_pairs, bring_part, record_of};
use super::tile::{
    self, BESIDE, FOURS, Four, SIDE, SLICE, SLICE_PITCH, Weights, add_outer, add_product, add_state,
    bring_keys, keep_state, put_pairs, put_state, row_of, share_state, solve,
};
use super::{Form, Numbers};
use crate::text_plan::{BEFORE, BEHIND, FIRST_CHUNK, NO_TEXT, TEXT_WORDS};

/// A text, a head and a slice of its values for each cube.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn walk(
    qkv: &[f32],
    head_weights: &[f32],
    words: &[u32],
    held: &[f32],
    left: &mut [f32],
    out: &mut [f32],
    states: &mut [f32],
    learned: &mut [f32],
    numbers: Numbers,
    #[comptime] form: Form,
) {
    let (chunk, key_dim, value_dim) = comptime!((form.chunk, form.key_dim, form.value_dim));
    let (head, first_column) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize * SLICE);
    let text = words[numbers.order + CUBE_POS_X as usize] as usize * TEXT_WORDS;
    let (start, end) = (words[text] as usize, words[text + 1] as usize);
    let mut chunk_at = words[text + FIRST_CHUNK] as usize;
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    let column = first_column + x * 4;
    let (heads, width) = (numbers.heads, numbers.width);
    let key_column = head / form.each * key_dim;
    let state_size = comptime!(key_dim * value_dim);

    let mut weights = Weights::new(form);
    let mut q = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut k = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut state = Shared::<[Four]>::new_slice(comptime!(4 * form.fours() * FOURS));
    let mut new = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut columns = Shared::<[f32]>::new_slice(comptime!(form.columns()));
    let mut system = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut rest = Shared::<[f32]>::new_slice(comptime!(form.chunk));

    // This unit's part of the state, four rows of keys at a time.
    let mut own = Array::<Four>::new(comptime!(4 * form.parts()));
    #[unroll]
    for i in 0..comptime!(4 * form.parts()) {
        own[i] = Four::new(0.0);
    }
    if comptime!(form.begins) {
        let first = (words[text + BEFORE] as usize * heads + head) * state_size;
        if comptime!(form.held) {
            add_state(held, first, column, &mut own, form);
        } else {
            add_state(&*left, first, column, &mut own, form);
        }
    }

    for row in range_stepped(start, end, chunk) {
        let count = min(end - row, chunk);
        // Others still read what the chunk before brought.
        sync_cube();
        let first = (head * numbers.chunks + chunk_at) * state_size;
        share_state(&own, &mut state, form);
        if comptime!(form.keeps) {
            put_state(states, first, column, &own, form);
        }
        let record = record_of(head, chunk_at, &numbers, form);
        if comptime!(form.channels) {
            bring_part(head_weights, record, &mut k, Part::KeysSince, form);
            if comptime!(form.gives) {
                bring_part(head_weights, record, &mut q, Part::QueriesSince, form);
            }
            bring_pairs(head_weights, record, &mut system, &mut scores, comptime!(form.gives), form);
            weights.bring_betas(head_weights, record, form);
        } else {
            bring_keys(qkv, row * width + numbers.k + key_column, width, count, &mut k, form);
            if comptime!(form.gives) {
                bring_keys(qkv, row * width + numbers.q + key_column, width, count, &mut q, form);
            }
            weights.bring(head_weights, numbers.of_heads, row, count, heads, head, form);
            put_pairs(&q, &k, &weights, &mut system, &mut scores, comptime!(form.gives), form);
        }
        if (UNIT_POS as usize) < chunk {
            rest[UNIT_POS as usize] = weights.after(UNIT_POS as usize, form);
        }

        // What the state says of keys, and to queries.
        let mut known = Array::<Four>::new(comptime!(form.turns()));
        let mut asked = Array::<Four>::new(comptime!(form.turns()));
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            known[turn] = Four::new(0.0);
            asked[turn] = Four::new(0.0);
        }
        let (fours, pitch) = comptime!((form.fours(), form.pitch()));
        if comptime!(form.delta) {
            add_product(&k, &state, &mut known, fours, pitch, FOURS, form);
        }
        if comptime!(form.gives) {
            add_product(&q, &state, &mut asked, fours, pitch, FOURS, form);
        }
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let token = y + turn * SIDE;
            if token < chunk {
                let learns = weights.beta[token];
                let mut value = Four::new(0.0);
                if token < count {
                    value = tile::four(
                        qkv,
                        (row + token) * width + numbers.v + head * value_dim,
                        column,
                        value_dim,
                    );
                }
                let until = Four::new(weights.until(token, form));
                if comptime!(form.delta) {
                    value -= known[turn] * until;
                }
                new[token * SLICE_PITCH + x] = value * Four::new(learns);
                asked[turn] *= until;
            }
        }
        sync_cube();
        if comptime!(form.delta) {
            solve(&system, &mut new, &mut columns, false, form);
            sync_cube();
        }
        if comptime!(form.gives) {
            for other in 0..chunk {
                let value = new[other * SLICE_PITCH + x];
                #[unroll]
                for turn in 0..comptime!(form.turns()) {
                    let seen = scores[row_of(y, turn, form) * comptime!(form.chunk + 1) + other];
                    asked[turn] = fma(Four::new(seen), value, asked[turn]);
                }
            }
        }
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let token = y + turn * SIDE;
            if token < count {
                let first = ((row + token) * heads + head) * value_dim;
                if comptime!(form.gives) {
                    tile::put_four(out, first, column, asked[turn], value_dim);
                }
                if comptime!(form.keeps) {
                    tile::put_four(learned, first, column, new[token * SLICE_PITCH + x], value_dim);
                }
            }
        }
        keep_state(&mut own, head_weights, record, &weights, form);
        if comptime!(form.channels) {
            bring_part(head_weights, record, &mut k, Part::KeysUntil, form);
            sync_cube();
        }
        add_outer(&k, &new, &rest, &mut own, form);
        chunk_at += 1;
    }

    if comptime!(form.leaves) {
        if words[text + BEHIND] != NO_TEXT {
            let first = (words[text + BEHIND] as usize * heads + head) * state_size;
            put_state(left, first, column, &own, form);
        }
    }
}
