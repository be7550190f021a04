//! Values as PyTorch draws them on the CPU: of parameters that never train, which all modules share.

use std::ops::Range;

use burnish_core::Dtype;
use burnish_weight_files::HostTensor;

use crate::mersenne_twister::Mt19937;

/// What is drawn, after what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// PyTorch's seed.
    pub seed: u64,
    /// How many are drawn before.
    pub skip: usize,
    /// The distribution.
    pub law: DrawnLaw,
}

/// A distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DrawnLaw {
    /// Uniform in `(-bound, bound)`.
    Uniform {
        /// The bound.
        bound: f32,
    },
    /// The same in bfloat16, over its standard deviation: bases `[rows, count, columns]`, drawn one after another.
    Bases {
        /// The bound.
        bound: f32,
        /// The sides.
        shape: [usize; 3],
    },
    /// -1 and 1 with so large a probability each, 0 otherwise, over its standard deviation.
    Ternary {
        /// The probability of one tail.
        tail: f64,
        /// The number of elements.
        elements: usize,
    },
}

/// Uniform in [0, 1): 24 bits of each word, as a float has.
fn unit(word: u32) -> f32 {
    (word & 0x00ff_ffff) as f32 / 16_777_216.0
}

/// Rounded once, as PyTorch's compiler does.
fn between(unit: f32, bound: f32) -> f32 {
    unit.mul_add(bound + bound, -bound)
}

/// Rounded to bfloat16.
fn bf16(values: &[f32]) -> Vec<f32> {
    HostTensor::from_f32(values, &[values.len()], Dtype::Bf16)
        .map_or_else(|_| values.to_vec(), |t| t.to_f32())
}

/// PyTorch's `std`.
fn deviation(values: &[f32]) -> f32 {
    let count = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let squares: f64 = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
    (squares / (count - 1.0)).sqrt() as f32
}

impl Drawn {
    /// The values at `range`.
    pub(super) fn values(self, range: Range<usize>) -> Vec<f32> {
        let mut drawn = Mt19937::new(self.seed);
        let mut skip = |count: usize| {
            for _ in 0..count {
                let _ = drawn.next();
            }
        };
        match self.law {
            DrawnLaw::Uniform { bound } => {
                skip(self.skip + range.start);
                range.map(|_| between(unit(drawn.next()), bound)).collect()
            }
            DrawnLaw::Bases { bound, shape: [rows, count, columns] } => {
                skip(self.skip);
                let raw: Vec<f32> =
                    (0..rows * count * columns).map(|_| between(unit(drawn.next()), bound)).collect();
                let mut rounded = bf16(&raw);
                // What is rounded to the upper end, which is none of the interval's, PyTorch makes the lower one.
                let end = bf16(&[bound])[0];
                rounded.iter_mut().filter(|x| **x == end).for_each(|x| *x = -end);
                let by = bf16(&[deviation(&rounded)])[0];
                rounded.iter_mut().for_each(|x| *x /= by);
                let scaled = bf16(&rounded);
                let at = |i: usize| {
                    let (row, base, column) = (i / (count * columns), i / columns % count, i % columns);
                    scaled[(base * rows + row) * columns + column]
                };
                range.map(at).collect()
            }
            DrawnLaw::Ternary { tail, elements } => {
                skip(self.skip);
                let (low, high) = (tail as f32, (1.0 - tail) as f32);
                let sign = |x: f32| f32::from(i8::from(x > high) - i8::from(x < low));
                let signs: Vec<f32> = (0..elements).map(|_| sign(unit(drawn.next()))).collect();
                let by = deviation(&signs);
                signs[range].iter().map(|x| x / by).collect()
            }
        }
    }
}
