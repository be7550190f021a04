//! The supervised token losses of a model over a micro-batch.

use burnish_losses::{HeadOptions, LossOutput, Metrics, TokenLoss, TokenLossOptions, token_loss};
use burnish_models::{Decoder, ForwardContext};
use burnish_ops::select_rows;

use crate::{MicroBatch, TrainError};

/// The loss of supervised fine-tuning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SupervisedLoss {
    /// What is summed over target tokens.
    pub kind: TokenLoss,
    /// How much of each target is spread evenly over the vocabulary, from 0 to 1.
    pub label_smoothing: f32,
}

impl From<TokenLoss> for SupervisedLoss {
    /// Without label smoothing.
    fn from(kind: TokenLoss) -> Self {
        Self { kind, label_smoothing: 0.0 }
    }
}

/// What token losses tally besides `loss`.
pub(crate) fn token_metrics() -> Metrics {
    Metrics { sums: vec!["entropy", "mean_token_accuracy"], ..Metrics::default() }
}

/// This micro-batch's part of the step's loss, and its sums.
///
/// `denominator` is the number of target tokens in the whole step.
///
/// # Errors
/// If a tensor does not fit.
pub fn supervised(
    model: &Decoder,
    batch: &MicroBatch,
    pass: &ForwardContext,
    loss: impl Into<SupervisedLoss>,
    denominator: f64,
) -> Result<LossOutput, TrainError> {
    let SupervisedLoss { kind, label_smoothing } = loss.into();
    let hidden = model.hidden(&batch.tokens, pass)?;
    let hidden = select_rows(&hidden, &batch.rows)?;
    let hidden = model.final_norm(&hidden, pass)?;
    let head = model.head(pass, &batch.row_ids)?;
    let options = TokenLossOptions {
        head: HeadOptions { label_smoothing, ..model.head_options(1.0) },
        shard: model.vocab_shard(),
        denominator: Some(denominator),
    };
    Ok(token_loss(kind, &hidden, &head, &batch.targets, &options)?)
}
