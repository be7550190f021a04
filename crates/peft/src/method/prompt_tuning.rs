//! Prompt tuning (Lester et al. 2021, arXiv:2104.08691) and P-tuning (Liu et al. 2021, arXiv:2103.10385): embeddings of
//! virtual tokens before every text.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::method::prompt_encoder::{Activation, Lstm, PromptEncoder, no_encoder};
use crate::method::{Method, probability};
use crate::{ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, PeftError, Start};

/// What configurations of virtual tokens share. PEFT fills in what is not given from the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtualTokens {
    /// How many there are.
    pub num_virtual_tokens: Option<usize>,
    /// The width of each.
    pub token_dim: Option<usize>,
    /// Of a decoder one.
    pub num_transformer_submodules: Option<usize>,
    /// The model's.
    pub num_attention_heads: Option<usize>,
    /// The model's.
    pub num_layers: Option<usize>,
}

/// What becomes of a module to which a method of virtual tokens is put: none is.
pub(super) fn no_site(module: &ModuleInfo) -> ! {
    unreachable!("invariant: virtual tokens are no site of {}", module.name)
}

impl VirtualTokens {
    pub(super) fn validate(&self, config: &LoraConfig) -> Result<(), PeftError> {
        let bad = |key, got: String, expected| Err(PeftError::BadValue { key, got, expected });
        match self.num_virtual_tokens {
            Some(1..=65_536) => {}
            other => {
                let got = other.map_or("not given".to_owned(), |n| n.to_string());
                return bad("num_virtual_tokens", got, "a whole number from 1 to 65536");
            }
        }
        if let Some(other) = self.num_transformer_submodules.filter(|&n| n != 1) {
            return bad("num_transformer_submodules", other.to_string(), "1, of a decoder");
        }
        if config.modules_to_save.as_ref().is_some_and(|names| !names.is_empty()) {
            let condition = "with virtual tokens, beside which nothing trains";
            return Err(PeftError::Conflict { key: "modules_to_save", condition });
        }
        Ok(())
    }

    /// The parameter, of a model of this width.
    fn part(&mut self, width: usize) -> Result<ChangePart, PeftError> {
        if let Some(other) = self.token_dim.filter(|&dim| dim != width) {
            let expected = "the width of the model's embeddings";
            return Err(PeftError::BadValue { key: "token_dim", got: other.to_string(), expected });
        }
        self.token_dim = Some(width);
        Ok(self.of_width(width, Start::normal(1.0)))
    }

    /// The parameter, of so many columns.
    pub(super) fn of_width(&mut self, width: usize, start: Start) -> ChangePart {
        self.num_transformer_submodules = Some(1);
        let shape = vec![self.num_virtual_tokens.unwrap_or_default(), width];
        // The file has it under its own name.
        let name = PROMPT.to_owned();
        ChangePart { name, shape, start, follows: Follows::Whole }
    }
}

/// An encoder's word of two.
const LSTM: &str = "LSTM";

/// The parameter's name, and its key.
const PROMPT: &str = "prompt_embeddings";

/// What a configuration of prompt tuning says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptTuning {
    /// What the tokens start from: `RANDOM`, normal; `TEXT` and `SAMPLE_VOCAB` in files.
    pub prompt_tuning_init: String,
    /// The text of `TEXT`.
    pub prompt_tuning_init_text: Option<String>,
    /// The tokenizer of that text.
    pub tokenizer_name_or_path: Option<String>,
    /// How the tokenizer is made.
    pub tokenizer_kwargs: Option<Map<String, Value>>,
    /// How many tokens, and how wide.
    #[serde(flatten)]
    pub tokens: VirtualTokens,
}

impl Default for PromptTuning {
    fn default() -> Self {
        Self {
            prompt_tuning_init: "RANDOM".to_owned(),
            prompt_tuning_init_text: None,
            tokenizer_name_or_path: None,
            tokenizer_kwargs: None,
            tokens: VirtualTokens::default(),
        }
    }
}

