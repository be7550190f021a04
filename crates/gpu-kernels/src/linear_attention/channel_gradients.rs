//! The gradients of a chunk's queries, keys, values, decays of channels and betas, from the states and gradients that two walks left.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::tile::{
    self, BESIDE, FOURS, Four, SIDE, SLICE, SLICE_PITCH, UNITS, add_dots, add_product, bring_slice,
};
use super::{Form, Numbers};

/// A chunk and a head for each cube. A channel's decay lies between all pairs of tokens around it, so a unit has a channel at a
/// time.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_channels(
    qkv: &[f32],
    decays: &[f32],
    betas: &[f32],
    words: &[u32],
    dy: &[f32],
    states: &[f32],
    learned: &[f32],
    of_states: &[f32],
    of_learned: &[f32],
    of_qkv: &mut [f32],
    of_decays: &mut [f32],
    of_betas: &mut [f32],
    numbers: Numbers,
    #[comptime] form: Form,
) {
    let (chunk, key_dim, value_dim) = comptime!((form.chunk, form.key_dim, form.value_dim));
    let (chunk_at, head) = (CUBE_POS_X as usize, CUBE_POS_Y as usize);
    let row = words[numbers.order + 2 * chunk_at] as usize;
    let count = words[numbers.order + 2 * chunk_at + 1] as usize;
    let unit = UNIT_POS as usize;
    let (x, y) = (unit % BESIDE, unit / BESIDE);
    let (heads, width) = (numbers.heads, numbers.width);
    let slices = comptime!(value_dim.div_ceil(SLICE));
    let (turns, others) = comptime!((form.turns(), form.chunk / BESIDE));
    let (across, padded) = comptime!((form.chunk + 1, 4 * form.fours()));

    let mut upstream = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut new = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    let mut of_new = Shared::<[Four]>::new_slice(comptime!(form.chunk * SLICE_PITCH));
    // A state by its columns, and the gradient of the one behind.
    let mut state = Shared::<[Four]>::new_slice(comptime!(SLICE * SLICE_PITCH));
    let mut of_state = Shared::<[Four]>::new_slice(comptime!(SLICE * SLICE_PITCH));
    // Gradients of products of queries and keys, and of keys with each other, with what is kept between them.
    let mut of_scores = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    let mut of_system = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.chunk + 1)));
    // By tokens and channels: what upstream gradients make of the state, what those of what is learned make of it, and what is
    // learned of the gradient of the one behind; of each channel the product of both states.
    let mut of_queries = Shared::<[f32]>::new_slice(comptime!(form.chunk * 4 * form.fours()));
    let mut of_asked = Shared::<[f32]>::new_slice(comptime!(form.chunk * 4 * form.fours()));
    let mut of_keys = Shared::<[f32]>::new_slice(comptime!(form.chunk * 4 * form.fours()));
    let mut both = Shared::<[f32]>::new_slice(comptime!(4 * form.fours()));
    let mut parts = Shared::<[Four]>::new_slice(UNITS);
    let mut beta = Shared::<[f32]>::new_slice(comptime!(form.chunk));
    let mut of_values = Shared::<[f32]>::new_slice(comptime!(form.chunk * BESIDE));

    if unit < chunk {
        let mut own = 0.0f32;
        if unit < count {
            own = betas[(row + unit) * heads + head];
        }
        beta[unit] = own;
    }
    let of_row = (row * heads + head) * value_dim;
    let stride = heads * value_dim;
    let mut of_seen = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
    let mut of_below = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
    #[unroll]
    for i in 0..comptime!(form.turns() * form.chunk / BESIDE) {
        of_seen[i] = 0.0f32;
        of_below[i] = 0.0f32;
    }
    let mut by_value = Array::<f32>::new(turns);
    #[unroll]
    for turn in 0..turns {
        by_value[turn] = 0.0f32;
    }
    #[unroll]
    for slice in 0..slices {
        let column = comptime!(slice * SLICE);
        if comptime!(slice > 0) {
            sync_cube();
        }
        bring_slice(dy, of_row, stride, count, column, &mut upstream, form);
        bring_slice(learned, of_row, stride, count, column, &mut new, form);
        bring_slice(of_learned, of_row, stride, count, column, &mut of_new, form);
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
                let by = gradient * tile::four(qkv, first, column + x * 4, value_dim);
                #[unroll]
                for i in 0..4usize {
                    by_value[turn] += by.extract(i);
                }
                tile::put_four(of_qkv, first, column + x * 4, gradient * Four::new(beta[token]), value_dim);
            }
        }
    }
    #[unroll]
    for turn in 0..turns {
        let token = y + turn * SIDE;
        if token < chunk {
            of_values[token * BESIDE + x] = by_value[turn];
            #[unroll]
            for j in 0..others {
                let place = token * across + x + j * BESIDE;
                of_scores[place] = of_seen[turn * others + j];
                // What is solved goes down by what is known already.
                of_system[place] = -of_below[turn * others + j];
            }
        }
    }

    let first = (head * numbers.chunks + chunk_at) * comptime!(key_dim * value_dim);
    for block in 0..comptime!(form.fours().div_ceil(FOURS)) {
        let mut by_upstream = Array::<Four>::new(turns);
        let mut by_of_new = Array::<Four>::new(turns);
        let mut by_new = Array::<Four>::new(turns);
        #[unroll]
        for turn in 0..turns {
            by_upstream[turn] = Four::new(0.0);
            by_of_new[turn] = Four::new(0.0);
            by_new[turn] = Four::new(0.0);
        }
        let mut of_both = Four::new(0.0);
        #[unroll]
        for slice in 0..slices {
            let column = comptime!(slice * SLICE);
            // Others still read what is there.
            sync_cube();
            if comptime!(slices > 1) {
                bring_slice(dy, of_row, stride, count, column, &mut upstream, form);
                bring_slice(learned, of_row, stride, count, column, &mut new, form);
                bring_slice(of_learned, of_row, stride, count, column, &mut of_new, form);
            }
            let value = unit % SLICE;
            #[unroll]
            for turn in 0..comptime!(FOURS * SLICE / UNITS) {
                let four = unit / SLICE + turn * comptime!(UNITS / SLICE);
                let (to, key_four) = (value * SLICE_PITCH + four, block * FOURS + four);
                state[to] = tile::key_four(states, first, key_four, column + value, form);
                of_state[to] = tile::key_four(of_states, first, key_four, column + value, form);
            }
            sync_cube();
            add_product(&upstream, &state, &mut by_upstream, FOURS, SLICE_PITCH, SLICE_PITCH, form);
            if comptime!(form.delta) {
                add_product(&of_new, &state, &mut by_of_new, FOURS, SLICE_PITCH, SLICE_PITCH, form);
            }
            add_product(&new, &of_state, &mut by_new, FOURS, SLICE_PITCH, SLICE_PITCH, form);
            #[unroll]
            for turn in 0..comptime!(SLICE / SIDE) {
                let at = (y + turn * SIDE) * SLICE_PITCH + x;
                of_both = fma(state[at], of_state[at], of_both);
            }
        }
        let four = block * FOURS + x;
        if four < comptime!(form.fours()) {
            #[unroll]
            for turn in 0..turns {
                let token = y + turn * SIDE;
                if token < chunk {
                    #[unroll]
                    for i in 0..4usize {
                        let place = token * padded + four * 4 + i;
                        of_queries[place] = by_upstream[turn].extract(i);
                        of_asked[place] = -by_of_new[turn].extract(i);
                        of_keys[place] = by_new[turn].extract(i);
                    }
                }
            }
        }
        parts[unit] = of_both;
        sync_cube();
        if unit < FOURS && block * FOURS + unit < comptime!(form.fours()) {
            let mut sum = parts[unit];
            for other in 1..SIDE {
                sum += parts[other * BESIDE + unit];
            }
            #[unroll]
            for i in 0..4usize {
                both[(block * FOURS + unit) * 4 + i] = sum.extract(i);
            }
        }
    }
    sync_cube();

    let mut channel = unit;
    while channel < key_dim {
        of_channel(
            qkv,
            decays,
            &of_scores,
            &of_system,
            &beta,
            &of_queries,
            &mut of_asked,
            &of_keys,
            &both,
            of_qkv,
            of_decays,
            row,
            count,
            head,
            channel,
            &numbers,
            form,
        );
        channel += UNITS;
    }
    sync_cube();
    if unit < count {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..BESIDE {
            sum += of_values[unit * BESIDE + i];
        }
        if comptime!(form.delta) {
            for channel in 0..key_dim {
                sum += of_asked[unit * padded + channel];
            }
        }
        of_betas[(row + unit) * heads + head] = sum;
    }
}

