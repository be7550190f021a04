//! Matrices of eight-bit floats with a scale for each block, read as bfloat16.
//!
//! `NAME` is `F8_E4M3`, `NAME_scale_inv` beside it has what its blocks are multiplied by: DeepSeek-V3's layout, which
//! Transformers calls fine-grained FP8. Products are computed in f32 and rounded once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use half::bf16;

use crate::header::Entry;
use crate::{HostTensor, WeightFileError};

/// How a header names the dtype of such a matrix.
pub(crate) const E4M3: &str = "F8_E4M3";
/// What the name of a matrix' scales ends with.
const SCALES: &str = "_scale_inv";
/// Scales of what a matrix is multiplied with, which burnish does not round.
const ACTIVATIONS: &str = "activation_scale";

/// The matrices of a folder that have scales, by name, and those scales.
#[derive(Debug, Default)]
pub(crate) struct BlockScaled(BTreeMap<String, Scales>);

#[derive(Debug)]
struct Scales {
    values: Vec<f32>,
    /// Scales along the last two dims, and elements of a block along them.
    grid: [usize; 2],
    block: [usize; 2],
}

/// Whether a tensor is read with another one, or not at all.
pub(crate) fn is_beside(name: &str) -> bool {
    name.ends_with(SCALES) || name.ends_with(ACTIVATIONS)
}

/// The name of the scales of a matrix.
pub(crate) fn scales_of(name: &str) -> String {
    format!("{name}{SCALES}")
}

impl BlockScaled {
    /// Takes up a matrix of `shape` whose blocks have `block` elements along its last two dims; without blocks it has one
    /// scale.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        shape: &[usize],
        block: Option<[usize; 2]>,
        scales: &HostTensor,
    ) -> Result<(), WeightFileError> {
        let wrong = |expected: Vec<usize>| WeightFileError::BlockScales {
            tensor: scales_of(name),
            got: scales.shape.clone(),
            expected,
        };
        let [outer @ .., rows, columns] = shape else { return Err(wrong(Vec::new())) };
        let block = block.unwrap_or([(*rows).max(1), (*columns).max(1)]);
        let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let expected: Vec<usize> = outer.iter().copied().chain(grid).collect();
        let count: usize = expected.iter().product();
        let single = count == 1 && scales.shape.iter().product::<usize>() == 1;
        if scales.shape != expected && !single {
            return Err(wrong(expected));
        }
        self.0.insert(name.to_owned(), Scales { values: scales.to_f32(), grid, block });
        Ok(())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// What `bytes`, which are `ranges` of the tensor along each dim, stand for.
    pub(crate) fn widen(&self, name: &str, entry: &Entry, ranges: &[Range<usize>], bytes: &[u8]) -> Vec<u8> {
        let Scales { values, grid, block } = &self.0[name];
        let [outer @ .., rows, columns] = ranges else { return Vec::new() };
        let mut out = Vec::with_capacity(2 * bytes.len());
        let mut lines = bytes.chunks_exact(columns.len().max(1));
        // Every index of the dims before the matrix.
        let matrices: usize = outer.iter().map(Range::len).product();
        for at in 0..matrices {
            let (mut left, mut matrix, mut stride) = (at, 0, 1);
            for (dim, range) in outer.iter().enumerate().rev() {
                matrix += (range.start + left % range.len()) * stride;
                left /= range.len();
                stride *= entry.shape[dim];
            }
            for (row, line) in rows.clone().zip(&mut lines) {
                let scales = &values[(matrix * grid[0] + row / block[0]) * grid[1]..][..grid[1]];
                for (column, &code) in columns.clone().zip(line) {
                    let value = decode(code) * scales[column / block[1]];
                    out.extend(bf16::from_f32(value).to_le_bytes());
                }
            }
        }
        out
    }
}

/// The number of a code: a sign, four bits of exponent with a bias of 7, three of mantissa; no infinities.
fn decode(code: u8) -> f32 {
    static ALL: OnceLock<[f32; 256]> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        std::array::from_fn(|code| {
            let (exponent, mantissa) = ((code >> 3 & 15) as i32, (code & 7) as f32);
            let size = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => mantissa / 8.0 * 2.0_f32.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
            };
            if code >= 128 { -size } else { size }
        })
    });
    all[code as usize]
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn codes_are_the_format_s() {
        for (code, value) in [(0x00, 0.0), (0x38, 1.0), (0x7e, 448.0), (0x01, 1.0 / 512.0), (0xb9, -1.125)] {
            assert_eq!(decode(code), value, "{code:#x}");
        }
        assert!(decode(0x7f).is_nan() && decode(0xff).is_nan());
        assert!(decode(0x80) == 0.0 && decode(0x80).is_sign_negative());
    }
}
