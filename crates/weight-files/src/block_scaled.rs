//! Matrices of eight bits an element with a scale for each block, read as the floats that they stand for.
//!
//! Products are computed in f32 and rounded once.

use std::collections::BTreeMap;
use std::ops::Range;

use burnish_core::Dtype;
use half::{bf16, f16};

use crate::header::Entry;
use crate::{HostTensor, WeightFileError, WeightFolder};

/// How the matrices of a folder that have scales lie beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleLayout {
    /// DeepSeek-V3's, which Transformers calls fine-grained FP8: a matrix `NAME` in `F8_E4M3` and scales `NAME_scale_inv` in
    /// floats or, as powers of two, in `F8_E8M0`, read as bfloat16.
    FineGrained {
        /// Rows and columns that share a scale; without them a matrix has one.
        block: Option<[usize; 2]>,
    },
    /// compressed-tensors': beside `MODULE.weight_scale` either `MODULE.weight` in `F8_E4M3` or `I8`, or four codes a word
    /// in `MODULE.weight_packed`, with `MODULE.weight_zero_point` where steps are not even to both sides. Scales are for a
    /// matrix, a row, a block or groups of a row's elements; matrices are read as what their scales are in. Codes in fewer
    /// bits stay as they are, scales in `F8_E4M3` are read as float32.
    CompressedTensors {
        /// Rows and columns that share a scale, where blocks do.
        block: Option<[usize; 2]>,
        /// What matrices with scales in float32 are read as.
        read: Dtype,
    },
}

/// How a header names eight-bit floats.
const E4M3: &str = "F8_E4M3";
/// How a header names powers of two, whose exponents are 127 too large; compressed-tensors calls them `U8`.
const E8M0: &str = "F8_E8M0";
/// What the name of a fine-grained matrix' scales ends with.
const SCALE_INV: &str = "_scale_inv";
/// Scales of what a matrix is multiplied with, which burnish does not round.
const FINE_GRAINED_ACTIVATIONS: &str = "activation_scale";
/// The same of compressed-tensors, with those of caches of keys and values.
const ACTIVATIONS: [&str; 8] = [
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
];

/// The tensors of a folder that are read with scales, by name.
#[derive(Debug, Default)]
pub(crate) struct BlockScaled(BTreeMap<String, Matrix>);

/// A matrix, or a stack of them, with its scales.
#[derive(Debug)]
pub(crate) struct Matrix {
    /// The file that it is in.
    pub(crate) file: usize,
    /// A byte an element.
    pub(crate) entry: Entry,
    pub(crate) read: Dtype,
    codes: Codes,
    scales: Vec<f32>,
    /// As many as scales, or none.
    zeros: Vec<f32>,
    /// Scales along the last two dims, and elements of a block along them.
    grid: [usize; 2],
    block: [usize; 2],
}

/// What a byte stands for.
#[derive(Clone, Copy, Debug)]
enum Codes {
    /// A sign, four bits of exponent with a bias of 7, three of mantissa; no infinities.
    E4m3,
    Signed,
    /// A signed number, 128 too large.
    Biased,
}

impl Codes {
    fn value(self, code: u8) -> f32 {
        match self {
            Self::E4m3 => e4m3(code),
            Self::Signed => f32::from(code.cast_signed()),
            Self::Biased => f32::from(code) - 128.0,
        }
    }
}

impl BlockScaled {
    pub(crate) fn get(&self, name: &str) -> Option<&Matrix> {
        self.0.get(name)
    }
}

impl Matrix {
    /// What `bytes`, which are `ranges` of the tensor along each dim, stand for.
    pub(crate) fn widen(&self, ranges: &[Range<usize>], bytes: &[u8]) -> Vec<u8> {
        let [outer @ .., rows, columns] = ranges else { return Vec::new() };
        let values: [f32; 256] = std::array::from_fn(|code| self.codes.value(code as u8));
        let mut out = Vec::with_capacity(self.read.bytes() * bytes.len());
        let mut lines = bytes.chunks_exact(columns.len().max(1));
        let mut wide = vec![0.0_f32; columns.len()];
        // Every index of the dims before the matrix.
        let matrices: usize = outer.iter().map(Range::len).product();
        for at in 0..matrices {
            let (mut left, mut matrix, mut stride) = (at, 0, 1);
            for (dim, range) in outer.iter().enumerate().rev() {
                matrix += (range.start + left % range.len()) * stride;
                left /= range.len();
                stride *= self.entry.shape[dim];
            }
            for (row, line) in rows.clone().zip(&mut lines) {
                let first = (matrix * self.grid[0] + row / self.block[0]) * self.grid[1];
                let mut column = columns.start;
                while column < columns.end {
                    let own = column / self.block[1];
                    let (scale, until) =
                        (self.scales[first + own], ((own + 1) * self.block[1]).min(columns.end));
                    let zero = self.zeros.get(first + own).copied().unwrap_or(0.0);
                    let part = column - columns.start..until - columns.start;
                    for (to, &code) in wide[part.clone()].iter_mut().zip(&line[part]) {
                        *to = (values[usize::from(code)] - zero) * scale;
                    }
                    column = until;
                }
                match self.read {
                    Dtype::Bf16 => {
                        out.extend(wide.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()))
                    }
                    Dtype::F16 => {
                        out.extend(wide.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()))
                    }
                    _ => out.extend(wide.iter().flat_map(|&value| value.to_le_bytes())),
                }
            }
        }
        out
    }
}

