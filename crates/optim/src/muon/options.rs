//! `MuonOptions`: momentum, scale, variant and Newton-Schulz settings.

use burnish_core::{Dtype, OptionFaults, Parameter, Registry, Role, choices};
use burnish_ops::NewtonSchulz;

use crate::{OptimError, SlotScope, SlotSpec};

choices! {
    /// What an orthogonalised update is multiplied by, of a matrix with `fan_out` outputs and `fan_in` inputs, which the
    /// parameter's [`Orientation`](burnish_core::Orientation) tells apart. (Burn's own Muon takes the dimensions as they come,
    /// which for its `[in, out]` linears is the other way round.)
    #[derive(Default)]
    pub enum Scale: "muon_scale", OptimError {
        /// `0.2 sqrt(max(fan_out, fan_in))` (Liu et al., "Muon is scalable", arXiv:2502.16982): updates as large as AdamW's,
        /// so that its learning rate and weight decay can be kept.
        #[default]
        MatchRmsAdamw = "match_rms_adamw",
        /// `sqrt(max(1, fan_out / fan_in))` (Jordan et al. 2024).
        Original = "original",
        /// `sqrt(fan_out / fan_in)` (Bernstein 2025): the same spectral norm of the change per unit of input at any shape.
        Spectral = "spectral",
    }
}

impl Scale {
    /// The factor.
    ///
    /// ```
    /// use burnish_optim::Scale;
    /// assert_eq!(Scale::Original.factor(400, 100), 2.0);
    /// assert_eq!(Scale::Original.factor(100, 400), 1.0);
    /// assert_eq!(Scale::Spectral.factor(100, 400), 0.5);
    /// assert_eq!(Scale::MatchRmsAdamw.factor(100, 400), 4.0);
    /// ```
    #[must_use]
    pub fn factor(self, fan_out: usize, fan_in: usize) -> f64 {
        let ratio = fan_out as f64 / fan_in as f64;
        match self {
            Self::MatchRmsAdamw => 0.2 * (fan_out.max(fan_in) as f64).sqrt(),
            Self::Original => ratio.max(1.0).sqrt(),
            Self::Spectral => ratio.sqrt(),
        }
    }
}

choices! {
    /// What happens to an update after it is orthogonalised.
    #[derive(Default)]
    pub enum Variant: "muon_variant", OptimError {
        /// Nothing.
        #[default]
        Muon = "muon",
        /// NorMuon (Li et al., arXiv:2510.05491): rows are divided by the root of their running mean square, and the matrix
        /// brought back to its Frobenius norm.
        NorMuon = "normuon",
        /// AdaMuon (Si et al., arXiv:2507.11005): the signs of the update are orthogonalised, elements divided by the root of
        /// their running square, and the matrix brought back to its Frobenius norm.
        AdaMuon = "adamuon",
    }
}

impl Variant {
    /// The shape of its second moment of a matrix `[out, in]` or of experts `[experts, out, in]` (logical); `None` if it
    /// keeps none.
    #[must_use]
    pub fn second_shape(self, shape: &[usize]) -> Option<Vec<usize>> {
        match self {
            Self::Muon => None,
            Self::NorMuon => shape.split_last().map(|(_, rows)| rows.to_vec()),
            Self::AdaMuon => Some(shape.to_vec()),
        }
    }
}

choices! {
    /// How the momentum is kept.
    #[derive(Default)]
    pub enum MomentumDtype: "muon_momentum_dtype", OptimError {
        /// In f32.
        #[default]
        F32 = "float32" | "fp32" | "f32" | "torch.float32",
        /// In bf16, rounded up or down by chance such that the mean is exact: rounded to nearest it would not move when the
        /// gradient is within some percent of it. The chance depends on (seed, step, name, element) alone.
        Bf16Stochastic = "bfloat16" | "bf16" | "torch.bfloat16",
    }
}

impl MomentumDtype {
    /// The slot's dtype.
    #[must_use]
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16Stochastic => Dtype::Bf16,
        }
    }
}

