//! `HeadOptions`: temperature, soft cap and scale of the logits of a language-model head.

/// `z = softcap(logit_scale * (W h + bias)) / temperature`, and `log_prob = (1 - s) * log p_target + s * mean log p` with
/// `s` of label smoothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOptions {
    /// Divides the logits last; positive.
    pub temperature: f32,
    /// Logits become `c * tanh(logit / c)` where set, before the temperature (Gemma 2 `final_logit_softcapping`).
    pub softcap: Option<f32>,
    /// Multiplies the projection first (Granite, Cohere).
    pub logit_scale: f32,
    /// How much of a target is spread evenly over the vocabulary, from 0 to 1; the rest is on its token. Log-probabilities
    /// of targets are then expectations, and their gradients those of expectations.
    pub label_smoothing: f32,
}

impl Default for HeadOptions {
    /// Plain logits.
    fn default() -> Self {
        Self { temperature: 1.0, softcap: None, logit_scale: 1.0, label_smoothing: 0.0 }
    }
}

impl HeadOptions {
    /// The log-probability of a target whose logit is `target`, where the logits' mean is `mean` and the logarithm of the
    /// sum of their exponentials `log_z`.
    #[must_use]
    pub fn log_prob(&self, target: f32, mean: f32, log_z: f32) -> f32 {
        let s = self.label_smoothing;
        if s == 0.0 { target - log_z } else { (1.0 - s) * (target - log_z) + s * (mean - log_z) }
    }
}
