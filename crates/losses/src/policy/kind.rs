//! The eight losses of a token and the two levels of importance sampling.

use std::str::FromStr;

use crate::LossError;

/// `loss_type` of GRPO: the objective of a token and what it is divided by.
///
/// `A` is the advantage, `p` the importance ratio ([`ImportanceLevel`]), `lp` the token's log-probability; `B`
/// sequences and `T` loss tokens in the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyLoss {
    /// `-min(min(p, delta) A, clip(p, 1-e, 1+e_h) A)`, mean over a sequence's tokens, then over sequences (Shao et al.,
    /// DeepSeekMath, arXiv:2402.03300, eq. 3).
    Grpo,
    /// The same, sum over tokens by `T`.
    Bnpo,
    /// The same, sum over tokens by `B * max_completion_length` (Liu et al., arXiv:2503.20783).
    DrGrpo,
    /// The same, sum over tokens by the tokens of the generation batch (Yu et al., arXiv:2503.14476, eq. 8).
    #[default]
    Dapo,
    /// `-sg(min(p, e_h)) A lp`, divided as DAPO (MiniMax-M1, arXiv:2506.13585, eq. 4).
    Cispo,
    /// `-(4/tau) S(tau (p - 1)) A`, tau by the sign of A, divided as GRPO (Gao et al., arXiv:2511.20347).
    Sapo,
    /// GRPO's objective, sum over a sequence's tokens, mean over sequences (Liu et al., arXiv:2602.05261).
    Luspo,
    /// `-phi(w) A lp`, phi a gamma weight of the whole sequence's ratio w ([`super::Gamma`]), divided as DAPO (Shen et
    /// al., arXiv:2602.10693).
    Vespo,
}

impl PolicyLoss {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Grpo, Self::Bnpo, Self::DrGrpo, Self::Dapo, Self::Cispo, Self::Sapo, Self::Luspo, Self::Vespo];

    /// The name of the option's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grpo => "grpo",
            Self::Bnpo => "bnpo",
            Self::DrGrpo => "dr_grpo",
            Self::Dapo => "dapo",
            Self::Cispo => "cispo",
            Self::Sapo => "sapo",
            Self::Luspo => "luspo",
            Self::Vespo => "vespo",
        }
    }

    /// Whether the objective clips the ratio on both sides.
    #[must_use]
    pub const fn clips(self) -> bool {
        !matches!(self, Self::Cispo | Self::Sapo | Self::Vespo)
    }
}

impl FromStr for PolicyLoss {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        Self::ALL.into_iter().find(|loss| loss.name() == text).ok_or_else(|| LossError::Unknown {
            option: "loss_type",
            got: text.to_owned(),
            expected: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// `importance_sampling_level`: what the ratio of current and old policy is taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImportanceLevel {
    /// Each token: `p = e^(lp - old)`.
    #[default]
    Token,
    /// The sequence: `p = e^(mean_t (lp - old))` for all of its tokens (GSPO, Zheng et al., arXiv:2507.18071, eq. 7).
    Sequence,
}

impl FromStr for ImportanceLevel {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        match text {
            "token" => Ok(Self::Token),
            "sequence" => Ok(Self::Sequence),
            _ => Err(LossError::Unknown {
                option: "importance_sampling_level",
                got: text.to_owned(),
                expected: "token, sequence".to_owned(),
            }),
        }
    }
}
