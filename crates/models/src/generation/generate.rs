//! Batched text generation with a cache of keys and values.
//!
//! Prompts run in one flattened pass, one that several sequences share only once; then each step runs one token of
//! every unfinished sequence. A finished one leaves the batch, and where sequences are limited the next prompt takes its
//! place. A token is a function of its prompt, the settings and (seed, row, position): the other prompts of the call do
//! not matter (logits may differ in their last bits when more than 32 sequences run at once).

use std::fmt;

use burnish_ops::OpsError;
use rayon::prelude::*;

use crate::spec::Output;
use crate::spec::rope::RopeKind;
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
    /// Sequences that run at once, at most; 0 is all. As one ends, the next prompt joins the others (Yu et al. 2022), so
    /// that a list of any length is generated in the memory of so many sequences.
    pub max_sequences: usize,
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
            max_sequences: 0,
            log_probs: false,
        }
    }
}

impl Generation {
    /// A sequence's next token given its logits, and its log-probability where that is wanted.
    fn next(&self, a: &Active, logits: &mut [f32]) -> (u32, Option<f32>) {
        let model_says = self.log_probs.then(|| logits.to_vec());
        if a.tokens.len() - a.start < self.min_new_tokens {
            self.forbid_stop(logits);
        }
        let (row, position) = (self.first_row + a.row as u64, a.tokens.len() as u64);
        let token = self.sampling.next(logits, &a.tokens, row, position);
        (token, model_says.map(|logits| self.sampling.log_prob(&logits, token)))
    }

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
    /// Where the completion begins.
    start: usize,
    /// Of the completion's tokens, where they are wanted.
    log_probs: Vec<f32>,
}

/// The sequences of a call.
struct Batch<'a> {
    options: &'a Generation,
    decoding: Decoding<'a>,
    /// As in `decoding`.
    active: Vec<Active>,
    done: Vec<Completion>,
}

impl Batch<'_> {
    /// Chooses the next token of the sequences from `first` on, given their logits; those that end with it leave.
    fn choose(
        &mut self,
        first: usize,
        logits: &mut [f32],
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<(), ModelError> {
        let options = self.options;
        let mut staying: Vec<usize> = (0..first).collect();
        let vocab = logits.len() / (self.active.len() - first);
        // Exponentials of a whole vocabulary for each: worth sharing.
        let rows = self.active[first..].par_iter().zip(logits.par_chunks_exact_mut(vocab));
        let next = |(a, logits): (&Active, &mut [f32])| match logits.iter().find(|logit| !logit.is_finite()) {
            None => Ok(options.next(a, logits)),
            Some(&value) => Err(ModelError::ResultNotFinite {
                what: format!("prompt {}, token {}", a.row + 1, a.tokens.len() + 1),
                value: f64::from(value),
            }),
        };
        let chosen: Vec<(u32, Option<f32>)> = rows.map(next).collect::<Result<_, _>>()?;
        for (index, (token, log_prob)) in (first..).zip(chosen) {
            let a = &mut self.active[index];
            a.log_probs.extend(log_prob);
            a.tokens.push(token);
            let wanted = on_token(a.row, token);
            let finish_reason = if !wanted || options.stop.contains(&token) {
                FinishReason::Stop
            } else if a.tokens.len() - a.start >= options.max_new_tokens {
                FinishReason::Length
            } else {
                staying.push(index);
                continue;
            };
            let (token_ids, log_probs) = (a.tokens.split_off(a.start), std::mem::take(&mut a.log_probs));
            self.done[a.row] = Completion { token_ids, log_probs, finish_reason };
        }
        if staying.len() < self.active.len() {
            self.decoding.reorder(&staying)?;
            let mut kept = staying.into_iter().peekable();
            let mut index = 0..;
            self.active.retain(|_| kept.next_if_eq(&index.next().unwrap_or_default()).is_some());
        }
        Ok(())
    }
}

impl Decoder {
    /// Continues each of `prompts`; adapters are active. Equal prompts, as of a group of samples, are computed once: their
    /// sequences start from copies of its keys and values. (With [`Generation::max_sequences`] those that follow each
    /// other are.)
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
        let begun = options.bos.map(|bos| [bos]);
        let mut waiting: Vec<&[u32]> = Vec::with_capacity(prompts.len());
        for (row, prompt) in prompts.iter().enumerate() {
            waiting.push(match (prompt.is_empty(), &begun) {
                (false, _) => prompt,
                (true, Some(bos)) => bos,
                (true, None) => return Err(ModelError::EmptyPrompt { row }),
            });
            let (got, limit) = (waiting[row].len(), self.spec.max_positions);
            let scaled = self.spec.ropes.iter().any(|rope| rope.kind != RopeKind::Default);
            if !scaled && got > limit {
                return Err(ModelError::TooLong { got, limit });
            }
            // Said now, not when its turn comes.
            let vocab = self.spec.vocab;
            if let Some(&id) = waiting[row].iter().find(|&&id| id as usize >= vocab) {
                return Err(OpsError::Index { op: "embedding", got: id as usize, limit: vocab }.into());
            }
        }
        let empty =
            Completion { token_ids: Vec::new(), log_probs: Vec::new(), finish_reason: FinishReason::Length };
        let done = vec![empty; prompts.len()];
        if options.max_new_tokens == 0 {
            return Ok(done);
        }
        let most = if options.max_sequences == 0 { prompts.len() } else { options.max_sequences };
        let mut batch = Batch { options, decoding: Decoding::new(self, 0), active: Vec::new(), done };
        let mut joined = 0;
        loop {
            // Some may end with their first token, and leave room for more.
            while joined < waiting.len() && batch.active.len() < most {
                let first = batch.active.len();
                let rows = joined..waiting.len().min(joined + most - first);
                joined = rows.end;
                let mut logits = batch.decoding.join(&waiting[rows.clone()], waiting.get(joined).copied())?;
                let active = |row: usize| {
                    let tokens = waiting[row].to_vec();
                    Active { row, start: tokens.len(), tokens, log_probs: Vec::new() }
                };
                batch.active.extend(rows.map(active));
                batch.choose(first, &mut logits, on_token)?;
            }
            let next: Vec<&[u32]> = batch.active.iter().map(|a| &a.tokens[a.tokens.len() - 1..]).collect();
            if next.is_empty() {
                return Ok(batch.done);
            }
            let mut logits = batch.decoding.logits(&next)?;
            batch.choose(0, &mut logits, on_token)?;
        }
    }
}
