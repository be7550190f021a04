//! Sequences that are generated together and join and leave between steps ("continuous batching", Yu et al. 2022).
//!
//! A token is a function of its prompt, its settings and (seed, row, position): what else is in the batch does not matter
//! (logits may differ in their last bits when more than 32 sequences run at once).

use std::sync::Arc;

use rayon::prelude::*;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::generation::drawn::{Drawing, drawn};
use crate::generation::generate::{Completion, FinishReason, Generation};
use crate::generation::logits::Logits;
use crate::spec::Output;
use crate::{AdaptedPrompt, Decoder, Decoding, ModelError};

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// What the caller knows it by.
    pub id: u64,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Which of the decoder's adapters continues it, where it has [several](Decoder::adapters); none is the base.
    pub adapter: Option<usize>,
    /// How it goes on. Of a call's settings `first_row` is this sequence's row of the draws; `max_sequences` and `bos` are
    /// not looked at.
    pub settings: Arc<Generation>,
}

impl Sequence {
    /// What it begins with.
    #[must_use]
    pub fn adapted(&self) -> AdaptedPrompt<'_> {
        AdaptedPrompt { tokens: &self.prompt, adapter: self.adapter }
    }
}

/// A token as it is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// Its log-probability where that was asked for, see [`Sampling::log_prob`](crate::Sampling::log_prob).
    pub log_prob: Option<f32>,
    /// The likeliest tokens with theirs, as many as [`Generation::top_log_probs`] says, the likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// A sequence that is not finished.
struct Active {
    id: u64,
    /// Prompt and completion.
    tokens: Vec<u32>,
    /// Where the completion begins.
    start: usize,
    /// Of the completion's tokens, where they are wanted.
    log_probs: Vec<f32>,
    settings: Arc<Generation>,
}

/// Sequences in progress, each with settings of its own.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use burn::tensor::Device;
/// # use burnish_models::{ContinuousBatch, Generation, Sequence, load};
/// let model = load("path/to/model", &Device::flex()).unwrap().decoder;
/// let mut batch = ContinuousBatch::new(&model);
/// let settings = Arc::new(Generation { max_new_tokens: 8, ..Generation::default() });
/// let sequence = Sequence { id: 7, prompt: vec![1, 2, 3], adapter: None, settings };
/// let mut done = batch.join(vec![sequence], None, &mut |_, _| true).unwrap();
/// while !batch.is_empty() {
///     done.extend(batch.step(&mut |_, _| true).unwrap());
/// }
/// assert_eq!((done.len(), done[0].0), (1, 7));
/// ```
pub struct ContinuousBatch<'a> {
    decoder: &'a Decoder,
    decoding: Decoding<'a>,
    /// As in `decoding`.
    active: Vec<Active>,
}

/// What hears of every token: the sequence's id and the token; `false` ends that completion as a stop token would.
pub type OnToken<'f> = &'f mut dyn FnMut(u64, &Token) -> bool;

