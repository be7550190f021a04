//! Muon and AdamW on any Burn module, as Burn's own `ModuleOptimizer`.
//!
//! [`OptimizerConfig::init`] walks a module and gives every parameter the optimizer that it is for: matrices to Muon,
//! all else to AdamW, norms and biases without weight decay. What comes out is Burn's type, so that Burn's `Learner`,
//! its learning-rate schedulers and its records work with it. The steps are those of [`Optimizer`](crate::Optimizer):
//! state in f32 whatever the parameter's dtype is, and an f32 master over a narrower parameter.
//!
//! ```
//! use burn::module::{Module, Param};
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//! use burnish_optim::module::OptimizerConfig;
//! use burnish_optim::{AdamWOptions, MuonOptions, OptimizerKind, Orientation, Role};
//!
//! #[derive(Module, Debug)]
//! struct Net { up: Linear, mix: Param<Tensor<2>>, head: Linear }
//!
//! let device = Device::flex().autodiff();
//! let linear = |input, out| LinearConfig::new(input, out).init(&device);
//! let mix = Param::from_tensor(Tensor::ones([8, 8], &device));
//! let net = Net { up: linear(4, 8), mix, head: linear(8, 2) };
//! // Whether `mix` is `[in, out]` is for its owner to say, and that the last layer is a head.
//! let config = OptimizerConfig::muon(MuonOptions::default(), AdamWOptions::default())
//!     .orientation("mix", Orientation::InOut)
//!     .role("head.weight", Role::Head);
//! assert_eq!(config.assignment(&net)?.kind("up.weight"), Some(OptimizerKind::Muon));
//! assert_eq!(config.assignment(&net)?.kind("head.weight"), Some(OptimizerKind::AdamW));
//! let optimizer: burnish_optim::module::ModuleOptimizer = config.init(&net)?;
//! # Ok::<(), burnish_optim::OptimError>(())
//! ```
//!
//! # What a module declares
//!
//! Burn's `Linear` holds `[in, out]`, and so do the factors of its `LoraAdapter`: that is known
//! ([`burnish_core::BurnParameter`]). A matrix in a struct of your own may be either, and Muon does not guess:
//! [`OptimizerConfig::orientation`] declares it, or [`OptimizerConfig::role`] says that it is no matrix. The output
//! projection of a language model is a `Linear` like any other to Burn; AdamW is better for it:
//! `.role("head", Role::Head)`.
//!
//! # What Burn's trait cannot say
//!
//! Burn steps one tensor at a time. A gradient that is not finite therefore leaves its own parameter as it was (weights
//! and state), where [`Gradients`](crate::Gradients) skips the whole step; and Burn's clipping is per tensor, where
//! [`Gradients::clip`](crate::Gradients::clip) has the global norm. `burnish_zero::Wrap` has both on any Burn module, on
//! one rank too.

mod adam;
mod muon;
mod record;
mod survey;
mod tensor;

use burn::module::{Module, ParamGroup};
use burnish_core::{Orientation, Parameter, Registry, Role};

pub use burn_optim::{GradientsParams, ModuleOptimizer};

use crate::muon::Matrix;
use crate::{AdamWOptions, Assignment, MuonOptions, OptimError};

/// Which optimizer a module's parameters get.
///
/// Patterns are paths as Burn's traversal has them (`layers.0.weight`), where `*` stands for any one component; a
/// pattern covers the parameter at that path and all below it.
#[derive(Clone, Debug)]
pub struct OptimizerConfig {
    adam: AdamWOptions,
    muon: Option<MuonOptions>,
    roles: Vec<(String, Role)>,
    orientations: Vec<(String, Orientation)>,
}

impl OptimizerConfig {
    /// AdamW for all parameters.
    #[must_use]
    pub fn adamw(options: AdamWOptions) -> Self {
        Self { adam: options, muon: None, roles: Vec::new(), orientations: Vec::new() }
    }

    /// Muon for matrices, AdamW for all else. At [`Scale::MatchRmsAdamw`](crate::Scale), the default, one learning rate
    /// fits both; for two, Burn's learning rates go by [`ParamGroup`], and [`matrices`](Self::matrices) is Muon's.
    #[must_use]
    pub fn muon(muon: MuonOptions, adam: AdamWOptions) -> Self {
        Self { muon: Some(muon), ..Self::adamw(adam) }
    }

    /// What parameters are for, where their place in the module does not tell.
    #[must_use]
    pub fn role(mut self, pattern: impl Into<String>, role: Role) -> Self {
        self.roles.push((pattern.into(), role));
        self
    }

    /// How matrices lie that are not Burn's own modules'.
    #[must_use]
    pub fn orientation(mut self, pattern: impl Into<String>, orientation: Orientation) -> Self {
        self.orientations.push((pattern.into(), orientation));
        self
    }

    /// Burn's optimizer for the parameters of `module` that require a gradient now.
    ///
    /// # Errors
    /// If a pattern matches nothing, a matrix for Muon does not declare its orientation, Muon has nothing to do, or a
    /// hyper-parameter is out of range.
    pub fn init<M: Module>(&self, module: &M) -> Result<ModuleOptimizer, OptimError> {
        let registry = self.registry(module)?;
        if let Some(muon) = &self.muon {
            muon.check_on(&registry)?;
        }
        let still: Vec<String> =
            registry.trainable().filter(|p| !p.decays()).map(|p| p.name.clone()).collect();
        let mut optimizer = ModuleOptimizer::from(adam::AdamW::new(self.adam)).with_group(
            ParamGroup::from_paths(still),
            adam::AdamW::new(AdamWOptions { weight_decay: 0.0, ..self.adam }),
            None,
        );
        for (options, parameter) in self.taken(&registry) {
            let matrix = Matrix::of(parameter)?;
            let group = ParamGroup::from_path(parameter.name.as_str());
            optimizer = optimizer.with_group(group, muon::Muon::new(*options, matrix), None);
        }
        Ok(optimizer)
    }

    /// The parameters that Muon updates, for a learning rate of their own.
    ///
    /// # Errors
    /// If a pattern matches nothing.
    pub fn matrices<M: Module>(&self, module: &M) -> Result<ParamGroup, OptimError> {
        let registry = self.registry(module)?;
        Ok(ParamGroup::from_paths(self.taken(&registry).map(|(_, p)| p.name.clone()).collect::<Vec<_>>()))
    }

    /// Which optimizer updates which parameter, and why.
    ///
    /// # Errors
    /// If a pattern matches nothing.
    pub fn assignment<M: Module>(&self, module: &M) -> Result<Assignment, OptimError> {
        Ok(Assignment::new(&self.registry(module)?, self.muon.as_ref()))
    }

    fn taken<'a>(&'a self, registry: &'a Registry) -> impl Iterator<Item = (&'a MuonOptions, &'a Parameter)> {
        self.muon.iter().flat_map(|muon| {
            registry.iter().filter(|p| muon.takes(p)).map(move |parameter| (muon, parameter))
        })
    }

    /// The module's parameters by path, as they declare themselves and as this says.
    fn registry<M: Module>(&self, module: &M) -> Result<Registry, OptimError> {
        let mut registry = survey::parameters(module);
        for (pattern, role) in &self.roles {
            survey::matching(&mut registry, pattern)?.for_each(|p| p.role = *role);
        }
        for (pattern, orientation) in &self.orientations {
            survey::matching(&mut registry, pattern)?.for_each(|p| p.orientation = *orientation);
        }
        Ok(registry)
    }
}
