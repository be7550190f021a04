//! Your own Burn module on many ranks: any `#[derive(Module)]`, in a loop of your own.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//! use burnish_zero::Stage;
//! use burnish_zero::comm::local;
//! use burnish_zero::module::{ModuleError, Wrap};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     hidden: Linear,
//!     out: Linear,
//! }
//!
//! impl Net {
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.out.forward(self.hidden.forward(x).tanh())
//!     }
//! }
//!
//! // What one rank does. Here ranks are threads; over MPI they are processes, and the program is the same.
//! let ranks = local::run(2, |world| {
//!     let device = Device::flex().autodiff();
//!     let net = Net {
//!         hidden: LinearConfig::new(3, 8).init(&device),
//!         out: LinearConfig::new(8, 1).init(&device),
//!     };
//!     let mut model = Wrap::stage(Stage::Two).clip(1.0).over(&world.group(), net)?;
//!
//!     let mut losses = Vec::new();
//!     for _ in 0..20 {
//!         // This rank's share of the batch.
//!         let x = Tensor::<2>::full([4, 3], 1.0 + world.rank() as f32, &device);
//!         let pass = model.micro_batch(true)?;
//!         let loss = (pass.forward(x) - 0.5).square().mean();
//!         losses.push(pass.mean(loss.clone().into_scalar::<f32>().into())?);
//!         pass.backward(loss)?;
//!         model.step(0.01)?;
//!     }
//!     assert!(losses[19] < losses[0]);
//!     Ok::<_, ModuleError>(model.read("out.weight")?.to_f32())
//! });
//! let weights: Vec<_> = ranks.into_iter().map(|rank| rank.unwrap().unwrap()).collect();
//! assert_eq!(weights[0], weights[1]);
//! ```
//!
//! # What happens
//!
//! [`Wrap::over`] takes the module apart: every float parameter goes to a [`ShardedParams`](crate::ShardedParams) under its path
//! (`hidden.weight`), with what the module says of it: shape, dtype, whether it requires a gradient. Ranks compare what
//! they have, by a digest, and then begin with the values of rank 0 ([`Initial`]). Integer and boolean parameters stay
//! in the module and must be equal everywhere; the running statistics of `BatchNorm` stay each rank's own.
//!
//! [`Wrapped::micro_batch`] gives a [`Pass`]: the module with its present values, on the tape. Compute a loss with it,
//! and end it with [`Pass::backward`], or with [`Pass::finish`] and the gradients that Burn gave you. Several passes
//! before a step accumulate; say `last` in the last one. [`Wrapped::step`] then sums over ranks, clips, updates this
//! rank's rows and gives them to the others. The next pass has the new values.
//!
//! All ranks make the same calls in the same order. A rank that fails should say so with
//! [`World::fail`](burnish_comm::World::fail), or the others wait until their deadline.
//!
//! * **Averages.** Gradients are averaged over ranks and micro-batches, which is right where each loss is a mean over as
//!   many samples. Where shares differ, divide by the number of samples of the whole step and use [`Reduce::Sum`].
//! * **Frozen parameters** (no `require_grad`) are synchronized once and never reduced. **Unused** ones, on one rank or
//!   on all, are no trouble: where no rank has a gradient, nothing is updated, not even by weight decay.
//! * **Tied parameters** are clones of one `Param` (they share its id): one value, one gradient, one update.
//! * **Dtypes** may be mixed; each parameter keeps its own. bf16 and f16 ones are updated in f32 masters.
//! * **Weight decay** is not for norms and biases: [`Wrap::role`] corrects what shapes and names do not tell.
//! * **Not a number** in a gradient of any rank skips the step on all of them ([`Stepped::Skipped`]).
//!
//! # Stage 3
//!
//! At stages 0 to 2 the module is used as it is. At stage 3 every rank keeps its rows of the weights only. Without
//! further ado a pass gathers them all, so that they are whole for as long as the pass lasts. Two ways gather less:
//!
//! * [`Wrap::gather_on_use`]: a parameter is whole while an operation of the module's own forward uses it, and again where
//!   backward needs it. Nothing is rewritten; activations are kept.
//! * Blocks: name them and run each through the pass. Weights and activations are there for one block at a time.
//!
//! ```
//! # use burn::module::Module;
//! # use burn::nn::{Linear, LinearConfig};
//! # use burn::tensor::{Device, Tensor};
//! # use burnish_zero::{Policy, Stage};
//! # use burnish_zero::comm::local;
//! # use burnish_zero::module::{ModuleError, Pass, Wrap};
//! #[derive(Module, Debug)]
//! struct Deep {
//!     inward: Linear,
//!     layers: Vec<Linear>,
//! }
//!
//! fn forward(pass: &Pass<'_, Deep>, x: Tensor<2>) -> Result<Tensor<2>, ModuleError> {
//!     let mut x = pass.inward.forward(x);
//!     for layer in &pass.layers {
//!         x = pass.block(layer, x, |layer, x| layer.forward(x).tanh())?;
//!     }
//!     Ok(x)
//! }
//!
//! # let ranks = local::run(2, |world| {
//! # let device = Device::flex().autodiff();
//! # let linear = |a, b| LinearConfig::new(a, b).init(&device);
//! # let deep = Deep { inward: linear(2, 4), layers: (0..3).map(|_| linear(4, 4)).collect() };
//! # let group = world.group();
//! let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
//! let mut model = Wrap::new(policy).block("layers.*").over(&group, deep)?;
//! let pass = model.micro_batch(true)?;
//! let loss = forward(&pass, Tensor::ones([2, 2], &device))?.square().mean();
//! pass.backward(loss)?;
//! model.step(0.01)?;
//! # assert_eq!(model.store().saved_rows(model.registry().index_of("layers.0.weight").unwrap())?.0.len(), 2);
//! # Ok::<_, ModuleError>(())
//! # });
//! # ranks.into_iter().for_each(|rank| rank.unwrap().unwrap());
//! ```
//!
//! A block runs without a tape in forward and again, with one, in backward: activations inside it are not kept, its
//! gradients go to the ranks that own the rows as soon as they are there, and its weights exist while it runs. It must
//! therefore be a function of its inputs and weights. Its dropout repeats: a run of a block that has training flags on
//! seeds Burn's generator ([`Wrap::seed`]), in forward and again in backward, while no other block of the process draws;
//! what another thread draws outside blocks meanwhile is an error of the pass, and such a block must not communicate.
//! Batch normalisation that trains is refused in blocks, since its statistics would move twice. The
//! module that a pass gives has placeholders where blocks have parameters; using one is a panic that names it. What is
//! outside blocks (embedding, head) is gathered when a pass begins and let go when it ends. A program with blocks runs
//! at every stage.
//!
//! # More
//!
//! * [`Wrapped::evaluation`] is a pass outside autodiff with training flags off; [`Wrapped::module`] the whole module,
//!   to be saved with Burn; [`Wrapped::read`] one parameter.
//! * [`Wrapped::state`] and [`Wrapped::restore`]: the same by rows, for files of one's own.
//! * [`Plan::memory`](crate::Plan::memory) and [`Plan::traffic`](crate::Plan::traffic) of [`Wrapped::plan`] say
//!   beforehand what it costs.
//! * [`Wrap::muon`]: matrices by Muon, each whole on the one rank that owns it.
//! * [`Wrapped::save`] and [`Wrapped::resume`]: a folder of [`burnish_checkpoint`], for any number of ranks and any stage.
//! * Another optimizer: [`Wrapped::store`] is [`burnish_optim::ParamStorage`] over this rank's rows.
//! * The backend is chosen by this crate's features: `flex` (CPU) or `cuda`.

mod checkpoint;
mod error;
mod fill;
mod initial;
mod on_use;
mod pass;
mod replay;
mod survey;
mod wrap;
mod wrapped;

pub use burnish_core::{Dtype, Orientation, Role};
pub use burnish_ops::{AnyTensor, OpsError};

pub use error::ModuleError;
pub use pass::Pass;
pub use wrap::{Initial, Reduce, Wrap};
pub use wrapped::{SavedRows, Stepped, Wrapped};
