//! Scores of a log-ratio under an f-divergence (Wang et al., "Beyond reverse KL", arXiv:2309.16240).

use std::str::FromStr;

use crate::LossError;
use crate::dual::Dual;

/// Beyond this `(a - 1) r` is cut, so that its exponential stays finite in f32.
const LARGEST_EXPONENT: f64 = 80.0;

/// `f_divergence_type`: the score `f'(t)` of a ratio `t = e^r`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Divergence {
    /// `r`.
    #[default]
    ReverseKl,
    /// `1 - e^-r`.
    ForwardKl,
    /// `ln 2 + ln sigmoid(r)`.
    Js,
    /// `(e^((a-1) r) - 1) / (a-1)`; `r` for a = 1.
    Alpha {
        /// `f_alpha_divergence_coef`, a.
        coefficient: f64,
    },
}

impl Divergence {
    /// TRL's default of `f_alpha_divergence_coef`.
    pub const DEFAULT_COEFFICIENT: f64 = 0.5;

    /// The name of the option's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReverseKl => "reverse_kl",
            Self::ForwardKl => "forward_kl",
            Self::Js => "js_divergence",
            Self::Alpha { .. } => "alpha_divergence",
        }
    }

    pub(crate) fn score(self, ratio: Dual) -> Dual {
        match self {
            Self::ReverseKl => ratio,
            Self::ForwardKl => -(-ratio).exp() + 1.0,
            Self::Js => ratio.log_sigmoid() + 2f64.ln(),
            Self::Alpha { coefficient } if (coefficient - 1.0).abs() < 1e-6 => ratio,
            Self::Alpha { coefficient } => {
                let a = coefficient - 1.0;
                ((ratio * a).at_most(LARGEST_EXPONENT).exp() - 1.0) * (1.0 / a)
            }
        }
    }
}

impl FromStr for Divergence {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        match text {
            "reverse_kl" => Ok(Self::ReverseKl),
            "forward_kl" => Ok(Self::ForwardKl),
            "js_divergence" => Ok(Self::Js),
            "alpha_divergence" => Ok(Self::Alpha { coefficient: Self::DEFAULT_COEFFICIENT }),
            _ => Err(LossError::Unknown {
                option: "f_divergence_type",
                got: text.to_owned(),
                expected: "reverse_kl, forward_kl, js_divergence, alpha_divergence".to_owned(),
            }),
        }
    }
}
