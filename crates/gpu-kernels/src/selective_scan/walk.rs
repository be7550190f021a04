//! Texts from their first chunk to their last, and back.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::Form;
use super::tile::{CHUNK, LANES, PITCH, Place, bring_channels, bring_numbers, rate, sum_of_parts};
use crate::text_plan::{BEFORE, BEHIND, CHILDREN, FIRST_CHUNK, NO_TEXT, NUMBER, TEXT_WORDS};

/// A text and 32 channels for each cube. `states` are those before chunks.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan(
    x: &[f32],
    steps: &[f32],
    log_rates: &[f32],
    b: &[f32],
    c: &[f32],
    skip: &[f32],
    words: &[u32],
    held: &[f32],
    left: &mut [f32],
    y: &mut [f32],
    states: &mut [f32],
    order: usize,
    channels: usize,
    #[comptime] form: Form,
) {
    let (each, padded) = comptime!((form.each(), form.padded()));
    let place = Place::new(channels);
    let first = place.part * each;
    let size = channels * form.states;
    let text = words[order + CUBE_POS_X as usize] as usize * TEXT_WORDS;
    let (start, end) = (words[text] as usize, words[text + 1] as usize);
    let mut chunk_at = words[text + FIRST_CHUNK] as usize;

    let mut rates = Array::<f32>::new(each);
    let mut state = Array::<f32>::new(each);
    #[unroll]
    for i in 0..each {
        let number = first + i;
        rates[i] = rate(log_rates, place.channel, number, form);
        state[i] = 0.0f32;
        if comptime!(form.begins) {
            if number < form.states {
                let from = words[text + BEFORE] as usize * size + number * channels + place.channel;
                if comptime!(form.held) {
                    state[i] = held[from];
                } else {
                    state[i] = left[from];
                }
            }
        }
    }
    let mut heard = Shared::<[f32]>::new_slice(comptime!(CHUNK * LANES));
    let mut dts = Shared::<[f32]>::new_slice(comptime!(CHUNK * LANES));
    let mut enter = Shared::<[f32]>::new_slice(comptime!(CHUNK * form.padded()));
    let mut leave = Shared::<[f32]>::new_slice(comptime!(CHUNK * form.padded()));
    let mut reads = Shared::<[f32]>::new_slice(comptime!(form.parts() * CHUNK * PITCH));
    for row in range_stepped(start, end, CHUNK) {
        let count = min(end - row, CHUNK);
        // Others still read what the chunk before brought.
        sync_cube();
        bring_channels(x, row, count, channels, &mut heard, false, form);
        bring_channels(steps, row, count, channels, &mut dts, true, form);
        bring_numbers(b, row, count, &mut enter, form);
        if comptime!(form.gives) {
            bring_numbers(c, row, count, &mut leave, form);
        }
        if comptime!(form.keeps) {
            #[unroll]
            for i in 0..each {
                if place.there && first + i < form.states {
                    states[chunk_at * size + (first + i) * channels + place.channel] = state[i];
                }
            }
        }
        sync_cube();
        for token in 0..count {
            let dt = dts[token * LANES + place.lane];
            let learned = dt * heard[token * LANES + place.lane];
            let mut read = 0.0f32;
            #[unroll]
            for i in 0..each {
                let at = token * padded + first + i;
                state[i] = fma((dt * rates[i]).exp(), state[i], learned * enter[at]);
                if comptime!(form.gives) {
                    read = fma(leave[at], state[i], read);
                }
            }
            if comptime!(form.gives) {
                reads[(place.part * CHUNK + token) * PITCH + place.lane] = read;
            }
        }
        if comptime!(form.gives) {
            sync_cube();
            let own = skip[place.channel];
            let mut token = place.part;
            while token < count {
                let read = sum_of_parts(&reads, token, place.lane, form);
                if place.there {
                    let x = heard[token * LANES + place.lane];
                    y[(row + token) * channels + place.channel] = fma(own, x, read);
                }
                token += comptime!(form.parts());
            }
        }
        chunk_at += 1;
    }
    if comptime!(form.leaves) {
        if words[text + BEHIND] != NO_TEXT {
            #[unroll]
            for i in 0..each {
                if place.there && first + i < form.states {
                    let to = words[text + BEHIND] as usize * size + (first + i) * channels + place.channel;
                    left[to] = state[i];
                }
            }
        }
    }
}

/// A text and 32 channels for each cube. `of_states` are gradients of the states behind chunks.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan_back(
    steps: &[f32],
    log_rates: &[f32],
    c: &[f32],
    words: &[u32],
    dy: &[f32],
    of_left: &mut [f32],
    of_states: &mut [f32],
    order: usize,
    children: usize,
    channels: usize,
    #[comptime] form: Form,
) {
    let (each, padded) = comptime!((form.each(), form.padded()));
    let place = Place::new(channels);
    let first = place.part * each;
    let size = channels * form.states;
    let text = words[order + CUBE_POS_X as usize] as usize * TEXT_WORDS;
    let (start, end) = (words[text] as usize, words[text + 1] as usize);

    let mut rates = Array::<f32>::new(each);
    let mut of_state = Array::<f32>::new(each);
    #[unroll]
    for i in 0..each {
        let number = first + i;
        rates[i] = rate(log_rates, place.channel, number, form);
        of_state[i] = 0.0f32;
        if comptime!(form.leaves) {
            if number < form.states {
                // Those of the texts that continue this one, in their order.
                for child in words[text + CHILDREN] as usize..words[text + CHILDREN + 1] as usize {
                    let from = words[children + child] as usize * size + number * channels + place.channel;
                    of_state[i] += of_left[from];
                }
            }
        }
    }
    let mut dts = Shared::<[f32]>::new_slice(comptime!(CHUNK * LANES));
    let mut upstream = Shared::<[f32]>::new_slice(comptime!(CHUNK * LANES));
    let mut leave = Shared::<[f32]>::new_slice(comptime!(CHUNK * form.padded()));
    let chunks = (end - start).div_ceil(CHUNK);
    for back in 0..chunks {
        let at = chunks - 1 - back;
        let row = start + at * CHUNK;
        let count = min(end - row, CHUNK);
        // Others still read what the chunk behind brought.
        sync_cube();
        bring_channels(steps, row, count, channels, &mut dts, true, form);
        bring_channels(dy, row, count, channels, &mut upstream, false, form);
        bring_numbers(c, row, count, &mut leave, form);
        let chunk = words[text + FIRST_CHUNK] as usize + at;
        #[unroll]
        for i in 0..each {
            if place.there && first + i < form.states {
                of_states[chunk * size + (first + i) * channels + place.channel] = of_state[i];
            }
        }
        sync_cube();
        for behind in 0..count {
            let token = count - 1 - behind;
            let dt = dts[token * LANES + place.lane];
            let d = upstream[token * LANES + place.lane];
            #[unroll]
            for i in 0..each {
                let of_read = fma(leave[token * padded + first + i], d, of_state[i]);
                of_state[i] = of_read * (dt * rates[i]).exp();
            }
        }
    }
    if comptime!(form.begins) {
        #[unroll]
        for i in 0..each {
            if place.there && first + i < form.states {
                let to = words[text + NUMBER] as usize * size + (first + i) * channels + place.channel;
                of_left[to] = of_state[i];
            }
        }
    }
}
