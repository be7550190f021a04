//! Rows of a [`Quantized`] as bytes that ranks send each other: of each row its codes, then what its groups share.

use burnish_core::{BlockScale, Quantization, Scheme};
use rayon::prelude::*;

use crate::blocks::Blocks;
use crate::error::QuantError;
use crate::groups::{Groups, Inputs, Steps, VECTOR};
use crate::quantized::{Body, Quantized, finite, plain};
use crate::scales::Scales;

/// How a row lies.
#[derive(Clone, Copy)]
struct Format {
    /// Bytes of its codes.
    codes: usize,
    groups: usize,
    /// Elements of a group.
    group: usize,
    shared: Shared,
}

/// What the elements of a group share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shared {
    /// A scale in fp32.
    Scale,
    /// That, and a zero point in a byte.
    Zeroed,
    /// An exponent of two in a byte.
    Power,
}

impl Shared {
    const fn bytes(self) -> usize {
        match self {
            Self::Scale => 4,
            Self::Zeroed => 5,
            Self::Power => 1,
        }
    }
}

impl Format {
    /// `None` where a row's codes and scales are not its own: blocks that go on in the next row, groups that are listed.
    fn of(quantization: Quantization, row: usize) -> Option<Self> {
        let group = quantization.block(row);
        let (codes, shared) = match quantization.scheme {
            Scheme::Nf4 | Scheme::Fp4 => (row / 2, Shared::Scale),
            Scheme::Int8 => (row, Shared::Scale),
            Scheme::Int4 { ordered: true, .. } => return None,
            Scheme::Int4 { .. } => (row / 2, Shared::Zeroed),
            Scheme::Mxfp4 => (row / 2, Shared::Power),
            Scheme::Nvfp4 => (row / 2, Shared::Scale),
        };
        let whole = row > 0
            && row.is_multiple_of(group)
            && (quantization.scheme == Scheme::Int8 || group.is_multiple_of(VECTOR));
        whole.then(|| Self { codes, groups: row / group, group, shared })
    }

    const fn bytes(self) -> usize {
        self.codes + self.groups * self.shared.bytes()
    }
}

impl Quantized {
    /// Bytes of a row of `row` elements in [`Self::to_bytes`], scales that are quantised again as they are read; none where
    /// rows cannot be sent by themselves: blocks that go on in the next row, groups that are listed.
    #[must_use]
    pub fn row_bytes(quantization: Quantization, row: usize) -> Option<usize> {
        Format::of(quantization, row).map(Format::bytes)
    }

    /// The rows as bytes.
    ///
    /// # Panics
    /// If [`Self::row_bytes`] has none for it, or columns were cut within blocks.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let [rows, row] = self.shape();
        let format = Format::of(self.quantization(), row).expect("invariant: rows that can be sent");
        let mut bytes = vec![0_u8; rows * format.bytes()];
        bytes.par_chunks_mut(format.bytes()).enumerate().with_min_len(16).for_each_init(
            || vec![BlockScale::default(); format.groups],
            |scales, (number, to)| {
                let (codes, shared) = to.split_at_mut(format.codes);
                codes.copy_from_slice(self.row_codes(number, format, scales));
                let (first, zeros) = shared.split_at_mut(format.groups * format.shared.bytes().min(4));
                match format.shared {
                    Shared::Power => {
                        first
                            .iter_mut()
                            .zip(&*scales)
                            .for_each(|(to, s)| *to = (s.scale.to_bits() >> 23) as u8);
                    }
                    Shared::Scale | Shared::Zeroed => {
                        let scales = first.chunks_exact_mut(4).zip(&*scales);
                        scales.for_each(|(to, s)| to.copy_from_slice(&s.scale.to_le_bytes()));
                    }
                }
                zeros.iter_mut().zip(scales).for_each(|(to, s)| *to = s.zero as u8);
            },
        );
        bytes
    }

    /// The codes of a row, and what its groups share.
    fn row_codes(&self, number: usize, format: Format, scales: &mut [BlockScale]) -> &[u8] {
        if let Some(eight) = self.eight_bits(number, 0) {
            // The second factor is the same for every row.
            scales[0].scale = eight.scales[0];
            return &eight.codes[..format.codes];
        }
        let four = self.four_bits(number, 0, scales).expect("invariant: blocks begin with rows");
        assert_eq!(four.block, format.group, "invariant: blocks of the scheme");
        &four.codes[..format.codes]
    }

    /// Rows of `row` elements from the bytes of some and those of the next, as [`Self::to_bytes`] made them: one matrix.
    ///
    /// # Errors
    /// If they are no whole rows, or a scale is not finite.
    ///
    /// # Panics
    /// If [`Self::row_bytes`] has none for it.
    pub fn from_bytes(quantization: Quantization, row: usize, parts: &[&[u8]]) -> Result<Self, QuantError> {
        let format = Format::of(quantization, row).expect("invariant: rows that can be sent");
        let (size, scheme) = (format.bytes(), quantization.scheme);
        for part in parts {
            if !part.len().is_multiple_of(size) {
                let expected = part.len() / size * size;
                let (what, rows) = ("bytes of rows", part.len() / size);
                return Err(QuantError::Length { what, got: part.len(), expected, rows, row });
            }
        }
        let rows: usize = parts.iter().map(|part| part.len() / size).sum();
        let mut codes = vec![0_u8; rows * format.codes];
        let mut shared = vec![0_u8; rows * (size - format.codes)];
        let mut numbered: Vec<(&[u8], &mut [u8], &mut [u8])> = parts
            .iter()
            .flat_map(|part| part.chunks_exact(size))
            .zip(codes.chunks_exact_mut(format.codes))
            .zip(shared.chunks_exact_mut(size - format.codes))
            .map(|((from, codes), shared)| (from, codes, shared))
            .collect();
        numbered.par_iter_mut().with_min_len(64).for_each(|(from, codes, shared)| {
            let (own, rest) = from.split_at(format.codes);
            codes.copy_from_slice(own);
            shared.copy_from_slice(rest);
        });
        let scales = || -> Result<Vec<f32>, QuantError> {
            let of_row = |row: &[u8]| -> Vec<f32> {
                let words = row[..4 * format.groups].chunks_exact(4);
                words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
            };
            let scales: Vec<f32> = shared.chunks_exact(size - format.codes).flat_map(of_row).collect();
            finite("scale", &scales)?;
            Ok(scales)
        };
        let runs = Inputs::Runs { group: format.group, first: 0 };
        let body = match scheme {
            Scheme::Nf4 | Scheme::Fp4 => Body::Blocks(Blocks::whole(scheme, codes, Scales::Plain(scales()?))),
            Scheme::Int8 => Body::Rows { codes, scales: scales()? },
            Scheme::Int4 { .. } => {
                let zeros = shared.chunks_exact(5 * format.groups).flat_map(|row| &row[4 * format.groups..]);
                let steps = Steps::Even { scales: scales()?, zeros: zeros.copied().collect() };
                Body::Groups(Groups { codes, steps, groups: format.groups, inputs: runs })
            }
            Scheme::Nvfp4 => {
                let steps = Steps::Floats(scales()?);
                Body::Groups(Groups { codes, steps, groups: format.groups, inputs: runs })
            }
            Scheme::Mxfp4 => {
                crate::mxfp4::fit(&shared)?;
                let steps = Steps::Powers(shared);
                Body::Groups(Groups { codes, steps, groups: format.groups, inputs: runs })
            }
        };
        Ok(Self { quantization: plain(scheme), rows, row, body })
    }
}
