//! The generic decoder's description: what differs between families, as data.

pub(crate) mod config;
pub(crate) mod rope;

use crate::ModelError;
use crate::spec::config::{CONFIG, ConfigFile};
use crate::spec::rope::Rope;

/// The embedding's module name.
pub const EMBED: &str = "model.embed_tokens";
/// The head's module name.
pub const HEAD: &str = "lm_head";
/// The module name of the head that gives a score.
pub const SCORE: &str = "score";

/// The families on the generic decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2, 3 and everything of `model_type` llama.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen2 and Qwen2.5, dense.
    Qwen2,
    /// Qwen3, dense.
    Qwen3,
    /// Phi-3, Phi-3.5 and Phi-4 (mini), dense.
    Phi3,
}

/// What stands on the last hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Logits over the vocabulary (`*ForCausalLM`).
    Vocabulary,
    /// One number for a text, from its last token (`*ForSequenceClassification` with one label): a reward.
    Score,
}

/// A decoder-only transformer with RMSNorm, rotary attention and a SwiGLU MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The family.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Biases on q, k, v.
    pub qkv_bias: bool,
    /// Bias on the attention output.
    pub o_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// Queries, keys and values in one matrix, and gate and up: `qkv_proj` and `gate_up_proj`.
    pub packed: bool,
    /// Per-head norms of queries and keys.
    pub qk_norm: bool,
    /// Whether the head shares the embedding.
    pub tied: bool,
    /// What the head gives.
    pub output: Output,
    /// Rotary embedding.
    pub rope: Rope,
    /// Per layer, the sliding window.
    pub windows: Vec<Option<usize>>,
    /// Longest sequence the configuration names.
    pub max_positions: usize,
    /// Standard deviation of a fresh initialisation.
    pub initializer_range: f64,
}

fn wrong(key: &str, got: &str, expected: &'static str) -> ModelError {
    ModelError::Key { file: CONFIG, key: key.to_owned(), got: got.to_owned(), expected }
}

const FAMILIES: &str = "llama, mistral, qwen2, qwen3, phi3";

impl Spec {
    /// The same transformer under a score instead of a vocabulary.
    #[must_use]
    pub fn scoring(self) -> Self {
        Self { output: Output::Score, tied: false, ..self }
    }

    /// The head's module name.
    #[must_use]
    pub fn head_name(&self) -> &'static str {
        match self.output {
            Output::Vocabulary => HEAD,
            Output::Score => SCORE,
        }
    }

    /// Reads a spec from `config.json`.
    ///
    /// # Errors
    /// If a key is missing or of the wrong kind, or names something that is not computed here.
    pub fn from_config(config: &ConfigFile) -> Result<Self, ModelError> {
        let family = match config.str("model_type")? {
            Some("llama") => Family::Llama,
            Some("mistral") => Family::Mistral,
            Some("qwen2") => Family::Qwen2,
            Some("qwen3") => Family::Qwen3,
            Some("phi3") => Family::Phi3,
            other => {
                return Err(ModelError::Unsupported {
                    key: "model_type".to_owned(),
                    got: other.unwrap_or("missing").to_owned(),
                    supported: FAMILIES,
                });
            }
        };
        if let Some(act) = config.str("hidden_act")?
            && !matches!(act, "silu" | "swish")
        {
            return Err(ModelError::Unsupported {
                key: "hidden_act".to_owned(),
                got: act.to_owned(),
                supported: "silu",
            });
        }
        if config.get("quantization_config").is_some() {
            return Err(ModelError::Unsupported {
                key: "quantization_config".to_owned(),
                got: "set".to_owned(),
                supported: "unquantised weights in float32, bfloat16 or float16",
            });
        }
        let output = output(config)?;
        let hidden = config.require_usize("hidden_size")?;
        let layers = config.require_usize("num_hidden_layers")?;
        let heads = config.require_usize("num_attention_heads")?;
        let kv_heads = match (config.usize("num_key_value_heads")?, family) {
            (Some(n), _) => n,
            // Absent is the class's default, null is one per query head.
            (None, Family::Mistral) if !config.json.contains_key("num_key_value_heads") => 8,
            (None, Family::Qwen2 | Family::Qwen3) if !config.json.contains_key("num_key_value_heads") => 32,
            (None, _) => heads,
        };
        let head_dim = match (config.usize("head_dim")?, family) {
            (Some(d), _) => d,
            (None, Family::Qwen3) => 128,
            (None, _) => hidden / heads.max(1),
        };
        for (key, value) in [
            ("hidden_size", hidden),
            ("num_hidden_layers", layers),
            ("num_attention_heads", heads),
            ("head_dim", head_dim),
        ] {
            if value == 0 {
                return Err(wrong(key, "0", "a positive integer"));
            }
        }
        if head_dim % 2 != 0 {
            return Err(wrong("head_dim", &head_dim.to_string(), "an even number, whose halves rotate"));
        }
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(ModelError::Unsupported {
                key: "num_key_value_heads".to_owned(),
                got: format!("{kv_heads} for {heads} heads"),
                supported: "a divisor of num_attention_heads",
            });
        }
        let attention_bias = config.bool("attention_bias", false)?;
        let max_positions = config.usize("max_position_embeddings")?.unwrap_or(match family {
            Family::Llama => 2048,
            Family::Mistral => 131_072,
            Family::Qwen2 | Family::Qwen3 => 32_768,
            Family::Phi3 => 4096,
        });
        let original_positions = if family == Family::Phi3 { 4096 } else { max_positions };
        let norm_eps = if family == Family::Phi3 { 1e-5 } else { 1e-6 };
        Ok(Self {
            family,
            vocab: config.require_usize("vocab_size")?,
            hidden,
            intermediate: config.require_usize("intermediate_size")?,
            layers,
            heads,
            kv_heads,
            head_dim,
            norm_eps: config.f64("rms_norm_eps")?.unwrap_or(norm_eps) as f32,
            qkv_bias: match family {
                Family::Qwen2 => true,
                Family::Llama | Family::Qwen3 => attention_bias,
                Family::Mistral | Family::Phi3 => false,
            },
            o_bias: matches!(family, Family::Llama | Family::Qwen3) && attention_bias,
            mlp_bias: family == Family::Llama && config.bool("mlp_bias", false)?,
            packed: family == Family::Phi3,
            qk_norm: family == Family::Qwen3,
            tied: config.bool("tie_word_embeddings", false)? && output == Output::Vocabulary,
            output,
            rope: rope::from_config(config, head_dim, max_positions, original_positions)?,
            windows: windows(config, family, layers)?,
            max_positions,
            initializer_range: config.f64("initializer_range")?.unwrap_or(0.02),
        })
    }
}

