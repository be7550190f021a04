//! Scales of blocks, as they are or quantised again.

use std::ops::Range;

use burnish_core::Quantization;

use crate::blockwise;

/// One scale a block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scales {
    Plain(Vec<f32>),
    /// In eight bits by the dynamic map, 256 to a scale, less their mean.
    Nested {
        codes: Vec<u8>,
        scales: Vec<f32>,
        offset: f32,
        first: usize,
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
        Self::Nested { codes, scales, offset, first: 0 }
    }

    /// The scale of a block.
    pub(crate) fn at(&self, block: usize) -> f32 {
        match self {
            Self::Plain(scales) => scales[block],
            Self::Nested { codes, scales, offset, first } => {
                let scale = scales[(first + block) / Quantization::NESTED_BLOCK];
                blockwise::value(codes[block], true) * scale + offset
            }
        }
    }

    /// Those of some blocks.
    pub(crate) fn part(&self, blocks: Range<usize>) -> Self {
        match self {
            Self::Plain(scales) => Self::Plain(scales[blocks].to_vec()),
            Self::Nested { codes, scales, offset, first } => {
                let start = first + blocks.start;
                let group = start / Quantization::NESTED_BLOCK;
                let end = (first + blocks.end).div_ceil(Quantization::NESTED_BLOCK).max(group);
                Self::Nested {
                    codes: codes[blocks].to_vec(),
                    scales: scales[group..end].to_vec(),
                    offset: *offset,
                    first: start - group * Quantization::NESTED_BLOCK,
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(scales) => 4 * scales.len(),
            Self::Nested { codes, scales, .. } => codes.len() + 4 * scales.len(),
        }
    }
}
