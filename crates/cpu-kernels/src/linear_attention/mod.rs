//! Linear attention with decay and, where asked, the gated delta rule (Yang et al. 2024), forward and backward; state
//! spaces (Mamba-2) are the case without the rule.
//!
//! Per head and token `S = e^decay S + k n^T` with `n = beta (v - S^T k)` (without the delta rule `beta v`), and the output
//! is `S^T q`. Rows are taken in chunks: within one, all of that is a few products of matrices and one triangular system.

mod shape;

mod rows;

mod product;

mod token;

mod chunk;

mod forward;

mod backward;

#[cfg(test)]
mod tests;

pub use backward::{LinearAttentionGrad, linear_attention_backward};
pub use forward::linear_attention_forward;
pub use shape::{LinearAttention, LinearAttentionShape, STATE_DIM};