impl Method for PromptTuning {
    const SHARED: &'static [&'static str] = &["modules_to_save"];
    const TARGETS: bool = false;

    fn validate(&self, config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        if fresh && self.prompt_tuning_init != "RANDOM" {
            let mend = "tokens start at random here: take it out, or begin the adapter with PEFT";
            let (key, value) = ("prompt_tuning_init".to_owned(), self.prompt_tuning_init.clone());
            return Err(PeftError::UnsupportedKey { key, value, mend });
        }
        self.tokens.validate(config)
    }

    fn prompt(&mut self, width: usize) -> Result<Option<ChangePart>, PeftError> {
        self.tokens.part(width).map(Some)
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        no_site(module)
    }
}

/// What a configuration of P-tuning says: its file has what the encoder gave. Of an `MLP`, PEFT reads neither layers (there are
/// three) nor dropout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PTuning {
    /// `MLP` or `LSTM`.
    pub encoder_reparameterization_type: String,
    /// The encoder's width.
    pub encoder_hidden_size: Option<usize>,
    /// Its layers.
    pub encoder_num_layers: usize,
    /// Its dropout in training.
    pub encoder_dropout: f64,
    /// How many tokens, and how wide.
    #[serde(flatten)]
    pub tokens: VirtualTokens,
}

impl Default for PTuning {
    fn default() -> Self {
        Self {
            encoder_reparameterization_type: "MLP".to_owned(),
            encoder_hidden_size: None,
            encoder_num_layers: 2,
            encoder_dropout: 0.0,
            tokens: VirtualTokens::default(),
        }
    }
}

impl Method for PTuning {
    const SHARED: &'static [&'static str] = &["modules_to_save"];
    const TARGETS: bool = false;

    fn validate(&self, config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        let bad = |key, got: String, expected| Err(PeftError::BadValue { key, got, expected });
        if !["MLP", LSTM].contains(&self.encoder_reparameterization_type.as_str()) {
            let got = self.encoder_reparameterization_type.clone();
            return bad("encoder_reparameterization_type", got, "MLP or LSTM");
        }
        if fresh && self.encoder_hidden_size.is_some_and(|width| !(1..=65_536).contains(&width)) {
            let got = self.encoder_hidden_size.unwrap_or_default().to_string();
            return bad("encoder_hidden_size", got, "a whole number from 1 to 65536");
        }
        if fresh && !(1..=1024).contains(&self.encoder_num_layers) {
            return bad(
                "encoder_num_layers",
                self.encoder_num_layers.to_string(),
                "a whole number from 1 to 1024",
            );
        }
        if fresh {
            probability("encoder_dropout", self.encoder_dropout)?;
        }
        self.tokens.validate(config)
    }

    fn prompt(&mut self, width: usize) -> Result<Option<ChangePart>, PeftError> {
        self.encoder_hidden_size.get_or_insert(width);
        self.tokens.part(width).map(Some)
    }

    fn continues(&self) -> Result<(), PeftError> {
        no_encoder("peft_type", "P_TUNING")
    }

    fn encoder(&self) -> Option<PromptEncoder> {
        let tokens = self.tokens.num_virtual_tokens?;
        let (width, hidden) = (self.tokens.token_dim?, self.encoder_hidden_size?);
        let encoder = PromptEncoder::new(tokens, width, Activation::Relu);
        Some(match self.encoder_reparameterization_type.as_str() {
            LSTM => {
                let lstm = Lstm { layers: self.encoder_num_layers, dropout: self.encoder_dropout };
                let encoder = encoder.with_lstm(lstm, width, hidden);
                encoder.with_linears("mlp_head", &[2 * hidden, 2 * hidden, width])
            }
            _ => encoder.with_linears("mlp_head", &[width, hidden, hidden, width]),
        })
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        no_site(module)
    }
}