/// A channel's gradients. What betas have of it is left in `of_asked`.
#[cube]
fn of_channel(
    qkv: &[f32],
    decays: &[f32],
    of_scores: &[f32],
    of_system: &[f32],
    beta: &[f32],
    of_queries: &[f32],
    of_asked: &mut [f32],
    of_keys: &[f32],
    both: &[f32],
    of_qkv: &mut [f32],
    of_decays: &mut [f32],
    row: usize,
    count: usize,
    head: usize,
    channel: usize,
    numbers: &Numbers,
    #[comptime] form: Form,
) {
    let (chunk, key_dim) = comptime!((form.chunk, form.key_dim));
    let of_head = head * key_dim + channel;
    let mut kept = Array::<f32>::new(chunk);
    let mut q = Array::<f32>::new(chunk);
    let mut k = Array::<f32>::new(chunk);
    let mut dq = Array::<f32>::new(chunk);
    let mut asked = Array::<f32>::new(chunk);
    let mut dk = Array::<f32>::new(chunk);
    let mut since = 1.0f32;
    #[unroll]
    for token in 0..chunk {
        kept[token] = 1.0f32;
        q[token] = 0.0f32;
        k[token] = 0.0f32;
        if token < count {
            kept[token] = decays[(row + token) * numbers.heads * key_dim + of_head].exp();
            q[token] = qkv[(row + token) * numbers.width + numbers.q + of_head];
            k[token] = qkv[(row + token) * numbers.width + numbers.k + of_head];
        }
        since *= kept[token];
        let at = comptime!(token * 4 * form.fours()) + channel;
        dq[token] = since * of_queries[at];
        asked[token] = since * of_asked[at];
    }
    // The gradient of the sum of all decays.
    let mut behind = since * both[channel];
    let mut until = 1.0f32;
    #[unroll]
    for step in 0..chunk {
        let other = comptime!(form.chunk - 1 - step);
        let mut sum = until * of_keys[comptime!(other * 4 * form.fours()) + channel];
        behind = fma(k[other], sum, behind);
        until *= kept[other];
        let mut past = 1.0f32;
        #[unroll]
        for more in 0..comptime!(step) {
            let token = comptime!(other + 1 + more);
            let pair = comptime!(token * (form.chunk + 1) + other);
            past *= kept[token];
            let key = k[other] * past;
            let seen = of_scores[pair];
            dq[token] = fma(seen, key, dq[token]);
            let mut of_key = seen * q[token];
            if comptime!(form.delta) {
                let below = of_system[pair];
                asked[token] = fma(below, key, asked[token]);
                of_key = fma(below * beta[token], k[token], of_key);
            }
            sum = fma(past, of_key, sum);
        }
        dk[other] = sum;
    }
    #[unroll]
    for step in 0..chunk {
        let token = comptime!(form.chunk - 1 - step);
        let mut of_key = 0.0f32;
        if comptime!(form.delta) {
            of_key = beta[token] * asked[token];
            of_asked[comptime!(token * 4 * form.fours()) + channel] = k[token] * asked[token];
        }
        // A token's decay is in the sums of all tokens from it on. What it has of itself knows no decay.
        behind += q[token] * dq[token] + k[token] * (of_key - dk[token]);
        if token < count {
            let own = of_scores[comptime!(token * (form.chunk + 1) + token)];
            let place = (row + token) * numbers.width + of_head;
            of_decays[(row + token) * numbers.heads * key_dim + of_head] = behind;
            of_qkv[place + numbers.q] = fma(own, k[token], dq[token]);
            of_qkv[place + numbers.k] = fma(own, q[token], dk[token] + of_key);
        }
    }
}

impl Form {
    /// Bytes of shared memory of kernels that none but those whose channels have decays run.
    pub(super) fn channel_bytes(self) -> usize {
        let slices = (3 * self.chunk + 2 * SLICE) * SLICE_PITCH * 16 + UNITS * 16;
        let pairs = 2 * self.chunk * (self.chunk + 1) * 4;
        let rows = (3 * self.chunk + 1) * 16 * self.fours();
        let gradients = slices + pairs + rows + (1 + BESIDE) * self.chunk * 4;
        gradients.max(self.decayed_bytes())
    }
}
