//! The passes and reductions of a trainer's step, as its plan counts them.

use burnish_config::groups::RolloutOptions;
use burnish_config::values::RolloutQuantization;
use burnish_losses::Metrics;

use crate::metrics::metric_window::Sums;

/// A step: passes over micro-batches of so many texts for each row. Known from options, before any row is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPasses {
    /// Texts of a row, one after another.
    pub texts: usize,
    /// Whether the model scores texts.
    pub scores: bool,
    /// Whether the loss is the likelihood of targets alone.
    pub likelihood: bool,
    /// Passes of the reference over as many tokens as a micro-batch has, before the step's first pass with gradients.
    pub reference: usize,
    /// Whether a reference is in memory during the step.
    pub holds_reference: bool,
    /// Passes of the policy without gradients over each micro-batch, before its pass with gradients.
    pub first: usize,
    /// What the loop and the loss sum over all ranks in a step, sum by sum.
    pub sums: Vec<u64>,
    /// Least and greatest values among the metrics, which travel apart.
    pub extremes: u64,
    /// How the step's completions are sampled, if they are.
    pub rollout: Option<RolloutPasses>,
}

impl StepPasses {
    /// One pass over each micro-batch of rows of one text, of which `counts` counts are summed, the tokens with them, and
    /// then `metrics`.
    #[must_use]
    pub fn new(counts: usize, metrics: &Metrics) -> Self {
        Self {
            texts: 1,
            scores: false,
            likelihood: false,
            reference: 0,
            holds_reference: false,
            first: 0,
            sums: vec![counts as u64 + 1, Sums::scalars(metrics) as u64],
            extremes: (metrics.least.len() + metrics.greatest.len()) as u64,
            rollout: None,
        }
    }

    /// The same with the sum and the count of the loss that balances experts among the metrics, where it is part of the
    /// loss.
    pub(crate) fn with_balance(mut self, balances: bool) -> Self {
        if let Some(metrics) = self.sums.get_mut(1).filter(|_| balances) {
            *metrics += 2;
        }
        self
    }

    /// The same over completions that are sampled.
    pub(crate) fn with_rollout(self, rollout: RolloutPasses) -> Self {
        Self { rollout: Some(rollout), ..self }
    }

    /// The same with prompts of up to `tokens` tokens.
    pub(crate) fn with_prompts(self, tokens: usize) -> Self {
        let rollout = self.rollout.map(|rollout| RolloutPasses { prompt: Some(tokens), ..rollout });
        Self { rollout, ..self }
    }
}

/// How a generation batch is sampled and scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutPasses {
    /// Tokens of the longest prompt, where rows are known.
    pub prompt: Option<usize>,
    /// Tokens of a completion, at most.
    pub completion: usize,
    /// Completions of a prompt.
    pub group: usize,
    /// Completions of a generation batch, where options give a number.
    generation_batch: Option<usize>,
    /// Micro-batches on every rank of a generation batch, where options give a number.
    micro_batches: Option<usize>,
    /// How often a generation batch is trained on.
    iterations: usize,
    /// Sequences that are sampled at once.
    pub at_once: usize,
    /// Whether the model itself samples.
    pub here: bool,
    /// Whether it does so from a copy in int8.
    pub int8: bool,
    /// Whether tokens are left out of the vocabulary, or penalised, before one is drawn.
    pub filtered: bool,
    /// Whether the policy scores what was sampled, whoever trains on it when.
    scored: bool,
}

impl RolloutPasses {
    /// Of these options; `scored` where the policy always scores what was sampled.
    pub(crate) fn new(options: &RolloutOptions, scored: bool) -> Self {
        Self {
            prompt: None,
            completion: options.max_completion_length,
            filtered: options.top_k > 0
                || options.top_p < 1.0
                || options.min_p.is_some()
                || options.repetition_penalty != 1.0,
            group: options.num_generations,
            generation_batch: options.generation_batch_size,
            micro_batches: options.steps_per_generation,
            iterations: options.num_iterations,
            at_once: options.generation_max_sequences,
            here: options.rollout_url.is_none(),
            int8: options.rollout_quantization == RolloutQuantization::Int8,
            scored,
        }
    }

    /// Completions of a generation batch, for steps of `step` rows on `dp` ranks with micro-batches of `rows`.
    pub(crate) fn generation_batch(&self, rows: usize, dp: usize, step: usize) -> usize {
        match (self.generation_batch, self.micro_batches) {
            (Some(batch), _) => batch,
            (None, Some(micro_batches)) => rows * dp * micro_batches,
            (None, None) => step,
        }
    }

    /// Whether the policy scores what was sampled: always, or because a generation batch of `batch` completions still
    /// trains after an update that it took part in, where steps have `step` rows.
    pub(crate) fn scored(&self, batch: usize, step: usize) -> bool {
        self.scored || !step.is_multiple_of((batch * self.iterations).max(1))
    }

    /// Tokens of a prompt: as many as of a completion where no row is known.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt.unwrap_or(self.completion)
    }
}
