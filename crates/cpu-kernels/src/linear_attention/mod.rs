//! Linear attention with decay and, where asked, the gated delta rule (Yang et al. 2024), forward and backward; state
//! spaces (Mamba-2) are the case without the rule.
//!
//! Per head and token `S = e^decay S + k n^T` with `n = beta (v - S^T k)` (without the delta rule `beta v`), and the output
//! is `S^T q`. The decay is of a head, or of each channel of its keys (Kimi Delta Attention, arXiv:2510.26692). Rows are taken in chunks: within one, all of that is a few products of matrices and one triangular system.

mod shape;

mod rows;

mod product;

mod token;

mod channel_rows;

mod channels;

mod chunk;

mod forward;

mod chunk_gradients;

mod backward;

#[cfg(test)]
mod tests;

pub use backward::{LinearAttentionGrad, linear_attention_backward};
pub use forward::linear_attention_forward;
pub use shape::{Decays, LinearAttention, LinearAttentionShape, STATE_DIM};
