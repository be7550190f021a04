//! Supervised token losses: `nll` and `dft`.

use burnish_core::{Coded, ErrorCode, UnknownWord, choices};
use burnish_ops::{AnyTensor, Linear, OpsError};

use crate::chunked_nll::fused;
use crate::{Labels, LossOutput, TokenLossOptions, chunked_nll};

choices! {
    /// A loss over target tokens whose gradient coefficient follows from the token's log-probability alone.
    pub enum TokenLoss: "loss_type", UnknownLoss {
        /// Negative log-likelihood: `-sum lp / N` ([`chunked_nll`], which is TRL's name for it too).
        Nll = "nll" listed "chunked_nll",
        /// Dynamic fine-tuning: `-sum sg(exp lp) * lp / N` (Wu et al., arXiv:2508.05629).
        Dft = "dft",
    }
}

/// A `loss_type` that is not a token loss.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown loss_type `{0}`; expected nll, dft or chunked_nll")]
pub struct UnknownLoss(pub String);

impl From<UnknownWord> for UnknownLoss {
    fn from(word: UnknownWord) -> Self {
        Self(word.got)
    }
}

impl TokenLoss {
    /// `d loss / d log_prob` of a token with log-probability `log_prob`, for `denominator` tokens in the step.
    #[must_use]
    pub fn coefficient(self, log_prob: f32, denominator: f64) -> f32 {
        let weight = match self {
            Self::Nll => 1.0,
            Self::Dft => f64::from(log_prob).exp(),
        };
        (-weight / denominator.max(1.0)) as f32
    }

    /// The numerator: what this token adds to the loss before the division.
    #[must_use]
    pub fn numerator(self, log_prob: f32) -> f64 {
        let lp = f64::from(log_prob);
        match self {
            Self::Nll => -lp,
            Self::Dft => -lp.exp() * lp,
        }
    }
}

/// A token loss of its kind: [`chunked_nll`], or the same with another numerator.
///
/// # Errors
/// As [`chunked_nll`].
pub fn token_loss(
    kind: TokenLoss,
    hidden: impl Into<AnyTensor>,
    head: &Linear,
    labels: impl Into<Labels>,
    options: &TokenLossOptions<'_>,
) -> Result<LossOutput, OpsError> {
    match kind {
        TokenLoss::Nll => chunked_nll(hidden, head, labels, options),
        TokenLoss::Dft => fused(kind, hidden.into(), head, labels.into(), options),
    }
}

impl Coded for UnknownLoss {
    fn code(&self) -> ErrorCode {
        ErrorCode::BadValue
    }
}
