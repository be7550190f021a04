//! Elements of four and eight bits widened by vectors, bit for bit as [`PackedRows::read`] reads them.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use crate::simd::{Isa, Lanes, dispatch};
use burnish_core::{BlockScale, Dtype, EightBits, FourBits, PackedRows};
use half::{bf16, f16};

/// Blocks whose scales are asked for at once.
const BLOCKS: usize = 32;

/// [`PackedRows::read`]: by vectors where whole blocks are read.
pub(crate) fn read(isa: Isa, rows: &dyn PackedRows, row: usize, column: usize, out: &mut [f32]) {
    if let Some(eight) = rows.eight_bits(row, column) {
        return match rows.dtype() {
            Dtype::Bf16 => widen_eight::<bf16>(isa, &eight, out),
            Dtype::F16 => widen_eight::<f16>(isa, &eight, out),
            _ => widen_eight::<f32>(isa, &eight, out),
        };
    }
    let Some(block) = rows.four_bits(row, column, &mut []).map(|four| four.block) else {
        return rows.read(row, column, out);
    };
    let (whole, rest) = out.split_at_mut(out.len() / block * block);
    let mut scales = [BlockScale::default(); BLOCKS];
    for (piece, out) in whole.chunks_mut(BLOCKS * block).enumerate() {
        let scales = &mut scales[..out.len() / block];
        let column = column + piece * BLOCKS * block;
        match rows.four_bits(row, column, scales) {
            Some(four) => match rows.dtype() {
                Dtype::Bf16 => widen_four::<bf16>(isa, &four, scales, out),
                Dtype::F16 => widen_four::<f16>(isa, &four, scales, out),
                _ => widen_four::<f32>(isa, &four, scales, out),
            },
            None => rows.read(row, column, out),
        }
    }
    if !rest.is_empty() {
        rows.read(row, column + whole.len(), rest);
    }
}

fn widen_four<E: Rounding>(isa: Isa, four: &FourBits<'_>, scales: &[BlockScale], out: &mut [f32]) {
    let n = out.len();
    assert!(
        four.block.is_multiple_of(16) && scales.len() * four.block == n && four.codes.len() >= n / 2,
        "four bits: {n} elements in {} blocks of {}, {} bytes of codes",
        scales.len(),
        four.block,
        four.codes.len()
    );
    // SAFETY: the lengths were checked.
    unsafe {
        let (codes, to) = (four.codes.as_ptr(), out.as_mut_ptr());
        four_bits::<E>(isa, codes, four.values, scales, four.block, to);
    }
}

fn widen_eight<E: Rounding>(isa: Isa, eight: &EightBits<'_>, out: &mut [f32]) {
    let codes = &eight.codes[..out.len()];
    // SAFETY: there are as many codes as elements.
    unsafe { eight_bits::<E>(isa, codes.as_ptr().cast(), eight.scales, out.len(), out.as_mut_ptr()) }
}

/// What elements are rounded to, as floats.
trait Rounding: 'static {
    /// To nearest even.
    fn one(x: f32) -> f32;
    /// [`Self::one`] of each lane.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn lanes<S: Lanes>(v: S::V) -> S::V;
}

