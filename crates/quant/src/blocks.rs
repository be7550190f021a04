//! Four bits an element, in blocks of 64 over the flattened matrix.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::{
    BlockScale, Codes as Kind, FourBits, PackedMatrix, PackedStrip, Quantization, ScaleOf, ScaleValues,
    Scheme,
};
use rayon::prelude::*;

use crate::codes::{Codes, widen};
use crate::quantized::{Float, TASK};
use crate::scales::Scales;

const BLOCK: usize = Quantization::BLOCK;

/// Rows of a matrix whose blocks run over all of it: those of one run, or each row with the scales of the blocks that it
/// reaches into.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blocks {
    scheme: Scheme,
    codes: Vec<u8>,
    scales: Scales,
    /// The block that the first group of 256 begins with.
    first: usize,
    lie: Lie,
}

#[derive(Clone, Debug, PartialEq)]
enum Lie {
    /// One row after another, from this block of the matrix on.
    Run(usize),
    /// Each row by itself.
    Apart {
        /// Bytes of a row.
        bytes: usize,
        /// Scales of a row.
        slots: usize,
        /// The place of each row's first element in the flattened matrix.
        firsts: Vec<usize>,
    },
}

impl Blocks {
    pub(crate) fn new<T: Float>(scheme: Scheme, nested: bool, values: &[T]) -> Self {
        let mut codes = vec![0_u8; values.len().div_ceil(2)];
        let mut scales = vec![0.0_f32; values.len().div_ceil(BLOCK)];
        let known = Codes::of(scheme);
        let tasks = codes.par_chunks_mut(BLOCK / 2).zip(values.par_chunks(BLOCK)).zip(&mut scales);
        tasks.with_min_len(64).for_each_init(Vec::new, |wide, ((codes, values), scale)| {
            wide.clear();
            wide.extend(values.iter().map(|value| value.widen()));
            *scale = known.narrow(wide, wide.len() == BLOCK, codes);
        });
        let scales = if nested { Scales::nested(&scales) } else { Scales::Plain(scales) };
        Self::whole(scheme, codes, scales)
    }

    /// A whole matrix.
    pub(crate) fn whole(scheme: Scheme, codes: Vec<u8>, scales: Scales) -> Self {
        Self { scheme, codes, scales, first: 0, lie: Lie::Run(0) }
    }

    pub(crate) fn codes(&self) -> &[u8] {
        &self.codes
    }

    pub(crate) fn scales(&self) -> &Scales {
        &self.scales
    }

    pub(crate) fn bytes(&self) -> usize {
        self.codes.len() + self.scales.bytes()
    }

    /// Where an element of a row of `row` lies among the codes, where in the flattened matrix, and which place among the
    /// scales that of the matrix' first block would have.
    fn place(&self, row: usize, number: usize, column: usize) -> (usize, usize, isize) {
        match &self.lie {
            Lie::Run(block) => {
                let code = number * row + column;
                (code, block * BLOCK + code, -(*block as isize))
            }
            Lie::Apart { bytes, slots, firsts } => {
                let scale = (number * slots) as isize - (firsts[number] / BLOCK) as isize;
                (2 * number * bytes + column, firsts[number] + column, scale)
            }
        }
    }

    /// The scale of the block that an element of the flattened matrix is in.
    fn scale(&self, at: usize, of_first: isize) -> f32 {
        let block = at / BLOCK;
        self.scales.at(block.wrapping_add_signed(of_first), block - self.first)
    }

    /// The scale of a block of this part, where rows follow each other.
    pub(crate) fn scale_of(&self, block: usize) -> f32 {
        match self.lie {
            Lie::Run(first) => self.scales.at(block, first + block - self.first),
            Lie::Apart { .. } => panic!("invariant: rows apart have no run of blocks"),
        }
    }

    /// Elements that follow each other, from one of a row on: within the row, or where rows follow each other.
    pub(crate) fn read<T: Float>(&self, row: usize, number: usize, column: usize, out: &mut [T]) {
        let known = &Codes::of(self.scheme).values;
        let (mut code, mut at, of_first) = self.place(row, number, column);
        let mut out = out;
        while !out.is_empty() {
            let (now, rest) = out.split_at_mut((BLOCK - at % BLOCK).min(out.len()));
            let scale = self.scale(at, of_first);
            let scaled: [T; 16] = known.map(|value| T::narrow(value * scale));
            widen(&self.codes, code, &scaled, now);
            code += now.len();
            at += now.len();
            out = rest;
        }
    }