impl WeightFolder {
    /// Has matrices in eight bits read as the floats that their scales make of them. Scales and zero points are no tensors
    /// of their own any more, nor is what was found of activations.
    ///
    /// # Errors
    /// If scales cannot be read, or are not as many as there are blocks.
    pub fn with_scales(mut self, layout: ScaleLayout) -> Result<Self, WeightFileError> {
        let mut scaled = BlockScaled::default();
        match layout {
            ScaleLayout::FineGrained { block } => {
                for (name, scales) in self.beside("", SCALE_INV) {
                    if let Some(matrix) = self.fine_grained(&name, &scales, block)? {
                        scaled.0.insert(name, matrix);
                    }
                }
                self.places.retain(|name, _| {
                    !name.ends_with(SCALE_INV) && !name.ends_with(FINE_GRAINED_ACTIVATIONS)
                });
            }
            ScaleLayout::CompressedTensors { block, read } => {
                for (name, scales) in self.beside(".weight", ".weight_scale") {
                    if let Some(matrix) = self.compressed(&name, &scales, block, read)? {
                        for part in ["_scale", "_zero_point", "_packed", "_shape"] {
                            self.places.remove(&format!("{name}{part}"));
                        }
                        self.places.insert(name.clone(), matrix.file);
                        scaled.0.insert(name, matrix);
                    } else if let Some(matrix) = self.unscaled(&scales)? {
                        scaled.0.insert(scales, matrix);
                    }
                }
                self.places.retain(|name, _| !ACTIVATIONS.iter().any(|what| name.ends_with(what)));
            }
        }
        self.scaled = scaled;
        Ok(self)
    }

    /// Every tensor whose name ends with `scales`, behind the name of what it belongs to, which ends with `matrix`.
    fn beside(&self, matrix: &str, scales: &str) -> Vec<(String, String)> {
        let named = |name: &str| Some((format!("{}{matrix}", name.strip_suffix(scales)?), name.to_owned()));
        self.places.keys().filter_map(|name| named(name)).collect()
    }

    fn fine_grained(
        &self,
        name: &str,
        scales: &str,
        block: Option<[usize; 2]>,
    ) -> Result<Option<Matrix>, WeightFileError> {
        let Some((file, entry)) = self.stored(name).filter(|(_, entry)| entry.dtype == E4M3) else {
            return Ok(None);
        };
        let values = self.scales(scales)?;
        let wrong = |expected: Vec<usize>| wrong(scales, &values, expected);
        let [outer @ .., rows, columns] = &entry.shape[..] else { return Err(wrong(Vec::new())) };
        let block = block.unwrap_or([(*rows).max(1), (*columns).max(1)]);
        let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let expected: Vec<usize> = outer.iter().copied().chain(grid).collect();
        let single = values.elements() == 1 && expected.iter().product::<usize>() == 1;
        if values.shape != expected && !single {
            return Err(wrong(expected));
        }
        Ok(Some(Matrix {
            file,
            entry: entry.clone(),
            read: Dtype::Bf16,
            codes: Codes::E4m3,
            scales: multipliers(&values),
            zeros: Vec::new(),
            grid,
            block,
        }))
    }

    /// Scales as they lie in the file, exponents as bytes.
    fn scales(&self, name: &str) -> Result<HostTensor, WeightFileError> {
        let Some((file, entry)) = self.stored(name).filter(|(_, entry)| entry.dtype == E8M0) else {
            return self.read(name);
        };
        let mut scales = HostTensor::zeros(Dtype::U8, &entry.shape);
        self.files[file].read_bytes(entry, 0, &mut scales.bytes)?;
        Ok(scales)
    }

