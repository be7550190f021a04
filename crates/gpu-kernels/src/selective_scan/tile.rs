//! A chunk's tokens in a cube's shared memory.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::Form;
use crate::head_weights::softplus;

/// Channels of a cube, neighbours in memory.
pub(super) const LANES: usize = 32;
/// Units of a channel at the most.
pub(super) const PARTS: usize = 4;
/// Tokens of a chunk.
pub(super) const CHUNK: usize = 16;
/// Where what channels have for a token begins, from the one before: no two tokens' begin in one bank.
pub(super) const PITCH: usize = LANES + 1;

/// A unit's channel.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Place {
    /// Which of the cube's channels.
    pub(super) lane: usize,
    /// Which of the channel's units.
    pub(super) part: usize,
    /// The channel, or the last one where there is none.
    pub(super) channel: usize,
    /// Whether there is one.
    pub(super) there: bool,
}

#[cube]
impl Place {
    pub(super) fn new(channels: usize) -> Place {
        let unit = UNIT_POS as usize;
        let channel = CUBE_POS_Y as usize * LANES + unit % LANES;
        Place {
            lane: unit % LANES,
            part: unit / LANES,
            channel: min(channel, channels - 1),
            there: channel < channels,
        }
    }
}

/// How fast a number of a channel's state is forgotten, below zero; zero of one that is nobody's.
#[cube]
pub(super) fn rate(log_rates: &[f32], channel: usize, number: usize, #[comptime] form: Form) -> f32 {
    let mut rate = 0.0f32;
    if number < form.states {
        rate = -(log_rates[channel * form.states + number].exp());
    }
    rate
}

/// `count` rows of numbers of states, zeros behind them and where numbers are nobody's.
#[cube]
pub(super) fn bring_numbers(
    from: &[f32],
    row: usize,
    count: usize,
    to: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let padded = comptime!(form.padded());
    let mut i = UNIT_POS as usize;
    while i < comptime!(CHUNK * form.padded()) {
        let (token, number) = (i / padded, i % padded);
        let mut value = 0.0f32;
        if token < count && number < form.states {
            value = from[(row + token) * form.states + number];
        }
        to[i] = value;
        i += comptime!(form.units());
    }
}

/// `count` rows of the cube's channels, or their softplus, zeros behind them and where there are no channels.
#[cube]
pub(super) fn bring_channels(
    from: &[f32],
    row: usize,
    count: usize,
    channels: usize,
    to: &mut Shared<[f32]>,
    #[comptime] soft: bool,
    #[comptime] form: Form,
) {
    let place = Place::new(channels);
    let mut token = place.part;
    while token < CHUNK {
        let mut value = 0.0f32;
        if token < count && place.there {
            value = from[(row + token) * channels + place.channel];
            if comptime!(soft) {
                value = softplus(value);
            }
        }
        to[token * LANES + place.lane] = value;
        token += comptime!(form.parts());
    }
}

/// The sum of what a channel's units have for a token.
#[cube]
pub(super) fn sum_of_parts(shared: &Shared<[f32]>, token: usize, lane: usize, #[comptime] form: Form) -> f32 {
    let mut sum = shared[token * PITCH + lane];
    #[unroll]
    for part in 1..comptime!(form.parts()) {
        sum += shared[(comptime!(part * CHUNK) + token) * PITCH + lane];
    }
    sum
}
