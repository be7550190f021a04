//! Weights and optimizer states in four and eight bits, with bitsandbytes' numbers.
//!
//! * [`Quantized`]: a matrix in NF4, FP4 or int8 (QLoRA, Dettmers et al., arXiv:2305.14314; LLM.int8(), arXiv:2208.07339),
//!   scales of blocks quantised again where that is asked, or in MXFP4 or NVFP4, and its rows as numbers again; several matrices of
//!   one shape as one (experts).
//! * [`Values`]: a [`Quantized`] as kernels read it, piece by piece.
//! * [`PackedWords`], [`PackedRows`]: matrices of GPTQ's, AWQ's and compressed-tensors' folders, as a [`Quantized`] too.
//! * [`blockwise`]: eight bits in blocks of 256 by the dynamic map, as optimizer states rest.
//!
//! Codes, scales and values are those of bitsandbytes 0.50 on the CPU, bit for bit; the mean that scales are taken from
//! under double quantisation is rounded once.
//!
//! ```
//! use burnish_core::{Quantization, Scheme};
//! use burnish_quant::Quantized;
//!
//! let weights: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
//! let nf4 = Quantization { scheme: Scheme::Nf4, nested: false };
//! let quantized = Quantized::new(nf4, &weights, 64);
//! assert_eq!(quantized.bytes(), 64 + 2 * 4); // half a byte an element, a scale a block
//!
//! let values: Vec<f32> = quantized.values();
//! assert!(values.iter().zip(&weights).all(|(value, weight)| (value - weight).abs() < 0.16));
//! assert_eq!(quantized.rows(1..2).values::<f32>(), values[64..]);
//! ```

mod blocks;
pub mod blockwise;
mod codes;
mod error;
mod groups;
mod int8;
mod mxfp4;
mod packed_words;
mod quantized;
mod scales;
mod values;
mod wire;

pub use codes::code_values;
pub use error::QuantError;
pub use packed_words::{PackedRows, PackedWords, gptq_order, group_of};
pub use quantized::{Float, Quantized};
pub use scales::Scales;
pub use values::Values;
