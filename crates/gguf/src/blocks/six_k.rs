//! `Q6_K`.

use super::{half_at, nearest, put_half};

const BLOCK: usize = 256;
const BYTES: usize = 210;
/// Elements with a scale of their own.
const GROUP: usize = 16;
const GROUPS: usize = BLOCK / GROUP;
/// Where the upper two bits, the scales and the block's scale lie.
const PARTS: (usize, usize, usize) = (128, 192, 208);
/// Steps below zero.
const ZERO: i32 = 32;
/// What counts as nothing.
const NOTHING: f32 = 1e-15;

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in values.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<BYTES>().0) {
        bytes.fill(0);
        let mut codes = [0_u8; BLOCK];
        let mut scales = [0.0_f32; GROUPS];
        let groups = values.as_chunks::<GROUP>().0;
        let mut most = 0.0_f32;
        for (at, group) in groups.iter().enumerate() {
            scales[at] = fit(group, &mut codes[at * GROUP..][..GROUP]);
            if scales[at].abs() > most.abs() {
                most = scales[at];
            }
        }
        if most.abs() < NOTHING {
            continue;
        }
        let by = -128.0 / most;
        put_half(bytes, PARTS.2, 1.0 / by);
        let whole = half_at(bytes, PARTS.2);
        for (at, group) in groups.iter().enumerate() {
            let own = 127.min(nearest(by * scales[at])) as i8;
            bytes[PARTS.1 + at] = own as u8;
            let scale = whole * f32::from(own);
            if scale == 0.0 {
                continue;
            }
            for (code, value) in codes[at * GROUP..].iter_mut().zip(group) {
                *code = (nearest(value / scale).clamp(-ZERO, ZERO - 1) + ZERO) as u8;
            }
        }
        for half in 0..2 {
            let codes = &codes[half * 128..];
            for at in 0..32 {
                let [a, b, c, d] = [0, 32, 64, 96].map(|quarter| codes[at + quarter]);
                bytes[half * 64 + at] = a & 15 | (c & 15) << 4;
                bytes[half * 64 + 32 + at] = b & 15 | (d & 15) << 4;
                bytes[PARTS.0 + half * 32 + at] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
            }
        }
    }
}

/// The scale of a group whose squares of errors, weighted by the squares of its elements, are the least of those tried, and
/// its codes.
fn fit(values: &[f32; GROUP], codes: &mut [u8]) -> f32 {
    let mut most = 0.0_f32;
    for &value in values {
        if value.abs() > most.abs() {
            most = value;
        }
    }
    if most.abs() < NOTHING {
        codes.fill(0);
        return 0.0;
    }
    let code = |value: f32, by: f32| nearest(by * value).clamp(-ZERO, ZERO - 1);
    let sums = |by: f32| {
        let (mut products, mut squares) = (0.0_f32, 0.0_f32);
        for &value in values {
            let (code, weight) = (code(value, by) as f32, value * value);
            products += weight * value * code;
            squares += weight * code * code;
        }
        (products, squares)
    };
    let mut best_by = -ZERO as f32 / most;
    let (products, squares) = sums(best_by);
    let mut scale = if squares == 0.0 { 0.0 } else { products / squares };
    let mut best = scale * products;
    for step in (-9..=9).filter(|&step| step != 0) {
        let by = -(ZERO as f32 + 0.1 * step as f32) / most;
        let (products, squares) = sums(by);
        if squares > 0.0 && products * products > best * squares {
            scale = products / squares;
            (best, best_by) = (scale * products, by);
        }
    }
    for (own, &value) in codes.iter_mut().zip(values) {
        *own = (code(value, best_by) + ZERO) as u8;
    }
    scale
}

pub(super) fn decode(bytes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.as_chunks_mut::<BLOCK>().0.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        let whole = half_at(bytes, PARTS.2);
        for (at, value) in values.iter_mut().enumerate() {
            let (half, quarter, place) = (at / 128, at % 128 / 32, at % 32);
            let low = bytes[half * 64 + quarter % 2 * 32 + place] >> (quarter / 2 * 4) & 15;
            let high = bytes[PARTS.0 + half * 32 + place] >> (quarter * 2) & 3;
            let scale = whole * f32::from(bytes[PARTS.1 + at / GROUP] as i8);
            *value = scale * (f32::from(low | high << 4) - ZERO as f32);
        }
    }
}
