//! CPU kernels for transformer training on plain slices: packed GEMM with low-rank columns, attention, norms,
//! log-probability head, AdamW.

mod attention;
mod head;
mod linear;
mod micro;
mod pack;
mod rows;
mod scratch;
mod simd;
mod tasks;

pub use attention::{
    AttentionGrad, AttentionOut, AttentionShape, HeadNorm, KvCache, Rotary, append_kv, attention_backward,
    attention_cached, attention_forward,
};
pub use head::{
    HeadGrad, HeadOptions, HeadStats, HeadWanted, head_backward, head_forward, head_fused, head_logits,
};
pub use linear::{
    Dropout, Input, Linear, LinearGrad, LinearsGrad, LinearsOut, LinearsSaved, LowRank, Wanted, WantedLinear,
    Weight, linears_backward, linears_forward,
};
pub use simd::{Isa, isa, with_isa};
