//! Mixtures of experts: how a router chooses, and what stands between an expert's two layers.

use crate::Activation;

/// The number of a token's expert that another rank has, where ranks have whole experts.
pub const ELSEWHERE: u32 = u32::MAX;

/// Rows that each expert's are filled up to a multiple of where a kernel on a GPU multiplies all of them, also for those who plan
/// without it.
pub const GROUP_ROWS: usize = 128;

/// Places, each one of a token's experts, of which a kernel on a GPU reads every one's matrices by itself where few tokens are decoded:
/// beyond, reading an expert's once for all of its tokens is less.
pub const FEW_PLACES: usize = 64;

/// [`GROUP_ROWS`]s that rows of so many places, each of one of so many experts, fill at most, whatever their experts are.
#[must_use]
pub fn expert_tiles(experts: usize, places: usize) -> usize {
    (places + (GROUP_ROWS - 1) * places.min(experts)) / GROUP_ROWS
}

/// What a router's logits become.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RouterScores {
    /// Probabilities over all experts.
    #[default]
    Softmax,
    /// A probability of each expert alone (DeepSeek-V3).
    Sigmoid,
    /// The same, but experts are compared by their logits (Kolibri).
    SigmoidByLogit,
    /// SparseMixer's (Liu et al., arXiv:2409.12136) without its samples: the best expert's probability among those whose
    /// logits are near the best one; then the same once more without it, for the next (PhiMoE).
    SparseMixer {
        /// An expert is near where `(best - logit) / max(|logit|, best)` is at most this.
        within: f32,
    },
}

/// Experts in groups, of which a token may choose from a few (DeepSeek).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterGroups {
    /// Groups, which divide the experts evenly.
    pub count: usize,
    /// Groups that a token may choose from.
    pub kept: usize,
    /// How many of a group's best scores are summed to compare groups: 1 (DeepSeek-V2) or 2 (DeepSeek-V3).
    pub best: usize,
}

/// How a token's experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterRule {
    /// Experts of each token.
    pub per_token: usize,
    /// What logits become.
    pub scores: RouterScores,
    /// Whether a token's weights are divided by their sum.
    pub renormalise: bool,
    /// Multiplies weights.
    pub scale: f32,
    /// Experts in groups.
    pub groups: Option<RouterGroups>,
}

/// What an expert makes of its first layer's outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertGate {
    /// `f(gate) * up` of gates, then ups.
    Halves(Activation),
    /// `f(up)`: there are no gates (Nemotron-H).
    Plain(Activation),
    /// `gate * sigmoid(alpha * gate) * (up + 1)` of gates and ups by turns, with `gate` at most `limit` and `up` in
    /// `-limit..=limit` (gpt-oss).
    Clamped {
        /// The sigmoid's factor.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
    /// The same of gates, then ups (MiniMax-M3).
    ClampedHalves {
        /// The sigmoid's factor.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}

impl ExpertGate {
    /// Outputs of an expert's first layer, of `inner` inputs of its second.
    #[must_use]
    pub fn reads(self, inner: usize) -> usize {
        match self {
            Self::Halves(_) | Self::Clamped { .. } | Self::ClampedHalves { .. } => 2 * inner,
            Self::Plain(_) => inner,
        }
    }
}
