//! Batched text generation with a cache of keys and values.
//!
//! All prompts run in one flattened pass, one that several sequences share only once; then each step runs one token of
//! every unfinished sequence; finished ones leave the batch. A token is a function of its prompt, the settings and (seed, row, position): the other prompts of
//! the call do not matter (logits may differ in their last bits when more than 32 sequences run at once).

use std::fmt;

use crate::rope::RopeKind;
use crate::spec::Output;
use crate::{Decoder, Decoding, ModelError, Sampling};

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Tokens after the prompt, at most.
    pub max_new_tokens: usize,
    /// Tokens after the prompt before a stop token may come; `max_new_tokens` ends a completion all the same.
    pub min_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a completion (`eos_token_id`).
    pub stop: Vec<u32>,
    /// What an empty prompt becomes; `None` refuses it.
    pub bos: Option<u32>,
    /// The row number of the first prompt: a caller that splits a list of prompts into calls keeps every row's draws.
    pub first_row: u64,
    /// Whether completions say how likely their tokens were.
    pub log_probs: bool,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            max_new_tokens: 256,
            min_new_tokens: 0,
            sampling: Sampling::default(),
            stop: Vec::new(),
            bos: None,
            first_row: 0,
            log_probs: false,
        }
    }
}

impl Generation {
    /// Leaves stop tokens no probability, as Transformers' `MinNewTokensLengthLogitsProcessor` does.
    fn forbid_stop(&self, logits: &mut [f32]) {
        for &token in &self.stop {
            // A stop token beyond the vocabulary cannot come anyway.
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token came, or the caller wanted no more.
    Stop,
    /// `max_new_tokens` were generated.
    Length,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Length => "length",
        })
    }
}

/// What followed a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The generated tokens; a stop token is the last of them, as in Transformers.
    pub token_ids: Vec<u32>,
    /// With [`Generation::log_probs`] the log-probability of each under the model, see [`Sampling::log_prob`].
    pub log_probs: Vec<f32>,
    /// Why there are no more.
    pub finish_reason: FinishReason,
}

/// A sequence that is not finished.
struct Active {
    /// Its prompt's index.
    row: usize,
    /// Prompt and completion.
    tokens: Vec<u32>,
    /// Of the completion's tokens, where they are wanted.
    log_probs: Vec<f32>,
}

impl Decoder {
    /// Continues each of `prompts`; adapters are active. Equal prompts, as of a group of samples, are computed once: their
    /// sequences start from copies of its keys and values.
    ///
    /// `on_token(index, token)` hears of every token as it comes; `false` ends that completion as a stop token would.
    /// Completions may run past `max_position_embeddings`, as in Transformers; a prompt that does not fit is refused
    /// where positions are not scaled.
    ///
    /// # Errors
    /// If a setting is out of range, a prompt is empty or too long, or holds an id outside the vocabulary.
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        options: &Generation,
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<Vec<Completion>, ModelError> {
        self.check_output(Output::Vocabulary)?;
        options.sampling.check()?;
        let mut active = Vec::with_capacity(prompts.len());
        for (row, prompt) in prompts.iter().enumerate() {
            let tokens = match (prompt.is_empty(), options.bos) {
                (false, _) => prompt.clone(),
                (true, Some(bos)) => vec![bos],
                (true, None) => return Err(ModelError::EmptyPrompt { row }),
            };
            let limit = self.spec.max_positions;
            if self.spec.rope.kind == RopeKind::Default && tokens.len() > limit {
                return Err(ModelError::TooLong { got: tokens.len(), limit });
            }
            active.push(Active { row, tokens, log_probs: Vec::new() });
        }
        let starts: Vec<usize> = active.iter().map(|a| a.tokens.len()).collect();
        let empty =
            Completion { token_ids: Vec::new(), log_probs: Vec::new(), finish_reason: FinishReason::Length };
        let mut done = vec![empty; prompts.len()];
        if options.max_new_tokens == 0 || active.is_empty() {
            return Ok(done);
        }
        let prompts: Vec<&[u32]> = active.iter().map(|a| a.tokens.as_slice()).collect();
        let (mut decoding, mut logits) = Decoding::of_prompts(self, &prompts)?;
        loop {
            let mut staying = Vec::with_capacity(active.len());
            let mut next = Vec::with_capacity(active.len());
            for (index, (a, logits)) in
                active.iter_mut().zip(logits.chunks_exact_mut(self.spec.vocab)).enumerate()
            {
                let start = starts[a.row];
                if a.tokens.len() - start < options.min_new_tokens {
                    options.forbid_stop(logits);
                }
                let (row, position) = (options.first_row + a.row as u64, a.tokens.len() as u64);
                let model_says = options.log_probs.then(|| logits.to_vec());
                let token = options.sampling.next(logits, &a.tokens, row, position);
                if let Some(logits) = model_says {
                    a.log_probs.push(options.sampling.log_prob(&logits, token));
                }
                a.tokens.push(token);
                let wanted = on_token(a.row, token);
                let finish_reason = if !wanted || options.stop.contains(&token) {
                    FinishReason::Stop
                } else if a.tokens.len() - start >= options.max_new_tokens {
                    FinishReason::Length
                } else {
                    staying.push(index);
                    next.push([token]);
                    continue;
                };
                let log_probs = std::mem::take(&mut a.log_probs);
                done[a.row] = Completion { token_ids: a.tokens.split_off(start), log_probs, finish_reason };
            }
            if staying.is_empty() {
                return Ok(done);
            }
            if staying.len() < active.len() {
                decoding.reorder(&staying)?;
                let mut kept = staying.iter().copied().peekable();
                let mut index = 0;
                active.retain(|_| {
                    index += 1;
                    kept.next_if_eq(&(index - 1)).is_some()
                });
            }
            logits = decoding.logits(&next)?;
        }
    }
}
