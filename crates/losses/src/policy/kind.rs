//! The eight losses of a token and the two levels of importance sampling.

use burnish_core::choices;

use crate::LossError;

choices! {
    /// `loss_type` of GRPO: the objective of a token and what it is divided by.
    ///
    /// `A` is the advantage, `p` the importance ratio ([`ImportanceLevel`]), `lp` the token's log-probability; `B`
    /// sequences and `T` loss tokens in the step.
    #[derive(Default)]
    pub enum PolicyLoss: "loss_type", LossError {
        /// `-min(min(p, delta) A, clip(p, 1-e, 1+e_h) A)`, mean over a sequence's tokens, then over sequences (Shao et al.,
        /// DeepSeekMath, arXiv:2402.03300, eq. 3).
        Grpo = "grpo",
        /// The same, sum over tokens by `T`.
        Bnpo = "bnpo",
        /// The same, sum over tokens by `B * max_completion_length` (Liu et al., arXiv:2503.20783).
        DrGrpo = "dr_grpo",
        /// The same, sum over tokens by the tokens of the generation batch (Yu et al., arXiv:2503.14476, eq. 8).
        #[default]
        Dapo = "dapo",
        /// `-sg(min(p, e_h)) A lp`, divided as DAPO (MiniMax-M1, arXiv:2506.13585, eq. 4).
        Cispo = "cispo",
        /// `-(4/tau) S(tau (p - 1)) A`, tau by the sign of A, divided as GRPO (Gao et al., arXiv:2511.20347).
        Sapo = "sapo",
        /// `-phi(w) A lp`, phi a gamma weight of the whole sequence's ratio w ([`super::VespoOptions`]), divided as DAPO (Shen et
        /// al., arXiv:2602.10693).
        Vespo = "vespo",
        /// GRPO's objective, sum over a sequence's tokens, mean over sequences (Liu et al., arXiv:2602.05261).
        Luspo = "luspo",
    }
}

impl PolicyLoss {
    /// Whether the objective clips the ratio on both sides.
    #[must_use]
    pub const fn clips(self) -> bool {
        !matches!(self, Self::Cispo | Self::Sapo | Self::Vespo)
    }
}

choices! {
    /// `importance_sampling_level`: what the ratio of current and old policy is taken of.
    #[derive(Default)]
    pub enum ImportanceLevel: "importance_sampling_level", LossError {
        /// Each token: `p = e^(lp - old)`.
        #[default]
        Token = "token",
        /// The sequence: `p = e^(mean_t (lp - old))` for all of its tokens (GSPO, Zheng et al., arXiv:2507.18071, eq. 7).
        Sequence = "sequence",
    }
}
