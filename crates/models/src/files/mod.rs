//! From a Hugging Face folder to parameters on ranks, and back to files.

pub(crate) mod adapter_by_expert;
pub(crate) mod export;
pub(crate) mod folder;
pub(crate) mod gguf;
pub(crate) mod load;
pub(crate) mod loftq;
pub(crate) mod mixed_adapters;
pub(crate) mod packed;
pub(crate) mod pass_work;
pub(crate) mod pieces;
pub(crate) mod qk_clip;
pub(crate) mod start_from_rows;
pub(crate) mod tp_traffic;
