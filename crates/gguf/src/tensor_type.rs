//! Element types of tensors.

use std::fmt;

/// How a tensor's elements are stored: its name in ggml, its number in files, elements of a block and bytes of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TensorType {
    name: &'static str,
    number: u32,
    block: usize,
    bytes: usize,
}

/// Every type.
const TYPES: [TensorType; 35] = [
    TensorType { name: "F32", number: 0, block: 1, bytes: 4 },
    TensorType { name: "F16", number: 1, block: 1, bytes: 2 },
    TensorType { name: "Q4_0", number: 2, block: 32, bytes: 18 },
    TensorType { name: "Q4_1", number: 3, block: 32, bytes: 20 },
    TensorType { name: "Q5_0", number: 6, block: 32, bytes: 22 },
    TensorType { name: "Q5_1", number: 7, block: 32, bytes: 24 },
    TensorType { name: "Q8_0", number: 8, block: 32, bytes: 34 },
    TensorType { name: "Q8_1", number: 9, block: 32, bytes: 36 },
    TensorType { name: "Q2_K", number: 10, block: 256, bytes: 84 },
    TensorType { name: "Q3_K", number: 11, block: 256, bytes: 110 },
    TensorType { name: "Q4_K", number: 12, block: 256, bytes: 144 },
    TensorType { name: "Q5_K", number: 13, block: 256, bytes: 176 },
    TensorType { name: "Q6_K", number: 14, block: 256, bytes: 210 },
    TensorType { name: "Q8_K", number: 15, block: 256, bytes: 292 },
    TensorType { name: "IQ2_XXS", number: 16, block: 256, bytes: 66 },
    TensorType { name: "IQ2_XS", number: 17, block: 256, bytes: 74 },
    TensorType { name: "IQ3_XXS", number: 18, block: 256, bytes: 98 },
    TensorType { name: "IQ1_S", number: 19, block: 256, bytes: 50 },
    TensorType { name: "IQ4_NL", number: 20, block: 32, bytes: 18 },
    TensorType { name: "IQ3_S", number: 21, block: 256, bytes: 110 },
    TensorType { name: "IQ2_S", number: 22, block: 256, bytes: 82 },
    TensorType { name: "IQ4_XS", number: 23, block: 256, bytes: 136 },
    TensorType { name: "I8", number: 24, block: 1, bytes: 1 },
    TensorType { name: "I16", number: 25, block: 1, bytes: 2 },
    TensorType { name: "I32", number: 26, block: 1, bytes: 4 },
    TensorType { name: "I64", number: 27, block: 1, bytes: 8 },
    TensorType { name: "F64", number: 28, block: 1, bytes: 8 },
    TensorType { name: "IQ1_M", number: 29, block: 256, bytes: 56 },
    TensorType { name: "BF16", number: 30, block: 1, bytes: 2 },
    TensorType { name: "TQ1_0", number: 34, block: 256, bytes: 54 },
    TensorType { name: "TQ2_0", number: 35, block: 256, bytes: 66 },
    TensorType { name: "MXFP4", number: 39, block: 32, bytes: 17 },
    TensorType { name: "NVFP4", number: 40, block: 64, bytes: 36 },
    TensorType { name: "Q1_0", number: 41, block: 128, bytes: 18 },
    TensorType { name: "Q2_0", number: 42, block: 64, bytes: 18 },
];

const fn named(name: &str) -> TensorType {
    let mut at = 0;
    while at < TYPES.len() {
        let (own, name) = (TYPES[at].name.as_bytes(), name.as_bytes());
        let mut same = own.len() == name.len();
        let mut byte = 0;
        while same && byte < own.len() {
            same = own[byte] == name[byte];
            byte += 1;
        }
        if same {
            return TYPES[at];
        }
        at += 1;
    }
    panic!("a type of the table")
}

impl TensorType {
    /// 32-bit floats.
    pub const F32: Self = named("F32");
    /// Half precision.
    pub const F16: Self = named("F16");
    /// bfloat16.
    pub const BF16: Self = named("BF16");
    /// Bytes with a scale for each 32.
    pub const Q8_0: Self = named("Q8_0");
    /// Four bits with a scale for each 32.
    pub const Q4_0: Self = named("Q4_0");
    /// Five bits with a scale for each 32.
    pub const Q5_0: Self = named("Q5_0");
    /// Four bits, 256 elements in eight groups with scales and minima of six bits.
    pub const Q4_K: Self = named("Q4_K");
    /// Five bits, grouped as [`Self::Q4_K`].
    pub const Q5_K: Self = named("Q5_K");
    /// Six bits, 256 elements in sixteen groups with scales of eight bits.
    pub const Q6_K: Self = named("Q6_K");

    /// The type with this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        TYPES.into_iter().find(|own| own.number == number)
    }

    /// Its name in ggml.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Its number in files.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }

    /// Elements that are stored together, along a row.
    #[must_use]
    pub fn block(self) -> usize {
        self.block
    }

    /// Bytes of so many elements, which fill blocks; `None` where they do not, or are too many.
    #[must_use]
    pub fn bytes(self, elements: usize) -> Option<usize> {
        elements.is_multiple_of(self.block).then_some(elements / self.block)?.checked_mul(self.bytes)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