impl<'a> ContinuousBatch<'a> {
    /// No sequence yet; adapters are active.
    #[must_use]
    pub fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, decoding: Decoding::new(decoder, 0), active: Vec::new() }
    }

    /// Sequences in progress.
    #[must_use]
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// Whether every sequence is finished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Bytes of keys and values held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.decoding.bytes()
    }

    /// Whether the model can continue `prompt`, `row` of its caller's.
    ///
    /// # Errors
    /// If the model gives no tokens, or the prompt is empty, too long or holds an id outside the vocabulary.
    pub fn check(&self, row: usize, prompt: &[u32]) -> Result<(), ModelError> {
        self.decoder.check_output(Output::Vocabulary)?;
        self.decoder.check_prompt(row, prompt)
    }

    /// The sequences begin, each with its first token; those that end with it are returned. Prompts that are equal are
    /// computed once, also when the last of them begins again in the next call: `next` is the prompt that it will start
    /// with, by the same adapter.
    ///
    /// # Errors
    /// Those of [`Self::check`]; if there is no such adapter; after one the batch must not be used further.
    pub fn join(
        &mut self,
        sequences: Vec<Sequence>,
        next: Option<AdaptedPrompt<'_>>,
        on_token: OnToken<'_>,
    ) -> Result<Vec<(u64, Completion)>, ModelError> {
        let first = self.active.len();
        for (row, sequence) in sequences.iter().enumerate() {
            self.check(row, &sequence.prompt)?;
            sequence.settings.sampling.check()?;
            if sequence.settings.disable_compile {
                self.decoding.run_eagerly();
            }
        }
        let prompts: Vec<AdaptedPrompt<'_>> = sequences.iter().map(Sequence::adapted).collect();
        if prompts.is_empty() {
            return Ok(Vec::new());
        }
        let logits = self.decoding.join_adapted(&prompts, next)?;
        self.active.extend(sequences.into_iter().map(|Sequence { id, prompt, settings, .. }| Active {
            id,
            start: prompt.len(),
            tokens: prompt,
            log_probs: Vec::new(),
            settings,
        }));
        self.choose(first, Logits::Host(logits), on_token)
    }

    /// One more token of every sequence; those that end with it leave and are returned.
    ///
    /// # Errors
    /// If logits are not numbers; after an error the batch must not be used further.
    pub fn step(&mut self, on_token: OnToken<'_>) -> Result<Vec<(u64, Completion)>, ModelError> {
        let next: Vec<&[u32]> = self.active.iter().map(|a| &a.tokens[a.tokens.len() - 1..]).collect();
        if next.is_empty() {
            return Ok(Vec::new());
        }
        let logits = self.decoding.next(&next)?;
        self.choose(0, logits, on_token)
    }

    /// These sequences leave as they are: nobody wants more of them.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn leave(&mut self, ids: &[u64]) -> Result<(), ModelError> {
        let staying: Vec<usize> =
            self.active.iter().enumerate().filter(|(_, a)| !ids.contains(&a.id)).map(|(i, _)| i).collect();
        self.keep(&staying)
    }

    /// Chooses the next token of the sequences from `first` on, given their logits; those that end with it leave.
    fn choose(
        &mut self,
        first: usize,
        logits: Logits,
        on_token: OnToken<'_>,
    ) -> Result<Vec<(u64, Completion)>, ModelError> {
        let mut staying: Vec<usize> = (0..first).collect();
        let chosen = self.chosen(first, logits)?;
        let mut done = Vec::new();
        for (index, token) in (first..).zip(chosen) {
            let a = &mut self.active[index];
            a.log_probs.extend(token.log_prob);
            a.tokens.push(token.id);
            let wanted = on_token(a.id, &token);
            let finish_reason = if !wanted || a.settings.stop.contains(&token.id) {
                FinishReason::Stop
            } else if a.tokens.len() - a.start >= a.settings.max_new_tokens {
                FinishReason::Length
            } else {
                staying.push(index);
                continue;
            };
            let (token_ids, log_probs) = (a.tokens.split_off(a.start), std::mem::take(&mut a.log_probs));
            done.push((a.id, Completion { token_ids, log_probs, finish_reason }));
        }
        self.keep(&staying)?;
        Ok(done)
    }

    /// The next token of each sequence from `first` on.
    fn chosen(&self, first: usize, logits: Logits) -> Result<Vec<Token>, ModelError> {
        let active = &self.active[first..];
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        if let Logits::Resting(logits) = &logits {
            let rows = active.iter();
            let rows = rows
                .map(|a| Drawing { settings: &a.settings, tokens: &a.tokens, start: a.start })
                .collect::<Vec<_>>();
            if let Some(tokens) = drawn(logits, &rows) {
                return Ok(tokens);
            }
        }
        let mut logits = logits.into_host();
        let vocab = logits.len() / active.len();
        // Exponentials of a whole vocabulary for each: worth sharing.
        let rows = active.par_iter().zip(logits.par_chunks_exact_mut(vocab));
        let next = |(a, logits): (&Active, &mut [f32])| match logits.iter().find(|logit| !logit.is_finite()) {
            None => Ok(a.settings.next(&a.tokens, a.start, logits)),
            Some(&value) => Err(ModelError::ResultNotFinite {
                what: format!("prompt {}, token {}", a.id + 1, a.tokens.len() + 1),
                value: f64::from(value),
            }),
        };
        rows.map(next).collect()
    }

    /// Keeps the sequences at these places, in order.
    fn keep(&mut self, staying: &[usize]) -> Result<(), ModelError> {
        if staying.len() < self.active.len() {
            self.decoding.reorder(staying)?;
            let mut kept = staying.iter().peekable();
            let mut index = 0..;
            self.active.retain(|_| kept.next_if_eq(&&index.next().unwrap_or_default()).is_some());
        }
        Ok(())
    }
}
