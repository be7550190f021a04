//! Scales of blocks, as they are or quantised again.

use std::borrow::Cow;

use burnish_core::{Quantization, ScaleValues};

use crate::blockwise;

/// One scale a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Scales {
    /// As they are.
    Plain(Vec<f32>),
    /// In eight bits by the dynamic map, 256 to a scale, less their mean (double quantisation).
    Nested {
        /// One a block.
        codes: Vec<u8>,
        /// One for 256 blocks of the matrix.
        scales: Vec<f32>,
        /// What is added to each.
        offset: f32,
    },
}

impl Scales {
    pub(crate) fn nested(plain: &[f32]) -> Self {
        let mean = plain.iter().map(|&scale| f64::from(scale)).sum::<f64>() / plain.len().max(1) as f64;
        let offset = mean as f32;
        let less: Vec<f32> = plain.iter().map(|scale| scale - offset).collect();
        let mut codes = vec![0; less.len()];
        let mut scales = vec![0.0; less.len().div_ceil(Quantization::NESTED_BLOCK)];
        blockwise::narrow(&less, &mut codes, &mut scales, true);
        Self::Nested { codes, scales, offset }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(scales) => scales.len(),
            Self::Nested { codes, .. } => codes.len(),
        }
    }

    /// The one at a place, of the block of that number less the 256 times as many that the first group stands behind.
    pub(crate) fn at(&self, place: usize, block: usize) -> f32 {
        match self {
            Self::Plain(scales) => scales[place],
            Self::Nested { codes, scales, offset } => {
                blockwise::value(codes[place], true) * scales[block / Quantization::NESTED_BLOCK] + offset
            }
        }
    }

    /// Those at some places, with the groups of some blocks.
    pub(crate) fn part(&self, places: impl Iterator<Item = usize>, groups: std::ops::Range<usize>) -> Self {
        match self {
            Self::Plain(scales) => Self::Plain(places.map(|place| scales[place]).collect()),
            Self::Nested { codes, scales, offset } => Self::Nested {
                codes: places.map(|place| codes[place]).collect(),
                scales: scales[groups].to_vec(),
                offset: *offset,
            },
        }
    }

    /// All of them, of which the first is that of a block `first` behind where its group begins.
    pub(crate) fn for_device(&self, first: usize) -> ScaleValues<'_> {
        match self {
            Self::Plain(scales) => ScaleValues::Plain(Cow::Borrowed(scales)),
            Self::Nested { codes, scales, offset } => ScaleValues::Coded {
                codes,
                table: blockwise::values(true),
                scales: Cow::Borrowed(scales),
                first,
                block: Quantization::NESTED_BLOCK,
                offset: *offset,
            },
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(scales) => 4 * scales.len(),
            Self::Nested { codes, scales, .. } => codes.len() + 4 * scales.len(),
        }
    }
}
