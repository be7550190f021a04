//! The negative log-likelihood of next tokens, tile by tile: no `[tokens, vocab]` tensor exists.
//!
//! TRL's `chunked_nll`: positions without a label are left out, the projection and its softmax run over tiles, and the
//! gradient is made in the same pass. `tests/long_hand.rs` has the algorithm of TRL 1.4 to 1.14 in plain Burn operations,
//! 256 tokens at a time, and holds this to it.

use std::sync::Arc;

use burn::tensor::Tensor;
use burnish_ops::{
    AnyTensor, Coefficient, HeadOptions, LaterStats, Linear, OpsError, TokenStats, VocabShard, head_loss,
    head_nll, select_rows,
};

use crate::labels::{Kind, Labels};
use crate::{MetricSums, TokenLoss};

/// How a token loss is computed; by default the mean over the labels of the call.
///
/// ```
/// use burnish_losses::{HeadOptions, TokenLossOptions};
/// // The step has 640 labels over all its micro-batches and ranks; this model caps its logits (Gemma 2).
/// let options = TokenLossOptions {
///     denominator: Some(640.0),
///     head: HeadOptions { softcap: Some(30.0), ..HeadOptions::default() },
///     ..TokenLossOptions::default()
/// };
/// assert!(options.shard.is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenLossOptions<'a> {
    /// How logits are made from the projection.
    pub head: HeadOptions,
    /// This rank's rows of the vocabulary, where the head is split over ranks ([`burnish_ops::head_loss`]). Loss, metrics
    /// and per-token facts are then the same on every rank of the vocabulary: they are counted once, not once per rank.
    pub shard: Option<&'a VocabShard>,
    /// The labels of the whole step, over micro-batches and ranks, so that the parts add up; none: those of this call.
    pub denominator: Option<f64>,
}

/// A loss on the tape and what is known of its tokens.
#[derive(Debug)]
pub struct LossOutput {
    /// `[1]`: this micro-batch's part of the step's loss (the parts add up).
    pub loss: AnyTensor,
    /// Of the positions with a label.
    pub facts: TokenFacts,
}

/// What is known of the tokens of a loss. On a GPU it is on its way: whoever asks before backward has been launched leaves
/// the device without work meanwhile.
#[derive(Debug)]
pub struct TokenFacts {
    kind: TokenLoss,
    stats: LaterStats,
}

impl TokenFacts {
    /// `loss`, `entropy`, `mean_token_accuracy` as sums over tokens.
    #[must_use]
    pub fn tally(&self) -> MetricSums {
        let stats = self.stats();
        let tokens = stats.log_prob.len() as f64;
        let mut tally = MetricSums::new();
        tally.add("loss", stats.log_prob.iter().map(|&lp| self.kind.numerator(lp)).sum(), tokens);
        tally.add("entropy", stats.entropy.iter().map(|&h| f64::from(h)).sum(), tokens);
        tally.add("mean_token_accuracy", stats.is_top1.iter().filter(|&&t| t).count() as f64, tokens);
        tally
    }

    /// Of each token.
    #[must_use]
    pub fn stats(&self) -> &TokenStats {
        self.stats.get()
    }
}

impl LossOutput {
    /// The loss as Burn's tensor, on the tape: `out.tensor().backward()`.
    #[must_use]
    pub fn tensor(&self) -> Tensor<1> {
        self.loss.rank().expect("invariant: a loss has one element")
    }
}

/// `-sum lp / N` over the positions with a label.
///
/// # Shapes
/// - hidden: `[tokens, hidden]` or `[batch, tokens, hidden]`, head: `[vocab, hidden]`, labels: one per token, which is the
///   token that its position predicts
///
/// No label at all gives exactly 0 with zero gradients.
///
/// # Errors
/// If a label is outside the vocabulary, or shapes or dtypes do not fit.
pub fn chunked_nll(
    hidden: impl Into<AnyTensor>,
    head: &Linear,
    labels: impl Into<Labels>,
    options: &TokenLossOptions<'_>,
) -> Result<LossOutput, OpsError> {
    fused(TokenLoss::Nll, hidden.into(), head, labels.into(), options)
}

/// Any token loss on the fused head.
pub(crate) fn fused(
    kind: TokenLoss,
    hidden: AnyTensor,
    head: &Linear,
    labels: Labels,
    options: &TokenLossOptions<'_>,
) -> Result<LossOutput, OpsError> {
    let hidden = match hidden.shape().len() {
        3 => AnyTensor::new(hidden.rank::<3>()?.flatten::<2>(0, 1)),
        _ => hidden,
    };
    let (hidden, targets) = labelled(hidden, labels)?;
    let denominator = options.denominator.unwrap_or(targets.len() as f64);
    let (head_options, shard) = (options.head, options.shard);
    let (loss, stats) = match kind {
        TokenLoss::Nll => head_nll(&hidden, head, shard, &targets, head_options, denominator)?,
        TokenLoss::Dft => {
            let coefficient: Coefficient = Arc::new(move |_, lp| kind.coefficient(lp, denominator));
            let value = |stats: &TokenStats| {
                (stats.log_prob.iter().map(|&lp| kind.numerator(lp)).sum::<f64>() / denominator.max(1.0))
                    as f32
            };
            let (loss, stats) = head_loss(&hidden, head, shard, &targets, head_options, &coefficient, value)?;
            (loss, stats.into())
        }
    };
    Ok(LossOutput { loss, facts: TokenFacts { kind, stats } })
}

/// The rows that have a label, and their labels.
fn labelled(hidden: AnyTensor, labels: Labels) -> Result<(AnyTensor, Arc<Vec<u32>>), OpsError> {
    let labels = match labels.0 {
        Kind::Every(targets) => return Ok((hidden, targets)),
        Kind::Some(labels) => labels,
    };
    let tokens = hidden.shape().first().copied().unwrap_or_default();
    if labels.len() != tokens {
        let (got, expected) = (vec![labels.len()], vec![tokens]);
        return Err(OpsError::Shape { op: "chunked_nll", what: "labels", got, expected });
    }
    let rows: Vec<usize> = (0..tokens).filter(|&i| labels[i].is_some()).collect();
    let targets = labels.into_iter().flatten().collect();
    Ok((select_rows(&hidden, &Arc::new(rows))?, Arc::new(targets)))
}
