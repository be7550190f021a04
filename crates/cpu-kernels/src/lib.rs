//! CPU kernels for transformer training on plain slices: packed GEMM with low-rank columns, attention, norms,
//! log-probability head, AdamW, and the Newton–Schulz iteration of Muon ([`orthogonal`]).
//!
//! Every kernel takes and returns `f32` (weights at rest may be bfloat16 or half), runs on rayon's current pool,
//! and gives the same bits whatever the number of threads. Products multiply `f32`, or operands rounded to bfloat16 with
//! sums in `f32` ([`Compute`]). AVX-512 (with its dot products of bfloat16, or with AMX), AVX2 or plain code is chosen at run time
//! ([`isa`]).
//!
//! A LoRA layer after a norm, forward and backward:
//!
//! ```
//! use burnish_cpu_kernels::{Compute, Input, Linear, LinearPart, LinearParts, LowRank, Wanted, Weight};
//! use burnish_cpu_kernels::{linears_backward, linears_forward};
//!
//! let (tokens, dim, out, rank) = (3, 4, 2, 1);
//! let (x, gamma, weight) = (vec![0.5; tokens * dim], vec![1.0; dim], vec![0.25; out * dim]);
//! let (a, b) = (vec![0.1; rank * dim], vec![0.2; out * rank]);
//! let low_rank = LowRank { rank, a: &a, b: &b, b_bias: None, scale: 2.0, dropout: None, magnitude: None };
//! let (weight, compute) = (Weight::F32(&weight), Compute::Fp32);
//! let layer = Linear { out, weight, bias: None, low_rank: Some(low_rank), compute };
//! let input = Input::RmsNorm { x: &x, gamma: &gamma, eps: 0.0 };
//!
//! let forward = linears_forward(tokens, dim, input, &[layer], None);
//! // The norm makes ones of x: 4 * 0.25 + 2 * (4 * 0.1) * 0.2.
//! assert!(forward.y.iter().all(|y| (y - 1.16).abs() < 1e-6));
//!
//! let wanted = Wanted {
//!     dx: true,
//!     linears: vec![LinearParts::of(&[LinearPart::LoraA, LinearPart::LoraB])],
//!     ..Default::default()
//! };
//! let dy = vec![1.0; tokens * out];
//! let grad = linears_backward(tokens, dim, input, &[layer], &forward.saved, &dy, &wanted);
//! assert_eq!(grad.linears[0].found(LinearPart::LoraA).map(Vec::len), Some(rank * dim));
//! ```

mod activation;
mod adam;
mod attention;
mod columns;
mod conv_heads;
mod elementwise;
mod embedding;
mod experts;
mod few_bits;
mod gated_norm;
mod head;
mod linear;
mod linear_attention;
mod micro;
mod muon;
mod norm;
mod operand;
pub mod orthogonal;
mod pack;
mod rows;
mod scratch;
mod selective_scan;
mod short_conv;
mod simd;
mod tasks;
mod texts;
mod tiles;
mod xielu;

pub use burnish_core::{Activation, Compute, LinearPart, LinearParts, LoraParts};

pub use adam::{AdamStep, adam_update, adamw_update};
pub use attention::{
    AttentionGrad, AttentionOut, AttentionShape, HeadNorm, KvCache, Rotary, append_kv, attention_backward,
    attention_cached, attention_forward, attention_forward_peaks,
};
pub use columns::{GroupNorm, group_norm_backward, group_norm_forward, permute_columns};
pub use conv_heads::{ConvHeads, ConvHeadsGrad, conv_heads_backward, conv_heads_forward};
pub use elementwise::{
    add_assign, clamp, clamp_backward, scale, scaled_sum, sum_of_squares, to_bf16, to_f16, to_f32,
};
pub use embedding::{embedding_backward, embedding_forward};
pub use experts::{
    ExpertLowRank, ExpertMatrix, Experts, ExpertsGrad, ExpertsOut, ExpertsSaved, ExpertsWanted,
    experts_backward, experts_decode, experts_forward,
};
pub use gated_norm::{GatedNorm, GatedNormGrad, gated_norm_backward, gated_norm_forward};
pub use head::{
    HeadGrad, HeadOptions, HeadStats, HeadWanted, VocabPart, VocabRows, head_backward, head_forward,
    head_fused, head_logits, head_tile,
};
pub use linear::{
    Dropout, Input, Linear, LinearsGrad, LinearsOut, LinearsSaved, LowRank, Magnitude, PackedPart, Wanted,
    Weight, activated_linears_backward_in_place, column_dots, linears_backward, linears_decode,
    linears_forward, linears_unread, scale_columns, squared_column_norms, squared_row_norms,
};
pub use linear_attention::{
    Decays, LinearAttention, LinearAttentionGrad, LinearAttentionShape, STATE_DIM, linear_attention_backward,
    linear_attention_forward,
};
pub use muon::{
    MuonMomentum, muon_adapt, muon_apply, muon_momentum, muon_momentum_bf16, row_squares, scale_rows,
};
pub use norm::{NormGrad, layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward};
pub use selective_scan::{SelectiveScan, SelectiveScanGrad, selective_scan_backward, selective_scan_forward};
pub use short_conv::{ShortConv, ShortConvGrad, short_conv_backward, short_conv_forward};
pub use simd::{Isa, amx_fault, forgo_amx, isa, with_isa};
pub use tasks::on_pool;
pub use tiles::AmxFault;
pub use xielu::{xielu_backward, xielu_forward};
