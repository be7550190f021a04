//! Names and facts shared by every burnish crate. No tensors, no ranks.
//!
//! * [`Parameter`] and [`Registry`]: what a model consists of, by Hugging Face name, before storage exists.
//! * [`BurnParameter`]: what a parameter of a Burn module is, by the words of Burn's traversal.
//! * [`Dtype`] and [`Precision`]: the four dtypes of a parameter, never conflated; [`Compute`]: what products multiply.
//! * [`Quantization`]: how a frozen matrix rests in four or eight bits; [`PackedRows`]: how kernels read one;
//!   [`PackedStrip`]: how one lies in a device's memory.
//! * [`Layout`]: how a logical tensor lies over the ranks of a mesh, whatever its axes; [`Split`] is one dimension of it on
//!   one axis, [`Region`] what one rank holds.
//! * [`LinearParts`]: the tensors of a linear layer with its adapter, one list for indices, tensors and gradients.
//! * [`choices!`] and [`OptionFault`]: options that are one of a few words, and rules of options, for the crates that own
//!   them.
//! * [`ErrorCode`]: the classes of errors, which every enum of errors maps its variants to.
//! * [`Activation`]: the elementwise functions of feed-forwards; [`RouterRule`] and [`ExpertGate`]: what experts are.
//! * [`FLASH_HEAD`], [`FLASH_TILE`], [`LINEAR_ATTENTION_CHUNK`], [`FEW_ROWS`] and [`ADAPTERS_TOGETHER`]: sizes of kernels on GPUs, for those who plan without them.
//! * [`file`](mod@file): reading what comes from outside, within bounds; [`guarded`]: by libraries that panic over it.
//! * [`SentencePiece`]: what the file of a tokenizer says.
//! * [`work`]: long work that is under way, for whoever shows it.
//! * [`random`]: randomness as a function of (seed, name, index), so that results do not depend on
//!   ranks, threads or the number of micro-batches.
//!
//! ```
//! use burnish_core::{Dtype, Parameter, Registry, Role};
//!
//! let mut registry = Registry::new();
//! registry.add(Parameter::new("model.norm.weight", &[64], Role::Norm, Dtype::F32)).unwrap();
//! assert_eq!(registry.get("model.norm.weight").unwrap().elements(), 64);
//! ```

mod activation;
mod burn_module;
mod choice;
mod compute;
mod dtype;
mod error_code;
mod experts;
pub mod file;
mod flash;
mod guarded;
mod head_options;
pub mod layout;
mod linear_parts;
mod option_fault;
mod packed_rows;
mod parameter;
mod quantization;
pub mod random;
mod registry;
mod sentencepiece;
pub mod work;

pub use activation::Activation;
pub use burn_module::BurnParameter;
pub use choice::{Choice, UnknownWord, alternatives};
pub use compute::Compute;
pub use dtype::{Dtype, Precision, UnknownDtype};
pub use error_code::{Coded, ErrorCode};
pub use experts::{
    ELSEWHERE, ExpertGate, FEW_PLACES, GROUP_ROWS, RouterGroups, RouterRule, RouterScores, expert_tiles,
};
pub use flash::{FLASH_HEAD, FLASH_TILE, LINEAR_ATTENTION_CHUNK};
pub use guarded::{guarded, is_guarded};
pub use head_options::HeadOptions;
pub use layout::{Layout, LayoutError, Region, Split};
pub use linear_parts::{ADAPTERS_TOGETHER, LinearDim, LinearPart, LinearParts, LinearPartsIter, LoraParts};
pub use option_fault::{OptionFault, OptionFaults};
pub use packed_rows::{
    BlockScale, Codes, EightBits, FEW_ROWS, FourBits, PackedMatrix, PackedRows, PackedStrip, ScaleOf,
    ScaleValues,
};
pub use parameter::{Orientation, Parameter, Role};
pub use quantization::{FourBit, Quantization, QuantizeOnLoad, Scheme};
pub use registry::{Registry, RegistryError};
pub use sentencepiece::{Piece, PieceKind, SentencePiece};
