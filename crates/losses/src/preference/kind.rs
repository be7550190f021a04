//! The sixteen losses of a pair.

use burnish_core::choices;

use crate::LossError;
use crate::dual::Dual;

use super::matching::Match;

choices! {
    /// A `loss_type` of DPO, per pair.
    ///
    /// `r_c`, `r_r` are the log-ratios of policy and reference of the chosen and the rejected completion, `s_c`, `s_r`
    /// their scores under the divergence, `D = s_c - s_r`, `|c|`, `|r|` the completions' tokens, `S` the logistic function,
    /// `e` label smoothing.
    #[derive(Default)]
    pub enum PreferenceLoss: "loss_type", LossError {
        /// `-ln S(b D)` (Rafailov et al., arXiv:2305.18290, eq. 7).
        #[default]
        Sigmoid = "sigmoid",
        /// `max(0, 1 - b D)` (Zhao et al., SLiC-HF, arXiv:2305.10425; Liu et al., RSO, arXiv:2309.06657).
        Hinge = "hinge",
        /// `(s_c/|c| - s_r/|r| - 1/(2b))^2` (Azar et al., arXiv:2310.12036, eq. 17).
        Ipo = "ipo",
        /// `q_w (ln q_w - ln(1-e)) + q_l (ln q_l - ln e)`, `q_w = S(b D)`, `q_l = S(-b D)` (Ji et al., arXiv:2402.00856,
        /// eq. 16).
        ExoPair = "exo_pair",
        /// `-ln S(b r_c) - (ln S(-b r_c) + ln S(-b r_r)) / 2` (Chen et al., arXiv:2402.05369).
        NcaPair = "nca_pair",
        /// `(-(1-e) ln S(b D) + e ln S(-b D)) / (1 - 2e)` (Chowdhury et al., arXiv:2403.00409).
        Robust = "robust",
        /// `-ln S(b r_c) - ln S(-b r_r)` (Jung et al., arXiv:2404.04656).
        BcoPair = "bco_pair",
        /// `(r_c - 1/(2b))^2 + (r_r + 1/(2b))^2` (Wu et al., SPPO, arXiv:2405.00675).
        SppoHard = "sppo_hard",
        /// `-(1-e) ln S(b d) - e ln S(-b d)`, d between policy and reference margins of equal rank in the step (Melnyk et
        /// al., arXiv:2406.05882).
        Aot = "aot",
        /// The same, d between chosen and rejected log-ratios of equal rank.
        AotUnpaired = "aot_unpaired",
        /// `(1 - S(b (r_c - K_r)) + 1 - S(b (K_c - r_r))) / 2`, `K` the means of `r_c` and of `r_r` over the step, no less
        /// than 0, through which the slope goes too (Ethayarajh et al., KTO, arXiv:2402.01306, eq. 7, over pairs: TRL's until
        /// KTO became a trainer).
        KtoPair = "kto_pair",
        /// `1 - S(b r_c) + S(b r_r)` (D'Oosterlinck et al., arXiv:2408.06266, eq. 7).
        ApoZero = "apo_zero",
        /// `S(b r_c) + 1 - S(b (r_c - r_r))` (the same, eq. 8).
        ApoDown = "apo_down",
        /// `(1-g)(-ln S(x)) + g e^-x`, `x = b D`, `g = S(x/tau)` (Lu et al., arXiv:2406.08414, eq. 5).
        Discopop = "discopop",
        /// `-sum log-prob / N` over all chosen tokens of the step.
        Sft = "sft",
        /// `-ln S(b (s_c/|c| - s_r/|r|))` (length-normalised DPO, Lambert et al., arXiv:2411.15124).
        SigmoidNorm = "sigmoid_norm",
    }
}

/// What a pair's loss is made of; log-probabilities are in [`Dual`]'s first (chosen) and second (rejected) variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) log_prob: Dual,
    pub(super) ratio: Dual,
    pub(super) score: Dual,
    pub(super) tokens: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) beta: f64,
    pub(super) smoothing: f64,
    pub(super) tau: f64,
}

impl PreferenceLoss {
    /// Whether the loss compares a pair with what is known of the whole step alone: it sorts, or takes means.
    #[must_use]
    pub const fn compares(self) -> bool {
        matches!(self, Self::Aot | Self::AotUnpaired | Self::KtoPair)
    }

