//! How Muon is set up.

use std::fmt;
use std::str::FromStr;

use burnish_core::{Dtype, Parameter, Role};
use burnish_ops::NewtonSchulz;

use crate::{Held, OptimError, SlotSpec};

/// What an orthogonalised update is multiplied by, of a matrix with `fan_out` rows and `fan_in` columns: burnish stores
/// weights `[out, in]`. (Burn stores `[in, out]`, and its own Muon takes the ratio the other way round.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// `0.2 sqrt(max(fan_out, fan_in))` (Liu et al., "Muon is scalable", arXiv:2502.16982): updates as large as AdamW's,
    /// so that its learning rate and weight decay can be kept.
    #[default]
    MatchRmsAdamw,
    /// `sqrt(max(1, fan_out / fan_in))` (Jordan et al. 2024).
    Original,
    /// `sqrt(fan_out / fan_in)` (Bernstein 2025): the same spectral norm of the change per unit of input at any shape.
    Spectral,
}

impl Scale {
    const ALL: [Self; 3] = [Self::MatchRmsAdamw, Self::Original, Self::Spectral];

    /// Its name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MatchRmsAdamw => "match_rms_adamw",
            Self::Original => "original",
            Self::Spectral => "spectral",
        }
    }

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

/// What happens to an update after it is orthogonalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    #[default]
    Muon,
    /// NorMuon (Li et al., arXiv:2510.05491): rows are divided by the root of their running mean square, and the matrix
    /// brought back to its Frobenius norm.
    NorMuon,
    /// AdaMuon (Si et al., arXiv:2507.11005): the signs of the update are orthogonalised, elements divided by the root of
    /// their running square, and the matrix brought back to its Frobenius norm.
    AdaMuon,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Muon, Self::NorMuon, Self::AdaMuon];

    /// Its name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Muon => "muon",
            Self::NorMuon => "normuon",
            Self::AdaMuon => "adamuon",
        }
    }

    /// The shape of its second moment of a parameter of this (logical) shape; `None` if it keeps none.
    #[must_use]
    pub fn second_shape(self, shape: &[usize]) -> Option<Vec<usize>> {
        match self {
            Self::Muon => None,
            Self::NorMuon => shape.split_last().map(|(_, rows)| rows.to_vec()),
            Self::AdaMuon => Some(shape.to_vec()),
        }
    }
}

/// How the momentum is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MomentumDtype {
    /// In f32.
    #[default]
    F32,
    /// In bf16, rounded up or down by chance such that the mean is exact: rounded to nearest it would not move when the
    /// gradient is within some percent of it. The chance depends on (seed, step, name, element) alone.
    Bf16Stochastic,
}

impl MomentumDtype {
    const ALL: [Self; 2] = [Self::F32, Self::Bf16Stochastic];

    /// Its name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16Stochastic => "bfloat16",
        }
    }

    /// The slot's dtype.
    #[must_use]
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16Stochastic => Dtype::Bf16,
        }
    }
}

macro_rules! named {
    ($type:ty, $option:literal, $expected:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = OptimError;

            fn from_str(name: &str) -> Result<Self, OptimError> {
                Self::ALL.into_iter().find(|v| v.name() == name).ok_or_else(|| OptimError::UnknownName {
                    option: $option,
                    got: name.to_owned(),
                    expected: $expected,
                })
            }
        }
    };
}

named!(Scale, "muon scale", "match_rms_adamw, original or spectral");
named!(Variant, "muon variant", "muon, normuon or adamuon");
named!(MomentumDtype, "muon momentum dtype", "float32 or bfloat16");

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
    /// Whether the numbers make sense.
    pub(crate) fn check(&self) -> Result<(), OptimError> {
        let share = |option, got: f64| match (0.0..1.0).contains(&got) {
            true => Ok(()),
            false => Err(OptimError::Range { option, got, expected: "at least 0 and below 1" }),
        };
        share("momentum", self.momentum)?;
        share("beta2", self.beta2)?;
        let least = |option, got: f64| match got.is_finite() && got >= 0.0 {
            true => Ok(()),
            false => Err(OptimError::Range { option, got, expected: "at least 0" }),
        };
        least("eps", self.eps)?;
        least("weight_decay", self.weight_decay)?;
        if self.newton_schulz.steps == 0 {
            return Err(OptimError::Range {
                option: "newton_schulz.steps",
                got: 0.0,
                expected: "at least 1",
            });
        }
        Ok(())
    }

    /// The slots of each matrix; `master` only of those stored narrower than f32.
    #[must_use]
    pub fn slots(&self) -> Vec<(SlotSpec, Held)> {
        let slot = |name: &str, dtype, held| (SlotSpec { name: name.to_owned(), dtype }, held);
        let mut all = vec![
            slot(MASTER, Dtype::F32, Held::Rows),
            slot(MOMENTUM, self.momentum_dtype.dtype(), Held::Rows),
        ];
        if self.variant != Variant::Muon {
            all.push(slot(SECOND, Dtype::F32, Held::Whole));
        }
        all
    }

    /// Whether Muon updates a parameter: by its role and its logical shape, never by its name.
    #[must_use]
    pub fn takes(&self, parameter: &Parameter) -> bool {
        let trained = parameter.trainable && parameter.alias_of.is_none();
        trained && self.refusal(parameter).is_none()
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
        }
    }
}
