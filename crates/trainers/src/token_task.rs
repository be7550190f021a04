//! The supervised token losses of a model over a micro-batch.

use burnish_losses::{LossOutput, TokenLoss, token_loss};
use burnish_models::{Decoder, Pass};
use burnish_ops::select_rows;

use crate::{MicroBatch, TrainError};

/// This micro-batch's part of the step's loss, and its sums.
///
/// `denominator` is the number of target tokens in the whole step.
///
/// # Errors
/// If a tensor does not fit.
pub fn supervised(
    model: &Decoder,
    batch: &MicroBatch,
    pass: &Pass,
    loss: TokenLoss,
    denominator: f64,
) -> Result<LossOutput, TrainError> {
    let hidden = model.hidden(&batch.tokens, pass)?;
    let hidden = select_rows(&hidden, &batch.rows)?;
    let hidden = model.final_norm(&hidden, pass)?;
    let head = model.head(pass, &batch.row_ids)?;
    Ok(token_loss(
        loss,
        &hidden,
        &head,
        model.vocab_shard(),
        &batch.targets,
        model.head_options(1.0),
        denominator,
    )?)
}
