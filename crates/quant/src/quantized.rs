//! `Quantized`: a matrix in few bits.

use std::ops::Range;

use burnish_core::{Dtype, Quantization, Scheme};
use half::{bf16, f16};
use rayon::prelude::*;

use crate::codes::Codes;
use crate::int8;
use crate::scales::Scales;

/// What a quantised matrix is read as.
pub trait Float: Copy + Default + Send + Sync + 'static {
    /// Its name.
    const DTYPE: Dtype;
    /// The nearest value, of two that are as near the even one.
    fn narrow(value: f32) -> Self;
    /// The same value.
    fn widen(self) -> f32;
}

macro_rules! float {
    ($type:ty, $dtype:ident, $narrow:expr, $widen:expr) => {
        impl Float for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline]
            fn narrow(value: f32) -> Self {
                $narrow(value)
            }
            #[inline]
            fn widen(self) -> f32 {
                $widen(self)
            }
        }
    };
}
float!(f32, F32, std::convert::identity, std::convert::identity);
float!(bf16, Bf16, bf16::from_f32, bf16::to_f32);
float!(f16, F16, f16::from_f32, f16::to_f32);

/// Rows of a matrix as codes and scales.
///
/// Four-bit blocks run over the flattened matrix, so rows can be taken apart only where no block reaches over two of them
/// ([`Quantization::divides`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    quantization: Quantization,
    rows: usize,
    row: usize,
    codes: Vec<u8>,
    scales: Scales,
}

/// Blocks that one task reads or writes (256 KiB of fp32).
const TASK: usize = 1024;

impl Quantized {
    /// `values`, rows of `row` elements.
    ///
    /// # Panics
    /// If `values` are not whole rows.
    #[must_use]
    pub fn new<T: Float>(quantization: Quantization, values: &[T], row: usize) -> Self {
        assert!(row > 0 && values.len().is_multiple_of(row), "{} elements in rows of {row}", values.len());
        let rows = values.len() / row;
        let eight = quantization.scheme == Scheme::Int8;
        let (block, packed) = if eight { (row, row) } else { (Quantization::BLOCK, Quantization::BLOCK / 2) };
        let mut codes = vec![0_u8; if eight { values.len() } else { values.len().div_ceil(2) }];
        let mut scales = vec![0.0_f32; values.len().div_ceil(block)];
        let tasks = codes.par_chunks_mut(packed).zip(values.par_chunks(block)).zip(&mut scales);
        tasks.with_min_len(64).for_each_init(Vec::new, |wide, ((codes, values), scale)| {
            wide.clear();
            wide.extend(values.iter().map(|value| value.widen()));
            *scale = if eight {
                int8::narrow(wide, codes)
            } else {
                Codes::of(quantization.scheme).narrow(wide, wide.len() == block, codes)
            };
        });
        let scales =
            if quantization.nested && !eight { Scales::nested(&scales) } else { Scales::Plain(scales) };
        Self { quantization, rows, row, codes, scales }
    }

    /// How its codes are to be read.
    #[must_use]
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// Rows, and elements of each.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.row]
    }

    /// Codes as bitsandbytes stores them: two a byte in four bits (the first in the upper half), one signed byte an
    /// element in eight.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Bytes of codes and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.bytes()
    }

    /// The scale that the codes of a block (in eight bits of a row) are multiplied by.
    #[must_use]
    pub fn scale(&self, block: usize) -> f32 {
        self.scales.at(block)
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If there are no such rows, or blocks reach over several ([`Quantization::divides`]).
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let (quantization, row) = (self.quantization, self.row);
        assert!(rows == (0..self.rows) || quantization.divides(row), "rows of {row} elements share blocks");
        let (bytes, blocks) = match quantization.scheme {
            Scheme::Int8 => (row, 1),
            Scheme::Nf4 | Scheme::Fp4 => (row / 2, row / Quantization::BLOCK),
        };
        if rows == (0..self.rows) {
            return self.clone();
        }
        Self {
            quantization,
            rows: rows.len(),
            row,
            codes: self.codes[rows.start * bytes..rows.end * bytes].to_vec(),
            scales: self.scales.part(rows.start * blocks..rows.end * blocks),
        }
    }

    /// The elements, row by row: of a code its value times the scale, rounded once.
    #[must_use]
    pub fn values<T: Float>(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.rows * self.row];
        if self.quantization.scheme == Scheme::Int8 {
            let rows = values.par_chunks_mut(self.row).zip(self.codes.par_chunks(self.row)).enumerate();
            rows.for_each(|(number, (values, codes))| {
                let scale = self.scales.at(number);
                for (value, &code) in values.iter_mut().zip(codes) {
                    *value = T::narrow(int8::widen(code, scale));
                }
            });
            return values;
        }
        let known = &Codes::of(self.quantization.scheme).values;
        let (many, bytes) = (TASK * Quantization::BLOCK, TASK * Quantization::BLOCK / 2);
        let tasks = values.par_chunks_mut(many).zip(self.codes.par_chunks(bytes)).enumerate();
        tasks.for_each(|(task, (values, codes))| {
            let blocks = values.chunks_mut(Quantization::BLOCK).zip(codes.chunks(Quantization::BLOCK / 2));
            for (block, (values, codes)) in blocks.enumerate() {
                let scale = self.scales.at(task * TASK + block);
                let scaled: [T; 16] = known.map(|value| T::narrow(value * scale));
                for (pair, &code) in values.chunks_mut(2).zip(codes) {
                    pair[0] = scaled[usize::from(code >> 4)];
                    if let Some(second) = pair.get_mut(1) {
                        *second = scaled[usize::from(code & 15)];
                    }
                }
            }
        });
        values
    }
}