impl Rounding for f32 {
    fn one(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    unsafe fn lanes<S: Lanes>(v: S::V) -> S::V {
        v
    }
}

impl Rounding for bf16 {
    fn one(x: f32) -> f32 {
        Self::from_f32(x).to_f32()
    }
    #[inline(always)]
    unsafe fn lanes<S: Lanes>(v: S::V) -> S::V {
        S::high_half(S::pair(v, v))
    }
}

impl Rounding for f16 {
    fn one(x: f32) -> f32 {
        Self::from_f32(x).to_f32()
    }
    #[inline(always)]
    unsafe fn lanes<S: Lanes>(v: S::V) -> S::V {
        let mut room = [0; 16];
        S::store_f16(room.as_mut_ptr(), v);
        S::load_f16(room.as_ptr())
    }
}

#[inline(always)]
unsafe fn four_bits_body<S: Lanes, E: Rounding>(
    codes: *const u8,
    values: &[f32; 16],
    scales: &[BlockScale],
    block: usize,
    to: *mut f32,
) {
    for (number, of_block) in scales.iter().enumerate() {
        let mut table = [S::splat(0.0); 2];
        for (part, table) in table.iter_mut().enumerate().take(16 / S::N) {
            let value = S::sub(S::load(values.as_ptr().add(part * S::N)), S::splat(of_block.zero));
            *table = E::lanes::<S>(S::mul(S::splat(of_block.scale), value));
        }
        let (first, after) = (number * block, (number + 1) * block);
        let whole = first + block / (2 * S::N) * (2 * S::N);
        for at in (first..whole).step_by(2 * S::N) {
            S::look_up(codes.add(at / 2), &table, to.add(at));
        }
        if whole < after {
            // Half of what is looked up at once.
            let (mut own, mut wide) = ([0_u8; 16], [0.0_f32; 32]);
            codes.add(whole / 2).copy_to_nonoverlapping(own.as_mut_ptr(), (after - whole) / 2);
            S::look_up(own.as_ptr(), &table, wide.as_mut_ptr());
            wide.as_ptr().copy_to_nonoverlapping(to.add(whole), after - whole);
        }
    }
}

dispatch! {
    /// Blocks of four-bit codes as floats.
    ///
    /// # Safety
    /// `codes` holds a byte for every two elements, `to` a float for each; `block` is a multiple of 16.
    unsafe fn four_bits = four_bits_body [E: Rounding] [E] (
        codes: *const u8, values: &[f32; 16], scales: &[BlockScale], block: usize, to: *mut f32
    )
}

#[inline(always)]
unsafe fn eight_bits_body<S: Lanes, E: Rounding>(codes: *const i8, scales: [f32; 2], n: usize, to: *mut f32) {
    let [first, second] = scales.map(|scale| S::splat(scale));
    let mut at = 0;
    while at + S::N <= n {
        let value = S::mul(S::mul(S::load_i8(codes.add(at)), first), second);
        S::store(to.add(at), E::lanes::<S>(value));
        at += S::N;
    }
    for at in at..n {
        *to.add(at) = E::one(f32::from(*codes.add(at)) * scales[0] * scales[1]);
    }
}

dispatch! {
    /// Eight-bit codes times the row's factors as floats.
    ///
    /// # Safety
    /// `codes` holds `n` bytes, `to` `n` floats.
    unsafe fn eight_bits = eight_bits_body [E: Rounding] [E] (codes: *const i8, scales: [f32; 2], n: usize, to: *mut f32)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::simd::Isa;

    /// Rows of codes: four bits in blocks of sixteens, or eight.
    #[derive(Debug)]
    pub(crate) struct Codes {
        codes: Vec<u8>,
        scales: Vec<BlockScale>,
        values: [f32; 16],
        block: usize,
        row: usize,
        dtype: Dtype,
        pub(crate) products: bool,
    }

    impl Codes {
        pub(crate) fn new(block: usize, row: usize, dtype: Dtype) -> Self {
            let elements = ROWS * row;
            let codes = (0..elements).map(|i| (i * 37 + i / 7 * 11) as u8).collect();
            let of = |i: usize| BlockScale { scale: 0.013 * (i % 29 + 1) as f32, zero: (i % 3) as f32 };
            let scales = (0..elements).map(of).collect();
            let values = std::array::from_fn(|i| (i as f32 - 7.3) * 0.71);
            Self { codes, scales, values, block, row, dtype, products: false }
        }

        fn blocks(&self) -> usize {
            self.row.div_ceil(self.block)
        }

        fn element(&self, row: usize, column: usize) -> f32 {
            let value = match self.block {
                0 => {
                    let code = self.codes[row * self.row + column].cast_signed();
                    f32::from(code) * self.scales[row].scale * EIGHTH
                }
                block => {
                    let byte = self.codes[row * self.row.div_ceil(2) + column / 2];
                    let code = if column.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                    let BlockScale { scale, zero } = self.scales[row * self.blocks() + column / block];
                    scale * (self.values[usize::from(code)] - zero)
                }
            };
            match self.dtype {
                Dtype::Bf16 => bf16::from_f32(value).to_f32(),
                Dtype::F16 => f16::from_f32(value).to_f32(),
                _ => value,
            }
        }
    }

    pub(crate) const ROWS: usize = 7;
    const EIGHTH: f32 = 7.874_016e-3;

    impl PackedRows for Codes {
        fn shape(&self) -> [usize; 2] {
            [ROWS, self.row]
        }

        fn dtype(&self) -> Dtype {
            self.dtype
        }

        fn read(&self, row: usize, column: usize, out: &mut [f32]) {
            (column..).zip(out).for_each(|(column, out)| *out = self.element(row, column));
        }

        fn four_bits(&self, row: usize, column: usize, scales: &mut [BlockScale]) -> Option<FourBits<'_>> {
            if self.block == 0 || !column.is_multiple_of(self.block) {
                return None;
            }
            let first = row * self.blocks() + column / self.block;
            let many = scales.len();
            scales.copy_from_slice(&self.scales[first..first + many]);
            let codes = &self.codes[row * self.row.div_ceil(2) + column / 2..];
            Some(FourBits { codes, values: &self.values, block: self.block })
        }

        fn eight_bits(&self, row: usize, column: usize) -> Option<EightBits<'_>> {
            (self.block == 0).then(|| EightBits {
                codes: &self.codes[row * self.row + column..],
                scales: [self.scales[row].scale, EIGHTH],
                products: self.products,
            })
        }

        fn bytes(&self) -> Vec<u8> {
            Vec::new()
        }
    }

    #[test]
    fn vectors_read_what_elements_say_to_the_bit() {
        for block in [0, 16, 32, 48, 64, 96] {
            for row in [31, 64, 200, 64 * 70 + 5] {
                for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                    let rows = Codes::new(block, row, dtype);
                    for (number, column) in [(0, 0), (2, 0), (1, 17), (1, 64.min(row - 1)), (2, row - 1)] {
                        for &isa in Isa::available() {
                            let mut out = vec![f32::NAN; row - column];
                            read(isa, &rows, number, column, &mut out);
                            for (at, got) in out.iter().enumerate() {
                                let want = rows.element(number, column + at);
                                assert_eq!(
                                    got.to_bits(),
                                    want.to_bits(),
                                    "{isa:?}, blocks of {block}, {dtype:?}, row {number} of {row}, column {}: {got}, not {want}",
                                    column + at
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
