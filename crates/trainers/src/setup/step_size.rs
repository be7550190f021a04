//! Sizes of a step (rows, tokens) before rows are read.

use burnish_config::groups::{PreparationOptions, RankOptions, TrainingOptions};
use burnish_models::Spec;
use burnish_tp::AdapterSums;

/// A full step on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepSize {
    /// Rows of a micro-batch.
    pub(crate) rows: usize,
    /// Tokens of a micro-batch whose rows are as long as they may be.
    pub(crate) tokens: usize,
    /// Micro-batches.
    pub(crate) micro_batches: usize,
    /// Whether blocks run again in backward.
    pub(crate) recompute: bool,
    /// Whether that leaves attention out.
    pub(crate) keeps_attention: bool,
}

impl StepSize {
    /// Of the run that these options describe, over `data` ranks that take different rows.
    pub(crate) fn new(
        training: &TrainingOptions,
        ranks: &RankOptions,
        preparation: &PreparationOptions,
        spec: &Spec,
        data: usize,
    ) -> Self {
        let rows = training.per_device_train_batch_size;
        let micro_batches = match ranks.global_batch_size {
            Some(rows_of_step) => rows_of_step.div_ceil(rows * data),
            None => training.gradient_accumulation_steps,
        };
        let length = preparation.max_length.unwrap_or(spec.max_positions).min(spec.max_positions);
        let recompute = training.gradient_checkpointing;
        let keeps_attention = recompute && training.keep_attention;
        Self { rows, tokens: rows * length, micro_batches, recompute, keeps_attention }
    }

    /// How ranks that share layers sum addends of adapters.
    pub(crate) fn adapter_sums(&self, ranks: &RankOptions, spec: &Spec) -> AdapterSums {
        let reduce = ranks.tp_adapter_reduce;
        let tokens = self.tokens * self.micro_batches;
        let again = if self.recompute { 2 } else { 1 };
        // What is whole on every rank has the width of the stream: inputs of the one, outputs of the other.
        AdapterSums {
            colwise: reduce.choose(tokens, spec.hidden),
            rowwise: reduce.choose(again * tokens, spec.hidden),
        }
    }
}
