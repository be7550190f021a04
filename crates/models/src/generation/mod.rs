//! Batched text generation over a cache of keys and values.

pub(crate) mod continuous_batch;
pub(crate) mod conversation;
pub(crate) mod decoding;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod drawn;
mod exponentials;
pub(crate) mod generate;
pub(crate) mod generation_config;
pub(crate) mod int8;
mod logits;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod recorded;
pub(crate) mod sample;
mod sequences;