    /// Codes of elements that follow each other from a block's first on, and the scales of so many blocks; none where the
    /// row lies otherwise.
    pub(crate) fn four_bits(
        &self,
        row: usize,
        number: usize,
        column: usize,
        scales: &mut [BlockScale],
    ) -> Option<FourBits<'_>> {
        let (code, at, of_first) = self.place(row, number, column);
        if !at.is_multiple_of(BLOCK) || !code.is_multiple_of(2) {
            return None;
        }
        for (block, to) in scales.iter_mut().enumerate() {
            *to = BlockScale { scale: self.scale(at + block * BLOCK, of_first), zero: 0.0 };
        }
        let values = &Codes::of(self.scheme).values;
        Some(FourBits { codes: &self.codes[code / 2..], values, block: BLOCK })
    }

    /// See [`burnish_core::PackedRows::strips`]; none where rows apart begin in different places of their blocks.
    pub(crate) fn strip(&self, rows: usize, row: usize) -> Option<PackedStrip<'_>> {
        let (line, scale_of, scales) = match &self.lie {
            Lie::Run(block) => {
                let scale_of = ScaleOf::Blocks { groups: 0, step: row, first: 0, block: BLOCK };
                (row, scale_of, self.scales.for_device(block - self.first))
            }
            Lie::Apart { bytes, slots, firsts } => {
                let first = firsts.first()? % BLOCK;
                if firsts.iter().any(|at| at % BLOCK != first) {
                    return None;
                }
                let scale_of = ScaleOf::Blocks { groups: *slots, step: 0, first, block: BLOCK };
                // Those of rows apart are of groups that do not follow each other.
                let scales = match &self.scales {
                    plain @ Scales::Plain(_) => plain.for_device(0),
                    nested @ Scales::Nested { .. } => {
                        let of = |place: usize| {
                            let (number, slot) = (place / slots, place % slots);
                            nested.at(
                                place,
                                (firsts[number] / BLOCK + slot).min(self.last(number, row)) - self.first,
                            )
                        };
                        ScaleValues::Plain(Cow::Owned((0..nested.len()).map(of).collect()))
                    }
                };
                (2 * bytes, scale_of, scales)
            }
        };
        let matrix = PackedMatrix { codes: &self.codes, scales, zeros: &[] };
        let kind = Kind::Four(Codes::of(self.scheme).values);
        Some(PackedStrip { rows, columns: row, line, kind, scale_of, factor: 1.0, matrices: vec![matrix] })
    }

    /// The last block of the matrix that a row apart reaches into.
    fn last(&self, number: usize, row: usize) -> usize {
        match &self.lie {
            Lie::Run(_) => panic!("invariant: rows lie apart"),
            Lie::Apart { firsts, .. } => (firsts[number] + row - 1) / BLOCK,
        }
    }

    pub(crate) fn values<T: Float>(&self, row: usize, values: &mut [T]) {
        match self.lie {
            Lie::Run(_) => {
                let tasks = values.par_chunks_mut(TASK * BLOCK).enumerate();
                tasks.for_each(|(task, values)| {
                    let at = task * TASK * BLOCK;
                    self.read(row, at / row, at % row, values);
                });
            }
            Lie::Apart { .. } => {
                let rows = values.par_chunks_mut(row).enumerate();
                rows.with_min_len(8).for_each(|(number, values)| self.read(row, number, 0, values));
            }
        }
    }

    /// Some columns of some rows of `row` elements, where those columns follow each other.
    pub(crate) fn part(&self, row: usize, rows: &[Range<usize>], columns: Range<usize>) -> Self {
        let numbers = || rows.iter().cloned().flatten();
        if let ([rows], Lie::Run(block), true) = (rows, &self.lie, columns == (0..row)) {
            let (start, end) = (rows.start * row, rows.end * row);
            let last = end.is_multiple_of(BLOCK) || end.div_ceil(2) == self.codes.len();
            if start.is_multiple_of(BLOCK) && last {
                let blocks = start / BLOCK..end.div_ceil(BLOCK);
                let own = block + blocks.start..block + blocks.end;
                let (first, groups) = self.groups(own.clone());
                return Self {
                    scheme: self.scheme,
                    codes: self.codes[start / 2..end.div_ceil(2)].to_vec(),
                    scales: self.scales.part(blocks, groups),
                    first,
                    lie: Lie::Run(own.start),
                };
            }
        }
        let places: Vec<_> = numbers().map(|number| self.place(row, number, columns.start)).collect();
        let width = columns.len();
        let reached = |at: usize| at / BLOCK..(at + width).div_ceil(BLOCK).max(at / BLOCK);
        let slots = places.iter().map(|&(_, at, _)| reached(at).len()).max().unwrap_or(0);
        let bytes = width.div_ceil(2);
        let mut codes = vec![0_u8; places.len() * bytes];
        let nibbles: [u8; 16] = std::array::from_fn(|code| code as u8);
        codes.par_chunks_mut(bytes.max(1)).zip(&places).for_each_init(Vec::new, |wide, (to, &(code, ..))| {
            wide.resize(width, 0);
            widen(&self.codes, code, &nibbles, wide);
            for (byte, pair) in to.iter_mut().zip(wide.chunks(2)) {
                *byte = pair[0] << 4 | pair.get(1).copied().unwrap_or(0);
            }
        });
        // A row that reaches into fewer blocks than others has its last one again.
        let of_row = |&(_, at, of_first): &(usize, usize, isize)| {
            let own = reached(at);
            (0..slots).map(move |slot| {
                (own.start + slot.min(own.len().saturating_sub(1))).wrapping_add_signed(of_first)
            })
        };
        let least = places.iter().map(|&(_, at, _)| reached(at).start).min().unwrap_or(0);
        let most = places.iter().map(|&(_, at, _)| reached(at).end).max().unwrap_or(0);
        let (first, groups) = self.groups(least..most);
        let scales = self.scales.part(places.iter().flat_map(of_row), groups);
        let firsts = places.iter().map(|&(_, at, _)| at).collect();
        Self { scheme: self.scheme, codes, scales, first, lie: Lie::Apart { bytes, slots, firsts } }
    }

    /// The groups of 256 that some blocks of the matrix are in, and the block that the first of them begins with.
    fn groups(&self, blocks: Range<usize>) -> (usize, Range<usize>) {
        const NESTED: usize = Quantization::NESTED_BLOCK;
        if blocks.is_empty() {
            return (self.first, 0..0);
        }
        let start = (blocks.start - self.first) / NESTED;
        let end = (blocks.end - self.first).div_ceil(NESTED);
        (self.first + start * NESTED, start..end)
    }
}
