//! Blocks of 32 elements with one scale.

use super::{half_at, put_half};

/// Elements of a block.
const BLOCK: usize = 32;

/// Of a scale its inverse, and 0 of 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The element of the largest magnitude, the first of several.
fn extreme(values: &[f32]) -> f32 {
    let mut most = 0.0_f32;
    for &value in values {
        if most.abs() < value.abs() {
            most = value;
        }
    }
    most
}

pub(super) fn encode_q8_0(values: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in values.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<34>().0) {
        let scale = extreme(values).abs() / 127.0;
        let by = inverse(scale);
        put_half(bytes, 0, scale);
        for (value, byte) in values.iter().zip(&mut bytes[2..]) {
            *byte = (value * by).round() as i8 as u8;
        }
    }
}

pub(super) fn decode_q8_0(bytes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(bytes.as_chunks::<34>().0) {
        let scale = half_at(bytes, 0);
        for (value, &byte) in values.iter_mut().zip(&bytes[2..]) {
            *value = f32::from(byte as i8) * scale;
        }
    }
}

/// Codes of a block of `2 * zero` steps, whose extreme element is at the lowest.
fn codes(values: &[f32; BLOCK], zero: f32) -> (f32, [u8; BLOCK]) {
    let scale = extreme(values) / -zero;
    let by = inverse(scale);
    let most = (2.0 * zero) as i8 - 1;
    (scale, values.map(|value| most.min((value * by + (zero + 0.5)) as i8) as u8))
}

pub(super) fn encode_q4_0(values: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in values.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<18>().0) {
        let (scale, codes) = codes(values, 8.0);
        put_half(bytes, 0, scale);
        for at in 0..BLOCK / 2 {
            bytes[2 + at] = codes[at] | codes[at + BLOCK / 2] << 4;
        }
    }
}

pub(super) fn decode_q4_0(bytes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(bytes.as_chunks::<18>().0) {
        let scale = half_at(bytes, 0);
        for at in 0..BLOCK / 2 {
            values[at] = (f32::from(bytes[2 + at] & 15) - 8.0) * scale;
            values[at + BLOCK / 2] = (f32::from(bytes[2 + at] >> 4) - 8.0) * scale;
        }
    }
}

pub(super) fn encode_q5_0(values: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in values.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<22>().0) {
        let (scale, codes) = codes(values, 16.0);
        put_half(bytes, 0, scale);
        let mut fifth = 0_u32;
        for at in 0..BLOCK / 2 {
            let (low, high) = (codes[at], codes[at + BLOCK / 2]);
            bytes[6 + at] = low & 15 | (high & 15) << 4;
            fifth |= u32::from(low >> 4) << at | u32::from(high >> 4) << (at + BLOCK / 2);
        }
        bytes[2..6].copy_from_slice(&fifth.to_le_bytes());
    }
}

pub(super) fn decode_q5_0(bytes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(bytes.as_chunks::<22>().0) {
        let scale = half_at(bytes, 0);
        let fifth = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        for at in 0..BLOCK / 2 {
            let of = |code: u8, at: usize| f32::from(code | ((fifth >> at & 1) as u8) << 4) - 16.0;
            values[at] = of(bytes[6 + at] & 15, at) * scale;
            values[at + BLOCK / 2] = of(bytes[6 + at] >> 4, at + BLOCK / 2) * scale;
        }
    }
}
