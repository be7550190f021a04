//! Prefix tuning (Li & Liang 2021, arXiv:2101.00190): keys and values of virtual tokens before every text, of each block its
//! own.

use serde::{Deserialize, Serialize};

use crate::method::Method;
use crate::method::prompt_encoder::{Activation, PromptEncoder, no_encoder};
use crate::method::prompt_tuning::no_site;
use crate::{ChangePart, ChangeSite, LoraConfig, ModuleInfo, PeftError, Start, VirtualTokens};

/// What a configuration of prefix tuning says. Its file has the keys and values `[tokens, 2 * layers * token_dim]`: of each
/// block those of all key heads, keys before values, not turned by any rotation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixTuning {
    /// `zero` for keys and values of zeros; normal otherwise.
    pub init_weights: Option<String>,
    /// The width of a projection.
    pub encoder_hidden_size: Option<usize>,
    /// Whether two layers gave the keys and values in training; files have what they gave.
    pub prefix_projection: bool,
    /// How many tokens; of the model its layers, key heads, and their width together.
    #[serde(flatten)]
    pub tokens: VirtualTokens,
}

impl PrefixTuning {
    /// Fills in what the model says, as PEFT does: `layers` blocks with `heads` key heads of `head_dim` each.
    ///
    /// # Errors
    /// If the configuration says otherwise.
    pub fn on_model(&mut self, layers: usize, heads: usize, head_dim: usize) -> Result<(), PeftError> {
        let fill =
            |key: &'static str, own: &mut Option<usize>, model: usize, expected: &'static str| match own
                .replace(model)
            {
                Some(got) if got != model => {
                    let got = format!("{got}, which is {model} in the model");
                    Err(PeftError::BadValue { key, got, expected })
                }
                _ => Ok(()),
            };
        fill("num_layers", &mut self.tokens.num_layers, layers, "the model's number of blocks")?;
        let heads_of = &mut self.tokens.num_attention_heads;
        fill("num_attention_heads", heads_of, heads, "the model's number of key heads")?;
        let width = heads * head_dim;
        fill("token_dim", &mut self.tokens.token_dim, width, "the width of all of a block's key heads")?;
        self.encoder_hidden_size.get_or_insert(width);
        Ok(())
    }

    /// All keys and values of a token.
    fn width(&self) -> usize {
        2 * self.tokens.num_layers.unwrap_or(1) * self.tokens.token_dim.unwrap_or_default()
    }
}

impl Method for PrefixTuning {
    const SHARED: &'static [&'static str] = &["modules_to_save"];
    const TARGETS: bool = false;

    fn validate(&self, config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        if let Some(other) = self.init_weights.as_ref().filter(|word| *word != "zero") {
            let (got, expected) = (other.clone(), "zero, or not given");
            return Err(PeftError::BadValue { key: "init_weights", got, expected });
        }
        if fresh && self.encoder_hidden_size.is_some_and(|width| !(1..=65_536).contains(&width)) {
            let got = self.encoder_hidden_size.unwrap_or_default().to_string();
            let expected = "a whole number from 1 to 65536";
            return Err(PeftError::BadValue { key: "encoder_hidden_size", got, expected });
        }
        self.tokens.validate(config)
    }

    fn prompt(&mut self, _width: usize) -> Result<Option<ChangePart>, PeftError> {
        let start = if self.init_weights.is_some() { Start::Constant(0.0) } else { Start::normal(1.0) };
        Ok(Some(self.tokens.of_width(self.width(), start)))
    }

    fn continues(&self) -> Result<(), PeftError> {
        if self.prefix_projection { no_encoder("prefix_projection", "true") } else { Ok(()) }
    }

    fn encoder(&self) -> Option<PromptEncoder> {
        let tokens = self.tokens.num_virtual_tokens.filter(|_| self.prefix_projection)?;
        let (dim, hidden) = (self.tokens.token_dim?, self.encoder_hidden_size?);
        let encoder = PromptEncoder::new(tokens, dim, Activation::Tanh);
        let encoder = encoder.with_linears("transform", &[dim, hidden, self.width()]);
        Some(if self.init_weights.is_some() { encoder.ending_in_zeros() } else { encoder })
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        no_site(module)
    }
}
