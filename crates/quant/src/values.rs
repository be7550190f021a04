//! `Values`: a quantised matrix as kernels read it.

use std::sync::Arc;

use burnish_core::{BlockScale, Dtype, EightBits, FourBits, PackedRows, PackedStrip};
use half::{bf16, f16};

use crate::{Float, Quantized};

/// A matrix whose elements are rounded to a dtype as they are read.
#[derive(Clone, Debug)]
pub struct Values {
    quantized: Arc<Quantized>,
    dtype: Dtype,
    products: bool,
}

/// Elements that are rounded at once.
const PIECE: usize = 256;

impl Values {
    /// `quantized` read as `dtype`: float32, bfloat16 or float16.
    #[must_use]
    pub fn new(quantized: Arc<Quantized>, dtype: Dtype) -> Self {
        Self { quantized, dtype, products: false }
    }

    /// The same values; where they are int8, products of a few rows on the CPU multiply the codes themselves, with rows
    /// that are rounded to eight bits for it ([`EightBits::products`]).
    #[must_use]
    pub fn with_int8_products(self) -> Self {
        Self { products: true, ..self }
    }

    fn rounded<T: Float>(&self, row: usize, column: usize, out: &mut [f32]) {
        let mut piece = [T::default(); PIECE];
        for (number, out) in out.chunks_mut(PIECE).enumerate() {
            let piece = &mut piece[..out.len()];
            self.quantized.read(row, column + number * PIECE, piece);
            out.iter_mut().zip(piece).for_each(|(to, value)| *to = value.widen());
        }
    }
}

impl PackedRows for Values {
    fn shape(&self) -> [usize; 2] {
        self.quantized.shape()
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        match self.dtype {
            Dtype::Bf16 => self.rounded::<bf16>(row, column, out),
            Dtype::F16 => self.rounded::<f16>(row, column, out),
            _ => self.quantized.read(row, column, out),
        }
    }

    fn four_bits(&self, row: usize, column: usize, scales: &mut [BlockScale]) -> Option<FourBits<'_>> {
        self.quantized.four_bits(row, column, scales)
    }

    fn eight_bits(&self, row: usize, column: usize) -> Option<EightBits<'_>> {
        let eight = self.quantized.eight_bits(row, column);
        eight.map(|eight| EightBits { products: self.products, ..eight })
    }

    fn strips(&self) -> Option<Vec<PackedStrip<'_>>> {
        self.quantized.strips()
    }

    fn bytes(&self) -> Vec<u8> {
        fn all<T: Float, const N: usize>(quantized: &Quantized, bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            quantized.values::<T>().into_iter().flat_map(bytes).collect()
        }
        match self.dtype {
            Dtype::Bf16 => all(&self.quantized, bf16::to_le_bytes),
            Dtype::F16 => all(&self.quantized, f16::to_le_bytes),
            _ => all(&self.quantized, f32::to_le_bytes),
        }
    }
}
