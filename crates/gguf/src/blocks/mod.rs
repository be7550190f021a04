//! Values to blocks and back, in the bits of ggml's reference code.
//!
//! The arithmetic is single precision in a fixed order, without fused operations: what ggml's `*_ref` functions compute
//! when they are compiled for a machine without such instructions, as ggml's base library is.

mod five_k;
mod four_k;
mod groups;
mod short;
mod six_k;

use half::{bf16, f16};
use rayon::prelude::*;

use crate::TensorType;

/// Elements that are encoded as one task: a multiple of every block.
const TASK: usize = 1 << 14;

/// The bytes of values as a type stores them; `None` if they do not fill blocks, or the type is not one of `F32`, `F16`,
/// `BF16`, `Q8_0`, `Q4_0`, `Q5_0`, `Q4_K`, `Q5_K` and `Q6_K`. Quantised types take finite values only.
#[must_use]
pub fn encode(stored: TensorType, values: &[f32]) -> Option<Vec<u8>> {
    let encode: fn(&[f32], &mut [u8]) = match stored {
        TensorType::F32 => |values, bytes| put(values, bytes, f32::to_le_bytes),
        TensorType::F16 => |values, bytes| put(values, bytes, |value| f16::from_f32(value).to_le_bytes()),
        TensorType::BF16 => |values, bytes| put(values, bytes, |value| bf16::from_f32(value).to_le_bytes()),
        TensorType::Q8_0 => short::encode_q8_0,
        TensorType::Q4_0 => short::encode_q4_0,
        TensorType::Q5_0 => short::encode_q5_0,
        TensorType::Q4_K => four_k::encode,
        TensorType::Q5_K => five_k::encode,
        TensorType::Q6_K => six_k::encode,
        _ => return None,
    };
    let mut bytes = vec![0; stored.bytes(values.len())?];
    let task = stored.bytes(TASK)?;
    bytes.par_chunks_mut(task).zip(values.par_chunks(TASK)).for_each(|(bytes, values)| encode(values, bytes));
    Some(bytes)
}

/// The values of bytes as a type stores them; `None` if they are no whole blocks, or the type is none of those that
/// [`encode`] knows.
#[must_use]
pub fn decode(stored: TensorType, bytes: &[u8]) -> Option<Vec<f32>> {
    let decode: fn(&[u8], &mut [f32]) = match stored {
        TensorType::F32 => |bytes, values| take(bytes, values, f32::from_le_bytes),
        TensorType::F16 => |bytes, values| take(bytes, values, |own| f16::from_le_bytes(own).to_f32()),
        TensorType::BF16 => |bytes, values| take(bytes, values, |own| bf16::from_le_bytes(own).to_f32()),
        TensorType::Q8_0 => short::decode_q8_0,
        TensorType::Q4_0 => short::decode_q4_0,
        TensorType::Q5_0 => short::decode_q5_0,
        TensorType::Q4_K => four_k::decode,
        TensorType::Q5_K => five_k::decode,
        TensorType::Q6_K => six_k::decode,
        _ => return None,
    };
    let (block, task) = (stored.bytes(stored.block())?, stored.bytes(TASK)?);
    if !bytes.len().is_multiple_of(block) {
        return None;
    }
    let mut values = vec![0.0; bytes.len() / block * stored.block()];
    values.par_chunks_mut(TASK).zip(bytes.par_chunks(task)).for_each(|(values, bytes)| decode(bytes, values));
    Some(values)
}

fn put<const N: usize>(values: &[f32], bytes: &mut [u8], of: impl Fn(f32) -> [u8; N]) {
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<N>().0) {
        *bytes = of(*value);
    }
}

fn take<const N: usize>(bytes: &[u8], values: &mut [f32], of: impl Fn([u8; N]) -> f32) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = of(*bytes);
    }
}

/// A half at the start of bytes.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn put_half(bytes: &mut [u8], at: usize, value: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The nearest whole number, halves to even, of what is smaller than 2^22: by the bits that adding 1.5 * 2^23 leaves.
fn nearest(value: f32) -> i32 {
    let bits = (value + 12_582_912.0).to_bits();
    (bits & 0x007f_ffff) as i32 - 0x0040_0000
}
