//! One text that grows in turns: what stays its beginning is not computed again.

use crate::generation::generate::{Completion, FinishReason, Generation};
use crate::spec::Output;
use crate::{Decoder, Decoding, ModelError};

/// A text in turns over a cache of keys and values.
///
/// ```no_run
/// # use burn::tensor::Device;
/// # use burnish_models::{Conversation, Generation, load};
/// let model = load("path/to/model", &Device::flex()).unwrap().decoder;
/// let mut conversation = Conversation::new(&model);
/// let first = conversation.reply(&[1, 2, 3], &Generation::default(), &mut |_| true).unwrap();
/// // The next prompt begins with the last one and its completion: the rest alone is computed.
/// let next: Vec<u32> = [1, 2, 3].into_iter().chain(first.token_ids).chain([4, 5]).collect();
/// conversation.reply(&next, &Generation::default(), &mut |_| true).unwrap();
/// ```
pub struct Conversation<'a> {
    decoder: &'a Decoder,
    decoding: Decoding<'a>,
    /// Tokens that `decoding` has.
    known: Vec<u32>,
}

impl<'a> Conversation<'a> {
    /// Nothing said yet; adapters are active.
    #[must_use]
    pub fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, decoding: Decoding::new(decoder, 1), known: Vec::new() }
    }

    /// Tokens that need not be computed again if the next prompt begins with them.
    #[must_use]
    pub fn known(&self) -> &[u32] {
        &self.known
    }

    /// Continues `prompt`, as [`Decoder::generate`] does; `on_token` hears of every token, and `false` ends the completion.
    ///
    /// # Errors
    /// Those of [`Decoder::generate`].
    pub fn reply(
        &mut self,
        prompt: &[u32],
        settings: &Generation,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Completion, ModelError> {
        self.decoder.check_output(Output::Vocabulary)?;
        settings.sampling.check()?;
        self.decoder.check_prompt(0, prompt)?;
        let begins_so = self.known.len() < prompt.len() && prompt.starts_with(&self.known);
        if !(begins_so && (self.known.is_empty() || self.decoding.goes_on(0, prompt))) {
            self.decoding = Decoding::new(self.decoder, 1);
            self.known.clear();
        }
        if settings.disable_compile {
            self.decoding.run_eagerly();
        }
        // After an error nothing is known any more.
        let known = std::mem::take(&mut self.known);
        let mut tokens = prompt.to_vec();
        let mut log_probs = Vec::new();
        let mut finish_reason = FinishReason::Length;
        let mut told = known.len();
        while tokens.len() - prompt.len() < settings.max_new_tokens {
            let mut logits = self.decoding.logits(&[&tokens[told..]])?;
            told = tokens.len();
            if let Some(&value) = logits.iter().find(|logit| !logit.is_finite()) {
                let what = format!("token {}", tokens.len() + 1);
                return Err(ModelError::ResultNotFinite { what, value: f64::from(value) });
            }
            let token = settings.next(&tokens, prompt.len(), &mut logits);
            log_probs.extend(token.log_prob);
            tokens.push(token.id);
            if !on_token(token.id) || settings.stop.contains(&token.id) {
                finish_reason = FinishReason::Stop;
                break;
            }
        }
        // The last token has been chosen and not been read.
        self.known = tokens[..told].to_vec();
        Ok(Completion { token_ids: tokens.split_off(prompt.len()), log_probs, finish_reason })
    }
}
