//! `Blockwise`: values in eight bits, each block of 256 scaled by its largest, as bitsandbytes keeps optimizer state.
//!
//! The codes are Dettmers' dynamic map (arXiv:1511.04561, arXiv:2110.02861): seven powers of ten, each with twice the
//! steps of the next smaller one.

use std::sync::OnceLock;

/// Elements that share a scale.
pub const BLOCK: usize = 256;

/// Codes and scales of a flattened tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Blockwise {
    /// One an element.
    pub codes: Vec<u8>,
    /// The largest magnitude of each block.
    pub scales: Vec<f32>,
    /// Whether the map has negative values.
    pub signed: bool,
}

impl Blockwise {
    /// As bitsandbytes begins: all bytes and scales are 0.
    #[must_use]
    pub fn zeros(elements: usize, signed: bool) -> Self {
        Self { codes: vec![0; elements], scales: vec![0.0; elements.div_ceil(BLOCK)], signed }
    }
}

/// The 256 values that codes stand for, ascending, and the code of each of the [`STEPS`] that a scaled value is rounded
/// to.
struct Map {
    values: [f32; 256],
    codes: Vec<u8>,
}

/// Even steps from -1 to 1. bitsandbytes' kernels for the CPU round a scaled value to one of them before they look for
/// the nearest code; 0 lies between two and becomes the code of the upper one.
const STEPS: usize = 1 << 16;

fn map(signed: bool) -> &'static Map {
    static MAPS: [OnceLock<Map>; 2] = [OnceLock::new(), OnceLock::new()];
    MAPS[usize::from(signed)].get_or_init(|| {
        let values = dynamic_map(signed);
        let last = (STEPS - 1) as f32;
        let codes = (0..STEPS).map(|step| nearest(&values, step as f32 / last * 2.0 - 1.0)).collect();
        Map { values, codes }
    })
}

fn dynamic_map(signed: bool) -> [f32; 256] {
    let mut values = Vec::with_capacity(256);
    for exponent in 0..7_i32 {
        let items = (1_usize << (exponent as usize + usize::from(!signed))) + 1;
        let power = 10_f64.powi(exponent - 6) as f32;
        let bounds = linspace(items);
        for pair in bounds.windows(2) {
            let mean = power * ((pair[0] + pair[1]) / 2.0);
            values.push(mean);
            if signed {
                values.push(-mean);
            }
        }
    }
    values.extend([0.0, 1.0]);
    values.sort_by(f32::total_cmp);
    values.try_into().expect("invariant: 254 means and two ends")
}

/// `torch.linspace(0.1, 1, steps)` in f32: from both ends to the middle, each value rounded once.
fn linspace(steps: usize) -> Vec<f32> {
    let (start, end) = (0.1_f32, 1.0_f32);
    let step = (end - start) / (steps - 1) as f32;
    let at = |i: usize| {
        if i < steps / 2 {
            step.mul_add(i as f32, start)
        } else {
            (-step).mul_add((steps - i - 1) as f32, end)
        }
    };
    (0..steps).map(at).collect()
}

/// Codes of whole blocks (the last may be short) to values.
pub fn widen(codes: &[u8], scales: &[f32], signed: bool, values: &mut [f32]) {
    let map = &map(signed).values;
    for ((codes, scale), values) in codes.chunks(BLOCK).zip(scales).zip(values.chunks_mut(BLOCK)) {
        for (value, code) in values.iter_mut().zip(codes) {
            *value = map[usize::from(*code)] * scale;
        }
    }
}

/// Values of whole blocks (the last may be short) to codes.
pub fn narrow(values: &[f32], codes: &mut [u8], scales: &mut [f32], signed: bool) {
    let map = &map(signed).codes;
    for ((codes, scale), values) in codes.chunks_mut(BLOCK).zip(scales).zip(values.chunks(BLOCK)) {
        *scale = values.iter().fold(0.0, |most, v| v.abs().max(most));
        if *scale == 0.0 {
            codes.fill(0);
            continue;
        }
        let share = 1.0 / *scale;
        for (code, value) in codes.iter_mut().zip(values) {
            let step = ((value * share).clamp(-1.0, 1.0) + 1.0) * 0.5 * (STEPS - 1) as f32 + 0.5;
            *code = map[step as usize];
        }
    }
}

/// The code whose value is nearest; of two that are as near the smaller.
fn nearest(map: &[f32; 256], value: f32) -> u8 {
    let above = map.partition_point(|&known| known <= value);
    let left = above.saturating_sub(1);
    let right = (left + 1).min(255);
    (if (map[right] - value).abs() < (value - map[left]).abs() { right } else { left }) as u8
}

/// What the 256 codes stand for.
#[must_use]
pub fn values(signed: bool) -> &'static [f32; 256] {
    &map(signed).values
}

/// What a code stands for.
#[must_use]
pub fn value(code: u8, signed: bool) -> f32 {
    map(signed).values[usize::from(code)]
}