/// How the classes of Transformers are called whose head gives a score.
pub(crate) const SCORING: &str = "ForSequenceClassification";

/// The head that `architectures` names; of scores there must be one.
fn output(config: &ConfigFile) -> Result<Output, ModelError> {
    let class = config.get("architectures").and_then(|a| a.get(0)).and_then(serde_json::Value::as_str);
    if !class.is_some_and(|class| class.ends_with(SCORING)) {
        return Ok(Output::Vocabulary);
    }
    let named = config.get("id2label").and_then(|labels| labels.as_object()).map(serde_json::Map::len);
    // Transformers' default is two.
    let labels = named.or(config.usize("num_labels")?).unwrap_or(2);
    if labels == 1 {
        return Ok(Output::Score);
    }
    Err(ModelError::Unsupported {
        key: "id2label".to_owned(),
        got: format!("{labels} labels"),
        supported: "one label, whose score is the reward",
    })
}

/// Sliding windows per layer: Mistral's and Phi-3's on all layers, Qwen's by `layer_types` or `max_window_layers`.
fn windows(config: &ConfigFile, family: Family, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    // Absent is the class's default, null is no window.
    let window = match config.usize("sliding_window")? {
        None if !config.json.contains_key("sliding_window") && family != Family::Phi3 => Some(4096),
        Some(0) => return Err(wrong("sliding_window", "0", "a positive integer, or null for none")),
        window => window,
    };
    let used = match family {
        Family::Llama => return Ok(vec![None; layers]),
        Family::Mistral | Family::Phi3 => return Ok(vec![window; layers]),
        Family::Qwen2 | Family::Qwen3 => config.bool("use_sliding_window", false)?,
    };
    let window = if used { window } else { None };
    if let Some(types) = config.get("layer_types") {
        let types = types.as_array().filter(|t| t.len() == layers).ok_or_else(|| ModelError::Key {
            file: CONFIG,
            key: "layer_types".to_owned(),
            got: types.to_string(),
            expected: "one entry per layer",
        })?;
        return types
            .iter()
            .map(|t| match t.as_str() {
                Some("full_attention") => Ok(None),
                Some("sliding_attention") => Ok(window),
                _ => Err(ModelError::Unsupported {
                    key: "layer_types".to_owned(),
                    got: t.to_string(),
                    supported: "full_attention, sliding_attention",
                }),
            })
            .collect();
    }
    let full_until = config.usize("max_window_layers")?.unwrap_or(28);
    Ok((0..layers).map(|l| if l >= full_until { window } else { None }).collect())
}
