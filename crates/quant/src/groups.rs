//! Four bits an element, whose meaning the inputs of a group share: even steps with a zero point (GPTQ, AWQ), or small
//! floats times a power of two (MXFP4) or another number (NVFP4).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use burnish_core::{BlockScale, Codes, FourBits, PackedMatrix, PackedStrip, ScaleOf, ScaleValues};
use rayon::prelude::*;

use crate::mxfp4;
use crate::quantized::Float;

/// Rows of a matrix, each with what codes stand for in every group of its inputs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Groups {
    /// Two a byte, the first in the upper half; each row begins with a byte.
    pub(crate) codes: Vec<u8>,
    /// Groups of a row one after another.
    pub(crate) steps: Steps,
    /// Groups of a row.
    pub(crate) groups: usize,
    pub(crate) inputs: Inputs,
}

/// Elements that a kernel widens at once.
pub(crate) const VECTOR: usize = 16;

/// Codes as numbers.
const STEPS: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// What the codes of each group stand for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Steps {
    /// `scale * (code - zero)`.
    Even { scales: Vec<f32>, zeros: Vec<u8> },
    /// A sign, two bits of exponent, one of mantissa, times a power of two: its exponent, 127 too large.
    Powers(Vec<u8>),
    /// The same, times a number.
    Floats(Vec<f32>),
}

impl Steps {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Even { scales, .. } | Self::Floats(scales) => scales.len(),
            Self::Powers(powers) => powers.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Even { scales, zeros } => 4 * scales.len() + zeros.len(),
            Self::Powers(powers) => powers.len(),
            Self::Floats(scales) => 4 * scales.len(),
        }
    }

    /// What all codes of a group are multiplied by.
    pub(crate) fn scale(&self, group: usize) -> f32 {
        match self {
            Self::Even { scales, .. } | Self::Floats(scales) => scales[group],
            Self::Powers(powers) => mxfp4::power(powers[group]),
        }
    }

    /// What codes stand for before [`Self::block_scale`].
    fn values(&self) -> &'static [f32; 16] {
        match self {
            Self::Even { .. } => &STEPS,
            Self::Powers(_) | Self::Floats(_) => &mxfp4::VALUES,
        }
    }

    fn block_scale(&self, group: usize) -> BlockScale {
        let zero = if let Self::Even { zeros, .. } = self { f32::from(zeros[group]) } else { 0.0 };
        BlockScale { scale: self.scale(group), zero }
    }

    fn value(&self, group: usize, code: u8) -> f32 {
        let BlockScale { scale, zero } = self.block_scale(group);
        scale * (self.values()[usize::from(code)] - zero)
    }

    fn table<T: Float>(&self, group: usize) -> [T; 16] {
        std::array::from_fn(|code| T::narrow(self.value(group, code as u8)))
    }

    fn pick(&self, groups: impl Iterator<Item = usize> + Clone) -> Self {
        match self {
            Self::Even { scales, zeros } => Self::Even {
                scales: groups.clone().map(|group| scales[group]).collect(),
                zeros: groups.map(|group| zeros[group]).collect(),
            },
            Self::Powers(powers) => Self::Powers(groups.map(|group| powers[group]).collect()),
            Self::Floats(scales) => Self::Floats(groups.map(|group| scales[group]).collect()),
        }
    }
}

/// The group of each input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Inputs {
    /// So many one after another, the first of them these many inputs in.
    Runs { group: usize, first: usize },
    /// As listed.
    Listed(Arc<[u32]>),
}

impl Groups {
    pub(crate) fn bytes(&self) -> usize {
        let order = if let Inputs::Listed(list) = &self.inputs { 4 * list.len() } else { 0 };
        self.codes.len() + self.steps.bytes() + order
    }

    /// Columns of a row of `row`, from one on.
    pub(crate) fn read<T: Float>(&self, row: usize, number: usize, column: usize, out: &mut [T]) {
        let codes = &self.codes[number * row.div_ceil(2)..(number + 1) * row.div_ceil(2)];
        let first_group = number * self.groups;
        let code = |at: usize| if at.is_multiple_of(2) { codes[at / 2] >> 4 } else { codes[at / 2] & 15 };
        match &self.inputs {
            Inputs::Listed(list) => {
                for (at, out) in (column..).zip(out) {
                    *out = T::narrow(self.steps.value(first_group + list[at] as usize, code(at)));
                }
            }
            &Inputs::Runs { group, first } => {
                let (mut at, mut out) = (column, out);
                while !out.is_empty() {
                    let (own, within) = ((first + at) / group, (first + at) % group);
                    let (now, rest) = out.split_at_mut((group - within).min(out.len()));
                    crate::codes::widen(codes, at, &self.steps.table(first_group + own), now);
                    at += now.len();
                    out = rest;
                }
            }
        }
    }

