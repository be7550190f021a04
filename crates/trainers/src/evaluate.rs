//! Evaluation: the loss and its companions over a data set, on plain tensors.

use std::time::Instant;

use burnish_data::{Collator, Example};
use burnish_losses::{Tally, TokenLoss};
use burnish_models::{Decoder, Mode};

use crate::token_task::supervised;
use crate::{MicroBatch, TrainError};

/// What an evaluation found.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// `loss`, `entropy`, `mean_token_accuracy`, each over all target tokens.
    pub tally: Tally,
    /// Rows seen.
    pub rows: usize,
    /// Batches seen.
    pub batches: usize,
    /// Target tokens seen.
    pub tokens: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// Evaluates `model` on `examples`, in order.
///
/// # Errors
/// If a tensor does not fit.
pub fn evaluate(
    model: &Decoder,
    examples: &[Example],
    collator: &Collator,
    batch_rows: usize,
    loss: TokenLoss,
) -> Result<Evaluation, TrainError> {
    let start = Instant::now();
    let mut found = Evaluation { tally: Tally::new(), rows: 0, batches: 0, tokens: 0, seconds: 0.0 };
    for (number, rows) in examples.chunks(batch_rows.max(1)).enumerate() {
        let rows: Vec<&Example> = rows.iter().collect();
        let batch = MicroBatch::new(collator.batch(&rows, number * batch_rows));
        let pass = model.pass(Mode::Score);
        let out = supervised(model, &batch, &pass, loss, batch.targets.len() as f64)?;
        found.tally.merge(&out.tally);
        found.rows += rows.len();
        found.batches += 1;
        found.tokens += batch.targets.len();
    }
    found.seconds = start.elapsed().as_secs_f64();
    Ok(found)
}