/// Hyper-parameters of Muon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonOptions {
    /// Decay of the momentum.
    pub momentum: f64,
    /// Whether the update looks one step ahead.
    pub nesterov: bool,
    /// Decoupled weight decay: `W *= 1 - muon_lr * weight_decay`, with the rate as it is before [`Scale`].
    pub weight_decay: f64,
    /// How updates are orthogonalised.
    pub newton_schulz: NewtonSchulz,
    /// What they are multiplied by.
    pub scale: Scale,
    /// What happens to them in between.
    pub variant: Variant,
    /// Decay of a variant's second moment.
    pub beta2: f64,
    /// Added to the root of a variant's second moment.
    pub eps: f64,
    /// How the momentum is kept.
    pub momentum_dtype: MomentumDtype,
    /// Seeds the rounding of a bf16 momentum.
    pub seed: u64,
    /// Whether Muon takes the factors of adapters too.
    pub adapters: bool,
}

impl Default for MuonOptions {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.0,
            newton_schulz: NewtonSchulz::default(),
            scale: Scale::default(),
            variant: Variant::default(),
            beta2: 0.95,
            eps: 1e-8,
            momentum_dtype: MomentumDtype::default(),
            seed: 0,
            adapters: false,
        }
    }
}

/// The slot of a variant's second moment.
pub(crate) const SECOND: &str = "second_momentum_buffer";
/// The slot of the momentum.
pub(crate) const MOMENTUM: &str = "momentum_buffer";
/// The slot of an f32 copy of a narrower weight.
pub(crate) const MASTER: &str = "master";

impl MuonOptions {
    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        const SHARE: &str = "a number from 0 to below 1";
        const AT_LEAST_0: &str = "a number that is at least 0";
        let mut faults = OptionFaults::default();
        faults.range("muon_momentum", (0.0..1.0).contains(&self.momentum), self.momentum, SHARE);
        faults.range("muon_beta2", (0.0..1.0).contains(&self.beta2), self.beta2, SHARE);
        faults.range("muon_eps", self.eps.is_finite() && self.eps >= 0.0, self.eps, AT_LEAST_0);
        let decay = self.weight_decay;
        faults.range("weight_decay", decay.is_finite() && decay >= 0.0, decay, AT_LEAST_0);
        let steps = self.newton_schulz.steps;
        faults.range("muon_ns_steps", (1..=100).contains(&steps), steps, "from 1 to 100");
        faults
    }

    /// Whether the numbers make sense.
    pub(crate) fn check(&self) -> Result<(), OptimError> {
        Ok(self.faults().first()?)
    }

    /// The slots of each matrix; `master` only of those stored narrower than f32.
    #[must_use]
    pub fn slots(&self) -> Vec<(SlotSpec, SlotScope)> {
        let slot = |name: &str, dtype, held| (SlotSpec { name: name.to_owned(), dtype }, held);
        let mut all = vec![
            slot(MASTER, Dtype::F32, SlotScope::Rows),
            slot(MOMENTUM, self.momentum_dtype.dtype(), SlotScope::Rows),
        ];
        if self.variant != Variant::Muon {
            all.push(slot(SECOND, Dtype::F32, SlotScope::Whole));
        }
        all
    }

    /// Whether Muon updates a parameter: by its role and its logical shape, never by its name.
    #[must_use]
    pub fn takes(&self, parameter: &Parameter) -> bool {
        let trained = parameter.trainable && parameter.alias_of.is_none();
        trained && self.refusal(parameter).is_none()
    }

    /// Checks the numbers, and that there is something to do among the trained parameters of `registry`.
    pub(crate) fn check_on(&self, registry: &Registry) -> Result<(), OptimError> {
        self.check()?;
        if registry.iter().any(|p| self.takes(p)) {
            return Ok(());
        }
        let adapters = registry.trainable().filter(|p| p.role == Role::Adapter && p.shape.len() == 2);
        Err(OptimError::NothingForMuon { trained: registry.trainable().count(), adapters: adapters.count() })
    }

    /// Why Muon does not take a parameter.
    pub(crate) fn refusal(&self, parameter: &Parameter) -> Option<&'static str> {
        let dims = parameter.shape.len();
        match parameter.role {
            Role::Matrix | Role::Expert if dims == 2 || dims == 3 => None,
            Role::Adapter if dims == 2 && self.adapters => None,
            Role::Adapter if dims == 2 => Some("adapters are left to AdamW"),
            Role::Matrix | Role::Expert | Role::Adapter => Some("not a matrix"),
            Role::Embedding => Some("embedding"),
            Role::Head => Some("output projection"),
            Role::Norm => Some("norm"),
            Role::Bias => Some("bias"),
            Role::Router => Some("router"),
            Role::Convolution => Some("convolution"),
        }
    }
}
