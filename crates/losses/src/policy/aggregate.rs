//! Aggregation of token losses: the divisor of each `loss_type` of GRPO.

use super::kind::PolicyLoss;
use super::mask::HighEntropy;

/// Counts of a step, over all micro-batches and ranks, known before any pass with gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyStep {
    /// Sequences, those without targets included.
    pub sequences: f64,
    /// Loss tokens of the optimizer step.
    pub tokens: f64,
    /// Loss tokens of the whole generation batch, which one or several steps train on.
    pub generation_tokens: f64,
    /// The part of a generation batch that a step takes: `gradient_accumulation_steps / steps_per_generation`; 1 in
    /// evaluation.
    pub part: f64,
    /// Where `top_entropy_quantile` is below 1 ([`super::Grpo::high_entropy`]).
    pub high_entropy: Option<HighEntropy>,
    /// The entropy bonus of this step ([`super::EntropyControl::applied`]).
    pub entropy_coef: Option<f64>,
}

impl PolicyStep {
    /// The factor of each token of a sequence of `length` targets.
    pub(super) fn factor(&self, loss: PolicyLoss, length: usize, max_completion_length: usize) -> f64 {
        let denominator = match loss {
            PolicyLoss::Grpo | PolicyLoss::Sapo => length.max(1) as f64 * self.sequences,
            PolicyLoss::Bnpo => self.tokens.max(1.0),
            PolicyLoss::DrGrpo => self.sequences * max_completion_length as f64,
            PolicyLoss::Dapo | PolicyLoss::Cispo | PolicyLoss::Vespo => {
                self.generation_tokens.max(1.0) * self.part
            }
            PolicyLoss::Luspo => self.sequences,
        };
        1.0 / denominator
    }

    /// The factor of each token's entropy in the bonus.
    pub(super) fn bonus(&self) -> f64 {
        let tokens = self.high_entropy.map_or(self.tokens, |h| h.tokens);
        self.entropy_coef.unwrap_or(0.0) / tokens.max(1.0)
    }
}
