//! `Quantization`: a frozen matrix at rest in fewer bits than it computes in.

use serde::{Deserialize, Serialize};

crate::choices! {
    /// What four bits stand for.
    #[derive(Default)]
    pub enum FourBit: "bnb_4bit_quant_type", crate::UnknownWord {
        /// Quantiles of a normal distribution.
        #[default]
        Nf4 = "nf4",
        /// A sign, two bits of exponent, one of mantissa.
        Fp4 = "fp4",
    }
}

impl FourBit {
    /// As a scheme.
    #[must_use]
    pub const fn scheme(self) -> Scheme {
        match self {
            Self::Nf4 => Scheme::Nf4,
            Self::Fp4 => Scheme::Fp4,
        }
    }
}

/// What the bits of an element stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Four bits: quantiles of a normal distribution (QLoRA, Dettmers et al., arXiv:2305.14314).
    Nf4,
    /// Four bits: a sign, two bits of exponent, one of mantissa.
    Fp4,
    /// Eight bits: 127 even steps to each side (LLM.int8(), Dettmers et al., arXiv:2208.07339).
    Int8,
    /// Four bits: 16 even steps, which inputs of a group share with a zero point (GPTQ, Frantar et al., arXiv:2210.17323;
    /// AWQ, Lin et al., arXiv:2306.00978). Read from folders, never made.
    Int4 {
        /// Inputs of a group.
        group: usize,
        /// Whether a list says which group each input is of (GPTQ's `desc_act`).
        ordered: bool,
    },
    /// Four bits: a sign, two bits of exponent, one of mantissa, and a power of two for every 32 inputs (MXFP4, OCP
    /// Microscaling 1.0), as gpt-oss has its experts. Read from folders, never made.
    Mxfp4,
    /// Four bits: those of [`Mxfp4`](Self::Mxfp4), and an eight-bit float for every 16 inputs beside one of the matrix (NVFP4),
    /// which are multiplied as they are read. Read from folders, never made.
    Nvfp4,
}

impl Scheme {
    /// Inputs that share a power of two in [`Mxfp4`](Self::Mxfp4).
    pub const MXFP4_BLOCK: usize = 32;
    /// Inputs that share a scale in [`Nvfp4`](Self::Nvfp4).
    pub const NVFP4_BLOCK: usize = 16;
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nf4 => f.write_str("nf4"),
            Self::Fp4 => f.write_str("fp4"),
            Self::Int8 => f.write_str("int8"),
            Self::Int4 { group, .. } => write!(f, "int4 in groups of {group}"),
            Self::Mxfp4 => f.write_str("mxfp4"),
            Self::Nvfp4 => f.write_str("nvfp4"),
        }
    }
}

/// How a matrix is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quantization {
    /// What its codes stand for.
    pub scheme: Scheme,
    /// Whether the scales of blocks are quantised again (double quantisation), in eight bits.
    pub nested: bool,
}

impl Quantization {
    /// Elements that share a scale; rows do for [`Scheme::Int8`].
    pub const BLOCK: usize = 64;
    /// Scales that share a scale, where they are quantised themselves.
    pub const NESTED_BLOCK: usize = 256;

    /// Elements that share a scale, of rows of `row`.
    #[must_use]
    pub const fn block(self, row: usize) -> usize {
        match self.scheme {
            Scheme::Nf4 | Scheme::Fp4 => Self::BLOCK,
            Scheme::Int8 => row,
            Scheme::Int4 { group, .. } => group,
            Scheme::Mxfp4 => Scheme::MXFP4_BLOCK,
            Scheme::Nvfp4 => Scheme::NVFP4_BLOCK,
        }
    }

    /// Bytes of `rows` rows of `row` elements at rest, codes and scales.
    #[must_use]
    pub const fn bytes(self, rows: usize, row: usize) -> usize {
        let elements = rows * row;
        match self.scheme {
            Scheme::Int8 => return elements + 4 * rows,
            // A scale and a zero point a group.
            Scheme::Int4 { group, ordered } => {
                let order = if ordered { 4 * row } else { 0 };
                return rows * (row.div_ceil(2) + 5 * row.div_ceil(group)) + order;
            }
            Scheme::Mxfp4 => return rows * (row.div_ceil(2) + row.div_ceil(Scheme::MXFP4_BLOCK)),
            Scheme::Nvfp4 => return rows * (row.div_ceil(2) + 4 * row.div_ceil(Scheme::NVFP4_BLOCK)),
            Scheme::Nf4 | Scheme::Fp4 => {}
        }
        let blocks = elements.div_ceil(Self::BLOCK);
        let scales = if self.nested { blocks + 4 * blocks.div_ceil(Self::NESTED_BLOCK) } else { 4 * blocks };
        elements.div_ceil(2) + scales
    }
}

/// Which frozen matrices of a model are quantised as it is read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeOnLoad {
    /// Bits, codes and scales.
    pub quantization: Quantization,
    /// Whether the matrices of experts are too, each by itself; without it they stay as the files have them, as in
    /// Transformers 5.
    pub experts: bool,
}
