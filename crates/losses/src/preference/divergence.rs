//! Scores of a log-ratio under an f-divergence (Wang et al., "Beyond reverse KL", arXiv:2309.16240).

use burnish_core::choices;

use crate::LossError;
use crate::dual::Dual;

/// Beyond this `(a - 1) r` is cut, so that its exponential stays finite in f32.
const LARGEST_EXPONENT: f64 = 80.0;

choices! {
    /// `f_divergence_type`: the score `f'(t)` of a ratio `t = e^r`.
    #[derive(Default)]
    pub enum Divergence: "f_divergence_type", LossError {
        /// `r`.
        #[default]
        ReverseKl = "reverse_kl",
        /// `1 - e^-r`.
        ForwardKl = "forward_kl",
        /// `ln 2 + ln sigmoid(r)`.
        Js = "js_divergence",
        /// `(e^((a-1) r) - 1) / (a-1)`, a being `f_alpha_divergence_coef`; `r` for a = 1.
        Alpha = "alpha_divergence",
    }
}

impl Divergence {
    /// The score of a ratio; `coefficient` is a.
    pub(crate) fn score(self, ratio: Dual, coefficient: f64) -> Dual {
        match self {
            Self::ReverseKl => ratio,
            Self::ForwardKl => -(-ratio).exp() + 1.0,
            Self::Js => ratio.log_sigmoid() + 2f64.ln(),
            Self::Alpha if (coefficient - 1.0).abs() < 1e-6 => ratio,
            Self::Alpha => {
                let a = coefficient - 1.0;
                ((ratio * a).at_most(LARGEST_EXPONENT).exp() - 1.0) * (1.0 / a)
            }
        }
    }
}
