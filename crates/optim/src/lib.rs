//! Muon and AdamW with declared state: on any Burn module, and as a pipeline of typed steps over ranks.
//!
//! On a Burn module, [`module::OptimizerConfig`] makes Burn's own `ModuleOptimizer`, for Burn's training step or its
//! `Learner`:
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Tensor};
//! use burnish_optim::module::{GradientsParams, OptimizerConfig};
//! use burnish_optim::{AdamWOptions, MuonOptions};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(3, 2).init(&device);
//! let config = OptimizerConfig::muon(MuonOptions::default(), AdamWOptions::default());
//! let mut optimizer = config.init(&model)?;
//! let mut losses = Vec::new();
//! for _ in 0..50 {
//!     let loss = (model.forward(Tensor::<2>::ones([4, 3], &device)) - 2.0).square().mean();
//!     let gradients = GradientsParams::from_grads(loss.backward(), &model);
//!     model = optimizer.step(0.05, model, gradients);
//!     losses.push(loss.into_scalar::<f32>());
//! }
//! assert!(losses[49] < 0.2 * losses[0], "{losses:?}");
//! # Ok::<(), burnish_optim::OptimError>(())
//! ```
//!
//! # The step
//!
//! Where gradients are summed over ranks, a step is `Reduced -> Unscaled or Skipped -> Clipped -> Applied`: each arrow
//! consumes the state before it, so clipping cannot come after the update and a skipped step changes nothing. An
//! optimizer declares its slots and their dtypes ([`SlotSpec`]); a file or a gradient of another dtype never changes them.
//!
//! [`Optimizer`] is AdamW alone, another rule by its name ([`OptimizerName::rule`]), or Muon for matrices
//! ([`MuonOptions`]) and AdamW for the rest. Which is which goes by role ([`Assignment`]), and which dimension is the fan out by the parameter's [`Orientation`]. Matrices may lie in pieces
//! over ranks: a [`MatrixGather`] brings them together. [`Schedule`] gives the learning rate of each step.

mod adam;
mod arguments;
mod assignment;
mod error;
mod learning_rates;
mod loss_scaler;
mod matrix_gather;
pub mod module;
mod muon;
mod optimizer;
mod optimizer_name;
mod rule;
mod schedule;
mod slot;
mod step;

pub use burnish_core::{Dtype, Orientation, Parameter, Registry, Role};
pub use burnish_ops::{AnyTensor, Form, NewtonSchulz, Polynomials};

pub use adam::{AdamW, AdamWOptions};
pub use arguments::Arguments;
pub use assignment::{Assigned, Assignment, OptimizerKind};
pub use error::OptimError;
pub use learning_rates::LearningRates;
pub use loss_scaler::LossScaler;
pub use matrix_gather::{LocalMatrices, MatrixGather};
pub use muon::{MomentumDtype, MuonOptions, Scale, Variant};
pub use optimizer::Optimizer;
pub use optimizer_name::{OptimizerName, RuleInputs};
pub use rule::UpdateRule;
pub use schedule::{Schedule, ScheduleKind, ScheduleState};
pub use slot::{Declared, SlotScope, SlotSpec, SlotTensor, SlotValue};
pub use step::{Applied, Clipped, Gradients, ParamStorage, Reduced, Unscale, Unscaled, all_here};
