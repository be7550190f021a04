//! Supervised token losses: `nll` and `dft`.

use std::str::FromStr;
use std::sync::Arc;

use burnish_ops::{AnyTensor, Coefficient, HeadOptions, Linear, OpsError, TokenStats, VocabShard, head_loss};

use crate::Tally;

/// A loss over target tokens whose gradient coefficient follows from the token's log-probability alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLoss {
    /// Negative log-likelihood: `-sum lp / N`. TRL's `chunked_nll` is an alias.
    Nll,
    /// Dynamic fine-tuning: `-sum sg(exp lp) * lp / N` (Wu et al., arXiv:2508.05629).
    Dft,
}

/// A `loss_type` that is not a token loss.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown loss_type `{0}`; expected nll, dft or chunked_nll")]
pub struct UnknownLoss(pub String);

impl FromStr for TokenLoss {
    type Err = UnknownLoss;

    fn from_str(s: &str) -> Result<Self, UnknownLoss> {
        match s {
            "nll" | "chunked_nll" => Ok(Self::Nll),
            "dft" => Ok(Self::Dft),
            _ => Err(UnknownLoss(s.to_owned())),
        }
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

/// A loss on the tape and its sums.
#[derive(Clone, Debug)]
pub struct LossOutput {
    /// `[1]`: this micro-batch's part of the step's loss (the parts add up).
    pub loss: AnyTensor,
    /// `loss`, `entropy`, `mean_token_accuracy` as sums over tokens.
    pub tally: Tally,
    /// Per-token facts.
    pub stats: TokenStats,
}

/// A token loss over rows that all have a target.
///
/// `denominator` is the number of target tokens in the whole step, over micro-batches and ranks. No rows at all give
/// exactly 0 with zero gradients.
///
/// With a `shard` the head holds one rank's rows of the vocabulary ([`burnish_ops::head_loss`]). Loss, tally and
/// per-token facts are then the same on every rank of the vocabulary: they are counted once, not once per rank.
///
/// # Shapes
/// - hidden: `[tokens, hidden]`, head: `[vocab, hidden]`, targets: `[tokens]`
///
/// # Errors
/// If a target is outside the vocabulary, or shapes or dtypes do not fit.
pub fn token_loss(
    kind: TokenLoss,
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    denominator: f64,
) -> Result<LossOutput, OpsError> {
    let coefficient: Coefficient = Arc::new(move |_, lp| kind.coefficient(lp, denominator));
    let (loss, stats) = head_loss(hidden, head, shard, targets, options, &coefficient, |stats| {
        (stats.log_prob.iter().map(|&lp| kind.numerator(lp)).sum::<f64>() / denominator.max(1.0)) as f32
    })?;
    let tokens = stats.log_prob.len() as f64;
    let mut tally = Tally::new();
    tally.add("loss", stats.log_prob.iter().map(|&lp| kind.numerator(lp)).sum(), tokens);
    tally.add("entropy", stats.entropy.iter().map(|&h| f64::from(h)).sum(), tokens);
    tally.add("mean_token_accuracy", stats.is_top1.iter().filter(|&&t| t).count() as f64, tokens);
    Ok(LossOutput { loss, tally, stats })
}
