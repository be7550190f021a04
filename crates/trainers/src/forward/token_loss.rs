//! The supervised token losses of a model over a micro-batch.

use burnish_losses::{LossOutput, Metrics, TokenLoss, TokenLossOptions, token_loss};
use burnish_models::{Decoder, ForwardContext};
use burnish_ops::select_rows;

use crate::{MicroBatch, TrainError};

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
    loss: TokenLoss,
    denominator: f64,
) -> Result<LossOutput, TrainError> {
    let hidden = model.hidden(&batch.tokens, pass)?;
    let hidden = select_rows(&hidden, &batch.rows)?;
    let hidden = model.final_norm(&hidden, pass)?;
    let head = model.head(pass, &batch.row_ids)?;
    let options = TokenLossOptions {
        head: model.head_options(1.0),
        shard: model.vocab_shard(),
        denominator: Some(denominator),
    };
    Ok(token_loss(loss, &hidden, &head, &batch.targets, &options)?)
}
