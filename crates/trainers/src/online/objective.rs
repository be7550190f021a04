//! `Objective`: the trait of the trainers that sample completions (GRPO, RLOO).

use std::ops::Range;

use burnish_losses::{
    Advantages, EntropyControl, FirstPass, HighEntropy, LossError, LossTerms, Metrics, PolicyStep, Rewards,
    SamplerCorrection,
};
use burnish_ops::TokenStats;

use super::sampled::Sampled;

/// From rewards to a loss.
pub trait Objective: Send + Sync {
    /// What [`Self::terms`] tallies.
    fn metrics(&self) -> Metrics;

    /// Whether completions are scored by the reference.
    fn needs_reference(&self) -> bool;

    /// Whether they are always scored by the policy that sampled them, even where that is the current one.
    fn needs_old(&self) -> bool;

    /// The advantages of a generation batch.
    fn advantages(&self, rewards: &Rewards<'_>, sampled: &[Sampled]) -> Result<Advantages, LossError>;

    /// Whether [`Self::high_entropy`] looks at a step before its first pass with gradients.
    fn needs(&self) -> FirstPass {
        FirstPass::None
    }

    /// Which tokens of a step train, given all their entropies.
    fn high_entropy(&self, _entropies: &[f32]) -> Option<HighEntropy> {
        None
    }

    /// The entropy bonus as it starts.
    fn entropy_control(&self) -> Option<EntropyControl> {
        None
    }

    /// How a sampler that is not the policy is corrected for.
    fn correction(&self) -> Option<&SamplerCorrection> {
        None
    }

    /// A micro-batch's part of the loss; of every completion where its targets are, none where it does not train.
    fn terms(
        &self,
        stats: &TokenStats,
        completions: &[(Range<usize>, &Sampled)],
        step: &PolicyStep,
    ) -> Result<LossTerms, LossError>;
}