    /// Codes of a row from a group's first on, and the scales of so many groups; none where groups are listed, or cannot be
    /// taken by vectors.
    pub(crate) fn four_bits(
        &self,
        row: usize,
        number: usize,
        column: usize,
        scales: &mut [BlockScale],
    ) -> Option<FourBits<'_>> {
        let &Inputs::Runs { group, first } = &self.inputs else { return None };
        if !group.is_multiple_of(VECTOR)
            || !(first + column).is_multiple_of(group)
            || !column.is_multiple_of(2)
        {
            return None;
        }
        let own = number * self.groups + (first + column) / group;
        for (group, to) in (own..).zip(scales) {
            *to = self.steps.block_scale(group);
        }
        let codes = &self.codes[number * row.div_ceil(2) + column / 2..];
        Some(FourBits { codes, values: self.steps.values(), block: group })
    }

    /// See [`burnish_core::PackedRows::strips`].
    pub(crate) fn strip(&self, rows: usize, row: usize) -> PackedStrip<'_> {
        let groups = self.groups;
        let scale_of = match &self.inputs {
            &Inputs::Runs { group, first } => ScaleOf::Blocks { groups, step: 0, first, block: group },
            Inputs::Listed(list) => ScaleOf::Listed { groups, list },
        };
        let (scales, zeros) = match &self.steps {
            Steps::Even { scales, zeros } => (ScaleValues::Plain(Cow::Borrowed(scales)), zeros.as_slice()),
            Steps::Floats(scales) => (ScaleValues::Plain(Cow::Borrowed(scales)), &[][..]),
            Steps::Powers(codes) => {
                let scales = ScaleValues::Coded {
                    codes,
                    table: mxfp4::powers(),
                    scales: Cow::Borrowed(&[1.0]),
                    first: 0,
                    block: codes.len().max(1),
                    offset: 0.0,
                };
                (scales, &[][..])
            }
        };
        PackedStrip {
            rows,
            columns: row,
            line: 2 * row.div_ceil(2),
            kind: Codes::Four(*self.steps.values()),
            scale_of,
            factor: 1.0,
            matrices: vec![PackedMatrix { codes: &self.codes, scales, zeros }],
        }
    }

    pub(crate) fn values<T: Float>(&self, row: usize, values: &mut [T]) {
        let rows = values.par_chunks_mut(row).enumerate();
        rows.with_min_len(8).for_each(|(number, values)| self.read(row, number, 0, values));
    }

    /// Some columns of some rows of `row` elements, where those columns follow each other.
    pub(crate) fn part(&self, row: usize, rows: &[Range<usize>], columns: Range<usize>) -> Self {
        let (bytes, width) = (row.div_ceil(2), columns.len().div_ceil(2));
        // Of runs those groups that the columns reach into; a list may name any.
        let own = match &self.inputs {
            &Inputs::Runs { group, first } => {
                (first + columns.start) / group..(first + columns.end).div_ceil(group)
            }
            Inputs::Listed(_) => 0..self.groups,
        };
        let numbers = || rows.iter().cloned().flatten();
        let mut codes = Vec::with_capacity(numbers().count() * width);
        for number in numbers() {
            let from = &self.codes[number * bytes..(number + 1) * bytes];
            let code = |at: usize| if at.is_multiple_of(2) { from[at / 2] >> 4 } else { from[at / 2] & 15 };
            codes.extend(
                columns
                    .clone()
                    .step_by(2)
                    .map(|at| code(at) << 4 | if at + 1 < columns.end { code(at + 1) } else { 0 }),
            );
        }
        let of = |number: usize| number * self.groups + own.start..number * self.groups + own.end;
        let steps = self.steps.pick(numbers().flat_map(of));
        let inputs = match &self.inputs {
            &Inputs::Runs { group, first } => {
                Inputs::Runs { group, first: first + columns.start - own.start * group }
            }
            Inputs::Listed(list) => Inputs::Listed(list[columns].into()),
        };
        Self { codes, steps, groups: own.len(), inputs }
    }
}
