//! The log-probability head: hidden states to per-token statistics and gradients, tile by tile.
//!
//! With `z = softcap(logit_scale·(W h + bias + low-rank part))/temperature` and `p = softmax(z)`, the gradient of
//! `g_lp·log p_t + g_h·H` is `dz_j = g_lp·(1[j=t] - p_j) - g_h·p_j·(log p_j + H)`.
//! Of a smoothed target `(1 - s)·1[j=t] + s/vocabulary` stands for `1[j=t]`.
//!
//! A frozen head keeps no logits at all: a run of the vocabulary is multiplied back at once (`sweep`).
//!
//! A head may be split over the vocabulary ([`VocabRows`]): then `p` and `H` are those of all ranks' logits, and a rank's
//! gradients of hidden states and of `A` are its addends to theirs.

mod options;

mod vocab;

mod call;

mod shard;

mod forward;

mod gradient;

mod sweep;

mod backward;

#[cfg(test)]
mod tests;

pub use backward::{head_backward, head_fused};
pub use burnish_core::HeadOptions;
pub use call::head_tile;
pub use forward::{head_forward, head_logits};
pub use options::{HeadGrad, HeadStats, HeadWanted};
pub use shard::{VocabPart, VocabRows};
