//! Batched text generation with a cache of keys and values.
//!
//! Prompts run in one flattened pass, one that several sequences share only once; then each step runs one token of
//! every unfinished sequence. A finished one leaves the batch, and where sequences are limited the next prompt takes its
//! place. A token is a function of its prompt, the settings and (seed, row, position): the other prompts of the call do
//! not matter (logits may differ in their last bits when more than 32 sequences run at once).

use std::fmt;
use std::sync::Arc;

use burnish_ops::OpsError;

use crate::generation::continuous_batch::{ContinuousBatch, Sequence, Token};
use crate::spec::Output;
use crate::spec::rope::RopeKind;
use crate::{AdaptedPrompt, Decoder, ModelError, Sampling};

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
    /// How many of the likeliest tokens are told at each position, with [`Self::log_probs`].
    pub top_log_probs: usize,
    /// Launches every step as it is, where a GPU would record one and run it again for each token. Once a sequence of a batch
    /// says so it is so for all.
    pub disable_compile: bool,
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
            top_log_probs: 0,
            disable_compile: false,
        }
    }
}

impl Generation {
    /// The next token of a sequence whose completion begins at `start`, given its logits `[vocab]`.
    pub(super) fn next(&self, tokens: &[u32], start: usize, logits: &mut [f32]) -> Token {
        let model_says = self.log_probs.then(|| logits.to_vec());
        if tokens.len() - start < self.min_new_tokens {
            self.forbid_stop(logits);
        }
        let id = self.sampling.next(logits, tokens, self.first_row, tokens.len() as u64);
        let Some(logits) = model_says else { return Token { id, log_prob: None, top: Vec::new() } };
        let top = self.sampling.top_log_probs(&logits, self.top_log_probs);
        Token { id, log_prob: Some(self.sampling.log_prob(&logits, id)), top }
    }

    /// Whether the token after so many of the completion is drawn of the whole vocabulary, or the likeliest, and no more than its
    /// own log-probability is told.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) fn draws_of_all(&self, said: usize, vocab: usize) -> bool {
        let stops = said < self.min_new_tokens && !self.stop.is_empty();
        let tells = self.log_probs && self.top_log_probs > 0;
        !stops && !tells && self.sampling.draws_of_all(vocab)
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
        self.generate_adapted(prompts, &[], options, on_token)
    }

    /// As [`Self::generate`], each prompt by its own of the decoder's [`adapters`](Self::adapters); none is the base, and
    /// those of prompts beyond `adapters` too.
    ///
    /// # Errors
    /// As [`Self::generate`]; if there is no such adapter.
    pub fn generate_adapted(
        &self,
        prompts: &[Vec<u32>],
        adapters: &[Option<usize>],
        options: &Generation,
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<Vec<Completion>, ModelError> {
        let adapter = |row: usize| adapters.get(row).copied().flatten();
        self.check_output(Output::Vocabulary)?;
        options.sampling.check()?;
        let begun = options.bos.map(|bos| [bos]);
        let mut waiting: Vec<&[u32]> = Vec::with_capacity(prompts.len());
        for (row, prompt) in prompts.iter().enumerate() {
            waiting.push(match (prompt.is_empty(), &begun) {
                (true, Some(bos)) => bos,
                _ => prompt,
            });
            // Said now, not when its turn comes.
            self.check_prompt(row, waiting[row])?;
            self.check_adapter(row, adapter(row))?;
        }
        let empty =
            Completion { token_ids: Vec::new(), log_probs: Vec::new(), finish_reason: FinishReason::Length };
        let mut done = vec![empty; prompts.len()];
        if options.max_new_tokens == 0 {
            return Ok(done);
        }
        let sequence = |row: usize| Sequence {
            id: row as u64,
            prompt: waiting[row].to_vec(),
            adapter: adapter(row),
            settings: Arc::new(Generation { first_row: options.first_row + row as u64, ..options.clone() }),
        };
        let mut on_token = |id: u64, token: &Token| on_token(id as usize, token.id);
        let most = if options.max_sequences == 0 { prompts.len() } else { options.max_sequences };
        let mut batch = ContinuousBatch::new(self);
        let mut joined = 0;
        loop {
            // Some may end with their first token, and leave room for more.
            while joined < waiting.len() && batch.len() < most {
                let rows = joined..waiting.len().min(joined + most - batch.len());
                joined = rows.end;
                let adapter = adapter(joined);
                let next = waiting.get(joined).map(|tokens| AdaptedPrompt { tokens, adapter });
                for (id, completion) in batch.join(rows.map(sequence).collect(), next, &mut on_token)? {
                    done[id as usize] = completion;
                }
            }
            if batch.is_empty() {
                return Ok(done);
            }
            for (id, completion) in batch.step(&mut on_token)? {
                done[id as usize] = completion;
            }
        }
    }

    /// That `prompt`, `row` of a call, can be continued.
    pub(super) fn check_prompt(&self, row: usize, prompt: &[u32]) -> Result<(), ModelError> {
        let (got, limit, vocab) = (prompt.len(), self.spec.max_positions, self.spec.vocab);
        if got == 0 {
            return Err(ModelError::EmptyPrompt { row });
        }
        let scaled = self.spec.ropes.iter().any(|rope| rope.kind != RopeKind::Default);
        let (limit, key) = self.spec.limit().unwrap_or((limit, "max_position_embeddings"));
        if got > limit && (!scaled || self.spec.limit().is_some()) {
            return Err(ModelError::TooLong { got, key, limit });
        }
        match prompt.iter().find(|&&id| id as usize >= vocab) {
            Some(&id) => Err(OpsError::Index { op: "embedding", got: id as usize, limit: vocab }.into()),
            None => Ok(()),
        }
    }
}
