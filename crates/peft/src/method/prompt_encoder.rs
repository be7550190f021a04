//! `PromptEncoder`: the network whose outputs virtual tokens are while they train. PEFT's files have its outputs alone.

use crate::{ChangePart, Follows, PeftError, Start};

/// Between two linear layers of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(0, x)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
}

/// A bidirectional LSTM in front of an encoder's linear layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lstm {
    /// How many, one on top of the other.
    pub layers: usize,
    /// Probability of dropping an output of every one but the last, in training.
    pub dropout: f64,
}

/// Embeddings of virtual tokens `[tokens, width]`, an LSTM where there is one, and linear layers with an activation between.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptEncoder {
    /// Of the embeddings, if there is one.
    pub lstm: Option<Lstm>,
    /// Between the linear layers.
    pub activation: Activation,
    /// The embeddings; of each layer of the LSTM, forwards and then backwards, `weight_ih` `[4 h, in]`, `weight_hh` `[4 h, h]`
    /// and two biases `[4 h]`; of each linear layer its weight `[out, in]` and its bias.
    pub parts: Vec<ChangePart>,
}

/// Where PEFT has it.
const MODULE: &str = "prompt_encoder";

impl PromptEncoder {
    /// One whose embeddings are of `[tokens, width]`, as PyTorch fills them.
    pub(super) fn new(tokens: usize, width: usize, activation: Activation) -> Self {
        let mut encoder = Self { lstm: None, activation, parts: Vec::new() };
        encoder.part("embedding.weight", &[tokens, width], Start::normal(1.0));
        encoder
    }

    /// The same with an LSTM of so many `layers` on inputs of `width`, whose outputs are of twice `hidden`.
    pub(super) fn with_lstm(mut self, lstm: Lstm, width: usize, hidden: usize) -> Self {
        let start = Start::kaiming(hidden);
        for layer in 0..lstm.layers {
            let inputs = if layer == 0 { width } else { 2 * hidden };
            for side in ["", "_reverse"] {
                for (what, shape) in [
                    ("weight_ih", &[4 * hidden, inputs][..]),
                    ("weight_hh", &[4 * hidden, hidden]),
                    ("bias_ih", &[4 * hidden]),
                    ("bias_hh", &[4 * hidden]),
                ] {
                    self.part(&format!("lstm_head.{what}_l{layer}{side}"), shape, start);
                }
            }
        }
        Self { lstm: Some(lstm), ..self }
    }

    /// The same with linear layers between these widths, every second module of `sequence`.
    pub(super) fn with_linears(mut self, sequence: &str, widths: &[usize]) -> Self {
        for (at, pair) in widths.windows(2).enumerate() {
            let [inputs, outputs] = [pair[0], pair[1]];
            let name = format!("{sequence}.{}", 2 * at);
            self.part(&format!("{name}.weight"), &[outputs, inputs], Start::kaiming(inputs));
            self.part(&format!("{name}.bias"), &[outputs], Start::kaiming(inputs));
        }
        self
    }

    /// The same, the last of whose layers starts as nothing.
    pub(super) fn ending_in_zeros(mut self) -> Self {
        self.parts.iter_mut().rev().take(2).for_each(|part| part.start = Start::Constant(0.0));
        self
    }

    fn part(&mut self, name: &str, shape: &[usize], start: Start) {
        let (name, shape) = (format!("{MODULE}.{name}"), shape.to_vec());
        self.parts.push(ChangePart { name, shape, start, follows: Follows::Whole });
    }
}

/// That an adapter whose encoder is in no file cannot be trained further, by the key that says that it had one.
pub(super) fn no_encoder(key: &str, value: &str) -> Result<(), PeftError> {
    Err(PeftError::UnsupportedKey {
        key: key.to_owned(),
        value: value.to_owned(),
        mend: "what trains is an encoder, and adapter folders have only what it gave, as in PEFT: go on from a checkpoint (resume_from_checkpoint), or begin a new adapter; this one can be used",
    })
}
