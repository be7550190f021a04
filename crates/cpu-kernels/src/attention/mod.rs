//! Causal attention over documents of different lengths, forward, backward and with a cache.

mod shape;

mod rows;
mod softmax;

mod block;

mod forward;

mod backward;

mod cache;
mod cached;
mod sinks;

#[cfg(test)]
mod tests;

pub use backward::attention_backward;
pub use cache::KvCache;
pub use cached::{append_kv, attention_cached};
pub use forward::{attention_forward, attention_forward_peaks};
pub(crate) use rows::{RowMap, apply, gradient};
pub(crate) use softmax::tanh;

pub use shape::{AttentionGrad, AttentionOut, AttentionShape, HeadNorm, Rotary};