    /// Whether the loss is made of divergence scores (or of none), so that every divergence has a form of it.
    #[must_use]
    pub const fn takes_divergence(self) -> bool {
        matches!(
            self,
            Self::Sigmoid
                | Self::SigmoidNorm
                | Self::Hinge
                | Self::Ipo
                | Self::ExoPair
                | Self::Robust
                | Self::Discopop
                | Self::Sft
        )
    }

    /// The loss of a pair. `Sft`, which is no function of a pair's two sums, is 0 here; losses that compare are 0
    /// without their match.
    pub(super) fn of(self, chosen: &Side, rejected: &Side, matched: Option<Match>, shape: Shape) -> Dual {
        let Shape { beta, smoothing, tau } = shape;
        let delta = chosen.score - rejected.score;
        let x = delta * beta;
        let (rc, rr) = (chosen.ratio * beta, rejected.ratio * beta);
        let per_token = || {
            chosen.score * (1.0 / chosen.tokens.max(1.0)) - rejected.score * (1.0 / rejected.tokens.max(1.0))
        };
        let smoothed = |x: Dual| -x.log_sigmoid() * (1.0 - smoothing) - (-x).log_sigmoid() * smoothing;
        let matched = matched.unwrap_or_default();
        match self {
            Self::Sigmoid => -x.log_sigmoid(),
            Self::Hinge => (-x + 1.0).relu(),
            Self::Ipo => (per_token() - 1.0 / (2.0 * beta)).square(),
            Self::ExoPair => {
                x.sigmoid() * (x.log_sigmoid() - (-smoothing).ln_1p())
                    + (-x).sigmoid() * ((-x).log_sigmoid() - smoothing.ln())
            }
            Self::NcaPair => -rc.log_sigmoid() - (-rc).log_sigmoid() * 0.5 - (-rr).log_sigmoid() * 0.5,
            Self::Robust => {
                (-x.log_sigmoid() * (1.0 - smoothing) + (-x).log_sigmoid() * smoothing)
                    * (1.0 / (1.0 - 2.0 * smoothing))
            }
            Self::BcoPair => -rc.log_sigmoid() - (-rr).log_sigmoid(),
            Self::SppoHard => (chosen.ratio - 0.5 / beta).square() + (rejected.ratio + 0.5 / beta).square(),
            Self::Aot => {
                let Some(reference) = matched.reference_margin else { return Dual::constant(0.0) };
                smoothed((chosen.log_prob - rejected.log_prob - reference) * beta)
            }
            Self::AotUnpaired => {
                let Some((of_rejected, of_chosen)) = matched.ratios else { return Dual::constant(0.0) };
                // Each rank's term is seen from both of its ends: half of its value, one of its slopes.
                let ours = smoothed((chosen.ratio - of_rejected) * beta);
                let theirs = smoothed((-rejected.ratio + of_chosen) * beta);
                let both = ours + theirs;
                Dual { value: both.value / 2.0, slope: both.slope }
            }
            Self::KtoPair => {
                let Some(means) = matched.divergences else { return Dual::constant(0.0) };
                let ours = ((-chosen.ratio + means.rejected) * beta).sigmoid();
                let theirs = ((rejected.ratio - means.chosen) * beta).sigmoid();
                let both = (ours + theirs) * 0.5;
                // What the step's losses give a ratio through its mean.
                let pulled = |at: usize, ratio: Dual| both.slope[at] + means.pulls[at] * ratio.slope[at];
                Dual { value: both.value, slope: [pulled(0, chosen.ratio), pulled(1, rejected.ratio)] }
            }
            Self::ApoZero => (-rc).sigmoid() + rr.sigmoid(),
            Self::ApoDown => rc.sigmoid() + (rr - rc).sigmoid(),
            Self::Discopop => {
                let g = (x * (1.0 / tau)).sigmoid();
                -x.log_sigmoid() * (-g + 1.0) + (-x).exp() * g
            }
            Self::Sft => Dual::constant(0.0),
            Self::SigmoidNorm => -(per_token() * beta).log_sigmoid(),
        }
    }
}
