//! Who owns which piece of a model: ZeRO stages 0 to 3, with plans that predict.
//!
//! * [`Plan`]: a pure function of a registry, [`Unit`]s, a world size and a [`Policy`] that says which rank owns which
//!   rows ([`Partition`]), which elements travel together ([`BucketPlan`]), and how many bytes ([`Plan::memory`]) and
//!   elements on the wire ([`Plan::traffic`]) that is, before anything is allocated.
//! * [`Store`]: a rank's part of the model by that plan. It is [`burnish_ops::Parameters`] to the model (reading a
//!   sharded parameter gathers it, gradients are summed as backward finds them) and [`burnish_optim::Masters`] to the
//!   optimizer. One path for every stage and any number of ranks, also one.
//! * [`Exchange`]: for an optimizer that needs whole matrices where no rank has them (stage 3, tensor parallelism), the
//!   pieces' way to one owner each and back. At stages 0 to 2 matrices have owners in the plan ([`Plan::with_owners`]).
//!
//! ```
//! use std::convert::Infallible;
//! use std::sync::Arc;
//!
//! use burn::tensor::Device;
//! use burnish_comm::local;
//! use burnish_core::{Dtype, Parameter, Registry, Role};
//! use burnish_ops::{AnyTensor, Parameters};
//! use burnish_optim::{AdamW, AdamWOptions, Unscale};
//! use burnish_zero::{Plan, Policy, Stage, Store, Unit, ZeroError};
//!
//! // One trained matrix over two ranks: three rows and two.
//! let mut registry = Registry::new();
//! let mut matrix = Parameter::new("w", &[5, 2], Role::Matrix, Dtype::F32);
//! matrix.trainable = true;
//! let w = registry.add(matrix).unwrap();
//! let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
//! let plan = Arc::new(Plan::new(&registry, vec![Unit::block("block", vec![w])], 2, policy).unwrap());
//! assert_eq!(plan.rows(w, 0), 0..3);
//!
//! let weights = local::run(2, |world| {
//!     let (group, device) = (world.group(), Device::flex());
//!     plan.agree(&group)?;
//!     let ones = |_, rows: std::ops::Range<usize>| {
//!         Ok::<_, Infallible>(AnyTensor::from_elements(vec![1.0_f32; 2 * rows.len()], &[rows.len(), 2], &device))
//!     };
//!     let store = Store::new(plan.clone(), &group, &device, ones)?;
//!     let mut optimizer = AdamW::new(&store.local_registry(), AdamWOptions::default());
//!
//!     store.begin_micro_batch(true);
//!     let gradient = store.read(w); // forward and backward of 0.5 * w * w
//!     store.accumulate(w, gradient);
//!     store.end_micro_batch()?;
//!     if let Unscale::Finite(gradients) = store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? {
//!         assert_eq!(gradients.norm(), 40_f64.sqrt()); // ten elements, of two ranks each
//!         optimizer.step(gradients.clip(Some(1.0)), &store, 0.1);
//!     }
//!     store.publish()?;
//!     Ok::<_, ZeroError>(store.read(w).to_f32())
//! });
//! for weights in weights {
//!     assert!(weights.unwrap().unwrap().iter().all(|w| (w - 0.9).abs() < 1e-6));
//! }
//! ```

mod bucket;
mod error;
mod exchange;
pub mod module;
mod owners;
mod partition;
mod plan;
mod policy;
mod store;
mod unit;
mod window;

pub use burnish_comm as comm;
pub use burnish_optim as optim;

pub use bucket::{BucketPlan, Piece, Purpose};
pub use error::{PlanError, ZeroError};
pub use exchange::{Exchange, ExchangeError, Matrix, Routes};
pub use module::{Wrap, Wrapped};
pub use owners::{Work, owners};
pub use partition::Partition;
pub use plan::{BucketRow, Description, Memory, Placement, Plan, Residency, Summed, TrafficLine, UnitRow};
pub use policy::{Policy, ReduceWhen, Stage, UnknownStage};
pub use store::{Store, WriteGuard};
pub use unit::Unit;
