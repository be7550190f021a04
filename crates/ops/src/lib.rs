//! Autodiff building blocks on Burn: what a transformer needs beyond Burn's own operations.
//!
//! * [`AnyTensor`]: a float tensor whose rank is a run-time fact.
//! * [`apply`]: the one mechanism by which operations are recorded on Burn's tape, without naming a backend.
//! * [`segment()`]: a piece of a model that saves only its inputs and is run again in backward; recomputation, sharded
//!   weights and chunking are this.
//! * [`Parameters`]: reading gives the whole tensor and a gradient has a place to go, on one rank and on many.
//! * Fused operations, one each so that collectives fit between them: [`linears`] (norm or activation in, low-rank
//!   adapters, residual out), [`attention()`], [`rms_norm()`], [`layer_norm()`], [`embedding()`], [`head_loss`], [`head_nll`] and
//!   [`head_log_probs`], the last three also of a head that is split over the vocabulary ([`VocabShard`]).
//!   On the CPU they run on `burnish-cpu-kernels`, elsewhere on lean bodies of Burn operations.
//! * [`route`] and [`experts()`]: a mixture of experts over exactly the rows that a router sent there; [`RouterBalance`].
//! * [`orthogonalize`]: the nearest semi-orthogonal matrices, and the other parts of Muon; [`adam_step`].
//! * [`KvCache`]: attention of new tokens over what a sequence has already said.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burnish_ops::{AnyTensor, Linear, LinearInput, linears};
//!
//! let device = Device::flex();
//! let x = AnyTensor::new(Tensor::<2>::ones([2, 3], &device)).leaf();
//! let w = AnyTensor::new(Tensor::<2>::ones([4, 3], &device)).leaf();
//! let y = linears(&LinearInput::Plain(x), &[Linear::new(w.clone())], None).unwrap();
//! let mut gradients = y.rank::<2>().unwrap().sum().backward();
//! assert_eq!(w.take_gradient(&mut gradients).unwrap().to_f32(), vec![2.0; 12]);
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(any(feature = "flex", feature = "cube")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        unused_variables,
        reason = "without a backend nothing is recorded"
    )
)]

mod adamw;
mod attention;
mod bytes;
mod cache;
mod check;
mod clamp;
mod column_norm;
mod columns;
mod conv_heads;
#[cfg(feature = "cube")]
#[doc(hidden)]
pub mod cube;
mod custom;
mod dispatch;
mod documents;
mod embedding;
mod error;
mod experts;
#[cfg(feature = "flex")]
mod flex;
mod gated_norm;
#[doc(hidden)]
pub mod gpu;
mod head;
mod head_weights;
mod held;
mod joined;
mod kept;
mod linear;
mod linear_attention;
mod magnitude;
mod muon;
mod norm;
mod once_for;
mod orthogonal;
mod packed;
mod parameters;
mod recomputed;
mod recurrent_states;
#[cfg(feature = "reference")]
pub mod reference;
#[cfg(feature = "cube")]
mod resting_logits;
mod router;
mod scaled_sum;
mod segment;
mod selective_scan;
mod sequence_rows;
mod short_conv;
mod split_columns;
#[cfg(feature = "cube")]
mod step_memory;
mod tensor;
mod texts;
mod xielu;

pub use adamw::{
    Adam, AdamItem, AdamState, accumulate, accumulate_all, adam_step, adam_steps, sum_of_squares,
    sums_of_squares,
};
pub use attention::{AttentionShape, HeadNorm, Rotary, attention, attention_with_peaks};
pub use bytes::{Elements, Scalar};
pub use cache::{KvCache, together};
pub use clamp::clamp;
pub use column_norm::{ColumnNorm, norm_columns};
pub use columns::{ColumnOrder, permute_columns};
pub use conv_heads::{UnitHeads, conv_heads};
pub use custom::{BackwardFn, MOST_INPUTS, apply};
pub use documents::Documents;
pub use embedding::{EmbeddingLowRank, embedding, select_rows};
pub use error::OpsError;
pub use experts::{ExpertLayer, ExpertLowRank, Experts, WIDENED_TOGETHER, experts, experts_decode};
pub use gated_norm::{GroupNorm, gated_norm};
#[cfg(feature = "cube")]
pub use head::resting_logits;
pub use head::{
    AcrossVocab, Coefficient, HeadOptions, LaterStats, TokenStats, VocabShard, head_log_probs, head_logits,
    head_loss, head_nll,
};
pub use head_weights::{HeadSteps, head_weights};
pub use held::held;
pub use joined::{all_joined, joined};
pub use linear::{Dropout, Linear, LinearInput, LowRank, linears, linears_decode, linears_unread};
pub use linear_attention::{LinearAttentionShape, channel_linear_attention, linear_attention};
pub use magnitude::{Magnitude, column_norms, row_norms, squared_column_norms, squared_row_norms};
pub use muon::{Momentum, Noise, muon_adapt, muon_apply, muon_momentum, row_squares, scale_rows, signs};
pub use norm::{layer_norm, rms_norm};
pub use orthogonal::{Form, NewtonSchulz, Polynomials, Stacked, orthogonalize};
pub use parameters::{Parameters, recorded};
pub use recomputed::{Value, recomputed};
pub use recurrent_states::RecurrentStates;
#[cfg(feature = "cube")]
pub use resting_logits::{LogitBlock, RestingLogits};
pub use router::{RouterBalance, Routing, TokenExperts, route};
pub use scaled_sum::scaled_sum;
pub use segment::{NoWeights, Run, Weights, runs_again, segment, segment_keeping};
pub use selective_scan::{SelectiveScan, selective_scan};
#[cfg(feature = "cube")]
pub use step_memory::StepMemory;
pub use tensor::{AnyTensor, host_device, on_host};

#[cfg(feature = "cube")]
pub use crate::gpu::{PlacedRows, StepRows};
pub use burnish_core::Activation;
#[cfg(feature = "flex")]
use burnish_core::Dtype;
#[cfg(feature = "cube")]
pub use burnish_gpu_kernels::{NotRecorded, Recording, Rehearsal};
pub use sequence_rows::SequenceRows;
pub use short_conv::{ConvCache, short_conv};
pub use split_columns::split_columns;
pub use xielu::xielu;
