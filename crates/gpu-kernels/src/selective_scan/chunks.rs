//! The gradients of all chunks at once.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::Form;
use super::tile::{CHUNK, LANES, PITCH, Place, bring_channels, bring_numbers, rate, sum_of_parts};
use crate::head_weights::sigmoid;

/// A chunk and 32 channels for each cube. `states` are those before chunks and become the gradients of the rates' logarithms;
/// those of `b` and `c` are of each 32 channels, that of `skip` of each chunk.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan_chunks(
    x: &[f32],
    steps: &[f32],
    log_rates: &[f32],
    b: &[f32],
    c: &[f32],
    skip: &[f32],
    words: &[u32],
    dy: &[f32],
    of_states: &[f32],
    states: &mut [f32],
    of_x: &mut [f32],
    of_steps: &mut [f32],
    of_b: &mut [f32],
    of_c: &mut [f32],
    of_skip: &mut [f32],
    chunk_words: usize,
    tokens: usize,
    channels: usize,
    #[comptime] form: Form,
) {
    let (each, padded) = comptime!((form.each(), form.padded()));
    let place = Place::new(channels);
    let chunk = CUBE_POS_X as usize;
    let row = words[chunk_words + 2 * chunk] as usize;
    let count = words[chunk_words + 2 * chunk + 1] as usize;
    let size = channels * form.states;
    // Where the gradients of numbers of this cube's channels are.
    let of_block = CUBE_POS_Y as usize * tokens + row;

    let mut enter = Shared::<[f32]>::new_slice(comptime!(CHUNK * form.padded()));
    let mut leave = Shared::<[f32]>::new_slice(comptime!(CHUNK * form.padded()));
    let mut some = Shared::<[f32]>::new_slice(comptime!(CHUNK * LANES));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(form.parts() * CHUNK * PITCH));
    let mut heard = Array::<f32>::new(CHUNK);
    let mut dts = Array::<f32>::new(CHUNK);
    let mut upstream = Array::<f32>::new(CHUNK);
    bring_numbers(b, row, count, &mut enter, form);
    bring_numbers(c, row, count, &mut leave, form);
    bring_channels(steps, row, count, channels, &mut some, true, form);
    sync_cube();
    #[unroll]
    for token in 0..CHUNK {
        dts[token] = some[comptime!(token * LANES) + place.lane];
        heard[token] = 0.0f32;
        upstream[token] = 0.0f32;
        if token < count && place.there {
            let at = (row + token) * channels + place.channel;
            heard[token] = x[at];
            upstream[token] = dy[at];
        }
    }

    let mut of_learned = Array::<f32>::new(CHUNK);
    let mut of_kept = Array::<f32>::new(CHUNK);
    #[unroll]
    for token in 0..CHUNK {
        of_learned[token] = 0.0f32;
        of_kept[token] = 0.0f32;
    }
    let mut keeps = Array::<f32>::new(CHUNK);
    // The states before the tokens, and the one behind the chunk.
    let mut before = Array::<f32>::new(comptime!(CHUNK + 1));
    let mut values = Array::<f32>::new(CHUNK);
    for i in 0..each {
        let number = place.part * each + i;
        let own = place.there && number < form.states;
        let at = chunk * size + number * channels + place.channel;
        let rate = rate(log_rates, place.channel, number, form);
        let mut state = 0.0f32;
        let mut of_state = 0.0f32;
        if own {
            state = states[at];
            of_state = of_states[at];
        }
        #[unroll]
        for token in 0..CHUNK {
            before[token] = state;
            keeps[token] = (dts[token] * rate).exp();
            let learned = dts[token] * heard[token];
            state = fma(keeps[token], state, learned * enter[comptime!(token * form.padded()) + number]);
        }
        before[CHUNK] = state;
        let mut of_rate = 0.0f32;
        #[unroll]
        for back in 0..CHUNK {
            let token = comptime!(CHUNK - 1 - back);
            let at = token * padded + number;
            of_state = fma(leave[at], upstream[token], of_state);
            values[token] = of_state * dts[token] * heard[token];
            of_learned[token] = fma(of_state, enter[at], of_learned[token]);
            of_state *= keeps[token];
            let forgotten = of_state * before[token];
            of_kept[token] = fma(forgotten, rate, of_kept[token]);
            of_rate = fma(forgotten, dts[token], of_rate);
        }
        if own {
            // A rate is minus the exponential of its logarithm, and so is its derivative.
            states[at] = of_rate * rate;
        }
        sum_lanes(&values, &mut shared, of_b, of_block, count, i, form);
        #[unroll]
        for token in 0..CHUNK {
            values[token] = upstream[token] * before[comptime!(token + 1)];
        }
        sum_lanes(&values, &mut shared, of_c, of_block, count, i, form);
    }

    // What units of a channel have, for each token.
    let own = (place.part * CHUNK) * PITCH + place.lane;
    sync_cube();
    #[unroll]
    for token in 0..CHUNK {
        shared[own + comptime!(token * PITCH)] = fma(of_learned[token], heard[token], of_kept[token]);
    }
    sync_cube();
    let mut token = place.part;
    while token < count {
        let of_dt = sum_of_parts(&shared, token, place.lane, form);
        if place.there {
            let at = (row + token) * channels + place.channel;
            of_steps[at] = of_dt * sigmoid(steps[at]);
        }
        token += comptime!(form.parts());
    }
    sync_cube();
    #[unroll]
    for token in 0..CHUNK {
        shared[own + comptime!(token * PITCH)] = of_learned[token] * dts[token];
    }
    sync_cube();
    let mut token = place.part;
    while token < count {
        let of_learned = sum_of_parts(&shared, token, place.lane, form);
        if place.there {
            let at = (row + token) * channels + place.channel;
            of_x[at] = fma(skip[place.channel], dy[at], of_learned);
        }
        token += comptime!(form.parts());
    }
    if place.part == 0 && place.there {
        let mut sum = 0.0f32;
        #[unroll]
        for token in 0..CHUNK {
            sum = fma(upstream[token], heard[token], sum);
        }
        of_skip[chunk * channels + place.channel] = sum;
    }
}

/// Sums what units have for each token over the cube's channels, from the first to the last, to number `i` of each part.
#[cube]
fn sum_lanes(
    values: &Array<f32>,
    shared: &mut Shared<[f32]>,
    sums: &mut [f32],
    of_block: usize,
    count: usize,
    i: usize,
    #[comptime] form: Form,
) {
    let unit = UNIT_POS as usize;
    let own = (unit / LANES * CHUNK) * PITCH + unit % LANES;
    // Others still read what was put there before.
    sync_cube();
    #[unroll]
    for token in 0..CHUNK {
        shared[own + comptime!(token * PITCH)] = values[token];
    }
    sync_cube();
    let mut line = unit;
    while line < comptime!(form.parts() * CHUNK) {
        let (part, token) = (line / CHUNK, line % CHUNK);
        let number = part * comptime!(form.each()) + i;
        if token < count && number < form.states {
            let mut sum = shared[line * PITCH];
            for lane in 1..LANES {
                sum += shared[line * PITCH + lane];
            }
            sums[(of_block + token) * form.states + number] = sum;
        }
        line += comptime!(form.units());
    }
}
