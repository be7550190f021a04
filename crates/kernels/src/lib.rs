//! CPU kernels for transformer training on plain slices: packed GEMM with low-rank columns, attention, norms,
//! log-probability head, AdamW.

mod micro;
mod pack;
mod scratch;
mod simd;

pub use simd::{Isa, isa, with_isa};
