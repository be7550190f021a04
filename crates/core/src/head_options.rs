//! `HeadOptions`: temperature, soft cap and scale of the logits of a language-model head.

/// `z = softcap(logit_scale * (W h + bias)) / temperature`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOptions {
    /// Divides the logits last; positive.
    pub temperature: f32,
    /// Logits become `c * tanh(logit / c)` where set, before the temperature (Gemma 2 `final_logit_softcapping`).
    pub softcap: Option<f32>,
    /// Multiplies the projection first (Granite, Cohere).
    pub logit_scale: f32,
}

impl Default for HeadOptions {
    /// Plain logits.
    fn default() -> Self {
        Self { temperature: 1.0, softcap: None, logit_scale: 1.0 }
    }
}