    fn compressed(
        &self,
        name: &str,
        scales: &str,
        block: Option<[usize; 2]>,
        read: Dtype,
    ) -> Result<Option<Matrix>, WeightFileError> {
        let (file, entry, codes) = match self.stored(name) {
            Some((file, entry)) if entry.dtype == E4M3 => (file, entry.clone(), Codes::E4m3),
            Some((file, entry)) if entry.dtype == "I8" => (file, entry.clone(), Codes::Signed),
            Some(_) => return Ok(None),
            None => match self.in_words(name)? {
                Some((file, entry)) => (file, entry, Codes::Biased),
                None => return Ok(None),
            },
        };
        let &[rows, columns] = &entry.shape[..] else { return Ok(None) };
        let values = self.scales(scales)?;
        let (grid, block) = match values.shape[..] {
            _ if values.elements() == 1 => ([1, 1], [rows.max(1), columns.max(1)]),
            [own] if own == rows => ([rows, 1], [1, columns.max(1)]),
            [own, groups] if own == rows && groups > 0 && columns.is_multiple_of(groups) => {
                ([rows, groups], [1, (columns / groups).max(1)])
            }
            _ => {
                let block = block.unwrap_or([1, columns.max(1)]);
                let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
                if values.shape != grid {
                    return Err(wrong(scales, &values, grid.to_vec()));
                }
                (grid, block)
            }
        };
        let zero_points = format!("{name}_zero_point");
        let zeros = match (codes, self.places.contains_key(&zero_points)) {
            // Floats are even to both sides.
            (Codes::E4m3, _) | (_, false) => Vec::new(),
            (Codes::Signed, true) => {
                let zeros = self.read(&zero_points)?;
                if zeros.dtype != Dtype::I8 || zeros.elements() != values.elements() {
                    return Err(wrong(&zero_points, &zeros, values.shape.clone()));
                }
                zeros.to_f32()
            }
            (Codes::Biased, true) => {
                let zeros = self.read(&zero_points)?;
                let down = grid[0].div_ceil(4);
                if zeros.dtype != Dtype::I32 || zeros.shape != [down, grid[1]] {
                    return Err(wrong(&zero_points, &zeros, vec![down, grid[1]]));
                }
                let words = zeros.bytes.chunks_exact(4).collect::<Vec<_>>();
                let zero = |row: usize, group: usize| words[row / 4 * grid[1] + group][row % 4];
                let all = (0..grid[0]).flat_map(|row| (0..grid[1]).map(move |group| (row, group)));
                all.map(|(row, group)| codes.value(zero(row, group))).collect()
            }
        };
        let read = match values.dtype {
            // Microscaling's.
            Dtype::U8 => Dtype::Bf16,
            Dtype::F32 => read,
            dtype @ (Dtype::Bf16 | Dtype::F16) => dtype,
            _ => return Ok(None),
        };
        Ok(Some(Matrix { file, entry, read, codes, scales: multipliers(&values), zeros, grid, block }))
    }

    /// A matrix of eight-bit codes, four a word: the bytes of a row in order.
    fn in_words(&self, name: &str) -> Result<Option<(usize, Entry)>, WeightFileError> {
        let shape = format!("{name}_shape");
        let Some((file, entry)) = self.stored(&format!("{name}_packed")) else { return Ok(None) };
        if entry.dtype != "I32" || !self.places.contains_key(&shape) {
            return Ok(None);
        }
        let &[rows, words] = &entry.shape[..] else { return Ok(None) };
        let shape = self.read(&shape)?;
        let dims = shape.to_f32();
        let columns = 4 * words;
        if !shape.dtype.is_float() && dims == [rows as f32, columns as f32] {
            let entry = Entry { dtype: "I8".to_owned(), shape: vec![rows, columns], ..entry.clone() };
            return Ok(Some((file, entry)));
        }
        Ok(None)
    }

    /// Eight-bit floats without a scale of their own: scales of codes in four bits.
    fn unscaled(&self, name: &str) -> Result<Option<Matrix>, WeightFileError> {
        let Some((file, entry)) = self.stored(name).filter(|(_, entry)| entry.dtype == E4M3) else {
            return Ok(None);
        };
        let &[rows, columns] = &entry.shape[..] else { return Ok(None) };
        Ok(Some(Matrix {
            file,
            entry: entry.clone(),
            read: Dtype::F32,
            codes: Codes::E4m3,
            scales: vec![1.0],
            zeros: Vec::new(),
            grid: [1, 1],
            block: [rows.max(1), columns.max(1)],
        }))
    }
}

fn wrong(tensor: &str, got: &HostTensor, expected: Vec<usize>) -> WeightFileError {
    WeightFileError::BlockScales { tensor: tensor.to_owned(), got: got.shape.clone(), expected }
}

/// What scales multiply by: bytes are exponents of two, 127 too large.
fn multipliers(scales: &HostTensor) -> Vec<f32> {
    match scales.dtype {
        Dtype::U8 => scales.bytes.iter().map(|&exponent| 2.0_f32.powi(i32::from(exponent) - 127)).collect(),
        _ => scales.to_f32(),
    }
}

/// The number of a code of `F8_E4M3`.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2.0_f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if code >= 128 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::e4m3;

    #[test]
    fn codes_are_the_format_s() {
        for (code, value) in [(0x00, 0.0), (0x38, 1.0), (0x7e, 448.0), (0x01, 1.0 / 512.0), (0xb9, -1.125)] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert!(e4m3(0x80) == 0.0 && e4m3(0x80).is_sign_negative());
    }
}
