//! GPU kernels for transformer training in CubeCL, on CubeCL's memory: products of matrices, norms, gates of feed-forwards,
//! norm and rotation of heads, statistics and gradient of rows of logits, rows by index, routers and rows of experts, weights in fewer bits, AdamW, dropout; with their gradients.
//!
//! A kernel takes a `Client` and `Buffer`s, is queued, and gives buffers back at once: nothing waits for the device.
//! Sums are in f32 and in an order that depends on shapes alone, so bits repeat; no kernel adds atomically. Which runtime
//! (CUDA, WebGPU) is behind the client is not known here, and nothing of Burn is.
//!
//! Each kernel's documentation states what it moves through memory and computes; `w` is the bytes of an element of the
//! dtype that it is given.
//!
//! The kernels are behind the feature `cube`; without it the crate is empty. `cuda` and `wgpu` add a runtime for the tests.
#![cfg(feature = "cube")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(clippy::too_many_arguments, reason = "a kernel's arguments are its buffers and numbers, one by one")]
#![allow(
    clippy::collapsible_if,
    reason = "of two conditions in a kernel the outer one may be the compiler's"
)]
#![allow(clippy::needless_range_loop, reason = "kernels index; nothing iterates in them")]

// The macros' name of it, also where the runtimes' crate of that name is there for tests.
extern crate cubecl_core as cubecl;

mod accumulate;
mod adamw;
mod buffer;
mod cast;
mod conv_heads;
mod draw;
mod dropout;
mod elements;
mod expert_gate;
mod expert_rows;
mod few_places;
mod few_rows;
mod flash;
mod gate;
mod gated_norm;
mod gemm;
mod head_weights;
mod heads;
mod linear_attention;
mod logits;
mod mma;
mod norm;
mod packed;
mod reading;
mod recording;
mod router;
mod row;
mod rows;
mod selective_scan;
mod several;
mod sums;
mod text_plan;
mod tma;
mod wgmma;

pub use accumulate::{TOGETHER as SUMS_TOGETHER, accumulate};
pub use adamw::{Adam, AdamStep, TOGETHER as ADAM_TOGETHER, adam_step};
pub use buffer::{Buffer, FloatType};
pub use cast::{TOGETHER as CAST_TOGETHER, cast, copy, join};
pub use conv_heads::{ConvHeadsGrad, ConvHeadsShape, ConvReaders, conv_heads, conv_heads_backward};
pub use cubecl_core::prelude::Client;
pub use draw::{DRAW_BLOCK, DRAW_NUMBERS, logit_blocks, logits_of_blocks};
pub use dropout::{Mask, dropout};
pub use expert_gate::{ExpertGateBackward, expert_gate, expert_gate_backward};
pub use expert_rows::{ExpertRows, combine_rows, count_experts, sorts_experts};
pub use few_places::{FewMore, FewPlaces, multiply_few_places, multiply_few_places_by_codes};
pub use few_rows::{FewRows, multiply_few_rows};
pub use flash::{
    FlashAttention, FlashGradients, FlashOperands, FlashOutput, FlashPlan, FlashShape, HeadRows, NOWHERE,
    PAGE, PagedRow, PagedRows, attend_pages, copy_pages, duplicate_pages, write_pages,
};
pub use gate::{Gate, gate, gate_backward};
pub use gated_norm::{GatedNormGrad, gated_norm, gated_norm_backward};
pub use gemm::{
    AdapterGradients, AdapterSize, Adapters, Add, Finish, GROUP_ROWS, Gemm, Groups, Matrices, More, Product,
};
pub use head_weights::{HeadSteps, HeadStepsGrad, head_weights, head_weights_backward};
pub use heads::{HeadNorms, HeadShape, Heads, PlacedGrad, Turns, place_heads, place_heads_backward};
pub use linear_attention::{
    ChannelLinearAttention, ChannelLinearAttentionGradients, ChannelLinearAttentionOperands, LinearAttention,
    LinearAttentionGradients, LinearAttentionOperands, LinearAttentionShape, STATE_DIM,
};
pub use logits::{PARTS, RowGradients, Scaling, Smoothing, logit_gradient, logit_parts};
pub use norm::{NormGrad, Normed, rms_norm, rms_norm_backward};
pub use packed::{PackedLayout, widen_rows};
pub use reading::Reading;
pub use recording::{NotRecorded, Recording, Rehearsal};
pub use router::{RouterChoice, choose_experts, choose_experts_backward, chooses_experts, probability_sums};
pub use rows::{NO_ROW, Places, gather_rows, scatter_rows};
pub use selective_scan::{SelectiveScan, SelectiveScanGradients, SelectiveScanOperands};
pub use sums::{over_rows, sum_rows, sums_of_squares};
pub use text_plan::TextPlan;
