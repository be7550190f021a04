//! ZeRO stages 0 to 3: sharded parameters, gradients and optimizer state, with plans that predict bytes and traffic.
//!
//! [`Wrap`] puts any Burn module on many ranks, in a loop of your own ([`module`] is its page):
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Tensor};
//! use burnish_zero::{Stage, Wrap, comm::local, module::ModuleError, optim::MuonOptions};
//!
//! let ranks = local::run(2, |world| {
//!     let device = Device::flex().autodiff();
//!     let net = LinearConfig::new(4, 4).init(&device); // any `#[derive(Module)]`
//!     let wrap = Wrap::stage(Stage::Three).gather_on_use().muon(MuonOptions::default());
//!     let mut model = wrap.over(&world.group(), net)?;
//!     let mut losses = Vec::new();
//!     for _ in 0..20 {
//!         let pass = model.micro_batch(true)?; // the module, on the tape
//!         let x = Tensor::<2>::full([2, 4], 1.0 + world.rank() as f32, &device); // this rank's rows
//!         let loss = (pass.forward(x) - 1.0).square().mean();
//!         losses.push(pass.mean(loss.clone().into_scalar::<f32>().into())?);
//!         pass.backward(loss)?;
//!         model.step(0.02)?;
//!     }
//!     Ok::<_, ModuleError>(losses[19] < losses[0])
//! });
//! assert!(ranks.into_iter().all(|rank| rank.unwrap().unwrap()));
//! ```
//!
//! Below it, for a framework of one's own:
//!
//! * [`Plan`]: a pure function of a registry, [`Unit`]s, a world size and a [`Policy`] that says which rank owns which
//!   rows (a [`Layout`]), which elements travel together ([`BucketPlan`]), and how many bytes ([`Plan::memory`]) and
//!   elements on the wire ([`Plan::traffic`]) that is, before anything is allocated.
//! * [`ShardedParams`]: a rank's part of the model by that plan. It is [`burnish_ops::Parameters`] to the model (reading a
//!   sharded parameter gathers it, gradients are summed as backward finds them) and [`burnish_optim::ParamStorage`] to the
//!   optimizer. One path for every stage and any number of ranks, also one.
//! * [`MatrixAllToAll`]: for an optimizer that needs whole matrices where no rank has them (stage 3, tensor parallelism), the
//!   pieces' way to one owner each and back. At stages 0 to 2 matrices have owners in the plan ([`Plan::with_owners`]).
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bucket;
mod error;
mod exchange;
pub mod module;
mod ortho_cost;
mod owners;
mod plan;
mod policy;
mod prefetch;
mod rows;
mod store;
mod unit;

pub use burnish_comm as comm;
pub use burnish_core::layout::{Layout, Region};
pub use burnish_optim as optim;

pub use bucket::{BucketPlan, Piece, Purpose};
pub use error::{PlanError, ZeroError};
pub use exchange::{AllToAllPlan, ExchangeError, Matrix, MatrixAllToAll};
pub use module::{Wrap, Wrapped};
pub use owners::{OrthoCost, owners};
pub use plan::{
    BucketRow, Description, GradReduction, Memory, ParamStorageMode, Placement, Plan, TrafficLine, UnitRow,
};
pub use policy::{Policy, ReduceWhen, Stage, UnknownStage};
pub use store::{Kept, ShardedParams, WriteGuard};
pub use unit::Unit;
