//! Log-probabilities of a micro-batch's targets.

use burnish_data::{Completions, Span};
use burnish_losses::Completion;
use burnish_models::{Decoder, ForwardContext, Mode};
use burnish_ops::{AnyTensor, TokenStats, head_log_probs, select_rows};

use crate::rank::Rank;
use crate::{MicroBatch, TrainError};

/// Log-probabilities and entropies of the targets `[2, targets]` for a loss to be put on, and what is known of each; of
/// logits divided by `temperature`.
///
/// # Errors
/// If a tensor does not fit.
pub fn log_probs(
    model: &Decoder,
    batch: &MicroBatch,
    pass: &ForwardContext,
    temperature: f32,
) -> Result<(AnyTensor, TokenStats), TrainError> {
    let hidden = model.hidden(&batch.tokens, pass)?;
    let hidden = select_rows(&hidden, &batch.rows)?;
    let hidden = model.final_norm(&hidden, pass)?;
    let head = model.head(pass, &batch.row_ids)?;
    Ok(head_log_probs(&hidden, &head, model.vocab_shard(), &batch.targets, model.head_options(temperature))?)
}

/// The policy's, of a micro-batch and without gradients.
pub(crate) fn of_policy(
    rank: &Rank<'_>,
    batch: &MicroBatch,
    temperature: f32,
) -> Result<TokenStats, TrainError> {
    let decoder = &rank.model.decoder;
    let (_, stats) = log_probs(decoder, batch, &decoder.pass(Mode::Score), temperature)?;
    rank.axes.all.check()?;
    Ok(stats)
}

/// The micro-batch of documents that each end in a completion; one padding token where there are none.
pub(crate) fn micro_batch(documents: Completions) -> (MicroBatch, Vec<Completion>) {
    let scored = |span: &Span| Completion { targets: span.targets.clone(), tokens: span.tokens };
    let spans = documents.spans.iter().map(scored).collect();
    let batch =
        if documents.batch.is_empty() { MicroBatch::empty() } else { MicroBatch::new(documents.batch) };
    (batch, spans)
}
