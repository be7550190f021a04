//! Tensor parallelism: the ranks of one mesh axis share each layer, on the same rows of data.
//!
//! [`Linear`] stands in a module where `burn::nn::Linear` stood, and [`parallelize()`] divides the layers that a [`TpPlan`]
//! names. The module's own forward is then that of all ranks together, and every gradient is complete:
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Tensor};
//! use burnish_tp::{Linear, Style, Tp, TpPlan, comm::local, gather, parallelize};
//!
//! #[derive(Module, Debug)]
//! struct Mlp { up: Linear, down: Linear }
//!
//! let plan = TpPlan::new().with("up", Style::Colwise).with("down", Style::Rowwise);
//! local::run(2, |world| {
//!     let (tp, device) = (Tp::new(&world.group()), Device::flex().autodiff());
//!     let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device).into();
//!     let mlp = parallelize(Mlp { up: linear(4, 6), down: linear(6, 4) }, &plan, &tp)?;
//!     assert_eq!(mlp.up.weight.dims(), [4, 3]); // this rank's columns
//!     let forward = |mlp: &Mlp| mlp.down.forward(mlp.up.forward(Tensor::<2>::ones([3, 4], &device)).tanh());
//!     let together = forward(&mlp);
//!     let alone = forward(&gather(mlp, &tp)?);
//!     assert!((together - alone).abs().max().into_scalar::<f32>() < 1e-5);
//!     tp.check()
//! }).into_iter().for_each(|rank| rank.unwrap().unwrap());
//! ```
//!
//! Below that, for a framework of one's own:
//!
//! * [`TpPlan`] and [`Style`]: which layers are divided how, as data, in Transformers' spelling.
//! * [`HeadSplit`]: attention heads over the ranks; with [`Split`] the one dimension that a layer divides.
//! * [`TpLayout`]: the [`Layout`] of a tensor of a divided layer (weight, bias, adapter factors, magnitude), from its style
//!   and its global shape, and what a rank's [`Gradient`] of it is.
//! * [`Tp`]: a rank's handle. [`copy_to_tp`](Tp::copy_to_tp) before and [`reduce_from_tp`](Tp::reduce_from_tp) after divided layers are operations under autodiff,
//!   also inside a segment that is run again; so are [`gather_columns`](Tp::gather_columns),
//!   [`scatter_columns`](Tp::scatter_columns) and the vocabulary-parallel [`embedding`](Tp::embedding).
//! * [`TokenDispatcher`]: the other way to share a mixture of experts, between ranks with tokens of their own: those are
//!   sent to the ranks that have their experts, and back.
//! * [`Tp::sum_partial`]: gradients that are addends, summed once per step.
//! * [`TrafficEstimate`]: what all that will move, to the element.
//! * [`Tp::columns_to_rows`] and back: files hold rows of the whole matrix, whatever the ranks were.
//!
//! A row-parallel layer runs on a rank's columns together with its adapter, and one sum serves both:
//! `sum over ranks of (x W^T + s x A^T B^T)`. The gradients of what is replicated in it (`B`, biases), and of what is
//! replicated in front of a column-parallel layer (`A`, a norm), are therefore addends: [`Gradient::Partial`]. Where a step
//! has few tokens [`AdapterReduce`] sums the adapter's activations of rank r instead.
//!
#![cfg_attr(docsrs, feature(doc_cfg))]

mod adapters;
mod columns;
mod error;
mod handle;
mod heads;
mod index_select;
mod layout;
mod linear;
mod mappings;
mod parallelize;
mod partial;
mod plan;
mod reshard;
mod style;
mod token_dispatcher;
mod traffic_estimate;
mod vocabulary;

pub use burnish_core::layout::{Layout, LayoutError, Split};

pub use adapters::{AdapterReduce, AdapterSum, AdapterSums};
pub use burnish_comm as comm;
pub use burnish_core::LinearPart;
pub use error::TpError;
pub use handle::Tp;
pub use heads::{HeadSplit, RankHeads};
pub use layout::{Gradient, TpLayout};
pub use linear::Linear;
pub use parallelize::{gather, parallelize};
pub use partial::{PARTIAL_BUCKET, PartialGrad};
pub use plan::TpPlan;
pub use style::Style;
pub use token_dispatcher::TokenDispatcher;
pub use traffic_estimate::TrafficEstimate;
pub use vocabulary::LocalIds;
