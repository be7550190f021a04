//! Reading a configuration: the defaults of classes, and what families share.

use burnish_core::Activation;
use serde_json::{Map, Value};

use super::Family;
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::names::LLAMA;
use crate::spec::rope::{Rope, RopeDefaults, RopeKind};
use crate::spec::{BlockLayout, LayerSpec, NormKind, Output, Pairs, SCORING, Spec, wrong};

/// Defaults that Transformers' configuration classes differ in; those of Llama, but for what a family says.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// `num_key_value_heads`, where the key is absent (null is one per query head).
    pub(super) kv_heads: Option<usize>,
    /// `head_dim`, where it is absent or null; else the hidden size over the heads.
    pub(super) head_dim: Option<usize>,
    /// Whether the configuration's `head_dim` counts.
    pub(super) reads_head_dim: bool,
    pub(super) max_positions: usize,
    pub(super) norm_eps: f64,
    /// The key of the norms' epsilon.
    pub(super) eps_key: &'static str,
    pub(super) tied: bool,
    pub(super) pad_token: Option<u64>,
    /// Whether the embedding has a padding row at all.
    pub(super) pads: bool,
    pub(super) activation: &'static str,
    pub(super) activation_key: &'static str,
    pub(super) initializer_range: f64,
    pub(super) rope_theta: f64,
    /// `partial_rotary_factor`, where the family has one.
    pub(super) partial_rotary: Option<f64>,
}

pub(super) const LLAMA_DEFAULTS: Defaults = Defaults {
    kv_heads: None,
    head_dim: None,
    reads_head_dim: true,
    max_positions: 2048,
    norm_eps: 1e-6,
    eps_key: "rms_norm_eps",
    tied: false,
    pad_token: None,
    pads: true,
    activation: "silu",
    activation_key: "hidden_act",
    initializer_range: 0.02,
    rope_theta: 10_000.0,
    partial_rotary: None,
};

/// Layers and heads are described one by one before any is read: no more than could be.
const MOST_LAYERS: usize = 100_000;
pub(super) const MOST_HEADS: usize = 65_536;
/// Widths are multiplied before a file is looked at: no more than could be.
pub(super) const MOST_WIDTH: usize = 1 << 40;

/// A configuration on its way to a spec.
pub(super) struct Reader<'a> {
    pub(super) config: &'a ConfigFile,
    pub(super) family: Family,
}

impl Reader<'_> {
    /// Llama's spec with these defaults: one rope on all layers, no windows, no biases.
    pub(super) fn spec(&self, defaults: &Defaults) -> Result<Spec, ModelError> {
        let config = self.config;
        let output = output(config)?;
        let hidden = self.positive("hidden_size")?;
        let layers = self.positive("num_hidden_layers")?;
        if layers > MOST_LAYERS {
            return Err(wrong("num_hidden_layers", &layers.to_string(), "at most 100000 layers"));
        }
        let heads = self.positive("num_attention_heads")?;
        if heads > MOST_HEADS {
            return Err(wrong("num_attention_heads", &heads.to_string(), "at most 65536 heads"));
        }
        let kv_heads = match config.usize("num_key_value_heads")? {
            Some(kv_heads) => kv_heads,
            // Absent is the class's default, null is one per query head.
            None if !config.json.contains_key("num_key_value_heads") => defaults.kv_heads.unwrap_or(heads),
            None => heads,
        };
        let own = if defaults.reads_head_dim { config.usize("head_dim")? } else { None };
        let head_dim = own.or(defaults.head_dim).unwrap_or(hidden / heads);
        if head_dim == 0 {
            return Err(wrong("head_dim", "0", "a positive integer"));
        }
        let max_positions = config.usize("max_position_embeddings")?.unwrap_or(defaults.max_positions);
        let rope = Rope::read(
            config,
            &RopeDefaults {
                head_dim,
                max_positions,
                original_positions: max_positions,
                theta: defaults.rope_theta,
                partial: defaults.partial_rotary,
            },
        )?;
        Ok(Spec {
            family: self.family,
            names: LLAMA,
            vocab: self.positive("vocab_size")?,
            embeddings: self.positive("vocab_size")?,
            hidden,
            ends: hidden,
            intermediate: self.positive("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            latent: None,
            narrow_values: None,
            norm: NormKind::Rms,
            norm_eps: self.not_negative(defaults.eps_key, defaults.norm_eps)? as f32,
            post_norm_eps: None,
            end_norms: None,
            layout: BlockLayout::Pre,
            final_norm: true,
            qk_norm: None,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            head_bias: false,
            dense_head: None,
            activation: self.activation(defaults.activation_key, defaults.activation)?,
            clamped_gates: None,
            xielu: false,
            attention_scale: (head_dim as f32).powf(-0.5),
            attention_softcap: None,
            clip_qkv: None,
            slopes: Vec::new(),
            rounded_slopes: Vec::new(),
            sinks: false,
            query_growth: None,
            embedding_scale: 1.0,
            embedding_norm: false,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            unit_head: false,
            tied: config.bool("tie_word_embeddings", defaults.tied)? && output == Output::Vocabulary,
            output,
            part: false,
            ropes: vec![rope],
            pairs: Pairs::Halves,
            recached_beyond: None,
            sinusoids: false,
            positions: None,
            conv: None,
            delta: None,
            ssd: None,
            mlp_scales: [1.0; 2],
            head_gates: None,
            softplus_gates: false,
            experts: None,
            further: 0,
            layers: vec![LayerSpec { rope: Some(0), ..LayerSpec::default() }; layers],
            per_layer: None,
            altup: None,
            layer_scalars: false,
            padding: if defaults.pads { self.padding(defaults.pad_token)? } else { None },
            indexed: None,
            bounded: None,
            max_positions,
            initializer_range: config.f64("initializer_range")?.unwrap_or(defaults.initializer_range),
        })
    }

    pub(super) fn positive(&self, key: &str) -> Result<usize, ModelError> {
        match self.config.require_usize(key)? {
            0 => Err(wrong(key, "0", "a positive integer")),
            n => Ok(n),
        }
    }

    /// A positive integer with its default.
    pub(super) fn positive_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.config.usize(key)? {
            Some(0) => Err(wrong(key, "0", "a positive integer")),
            Some(given) if given > MOST_WIDTH => {
                Err(wrong(key, &given.to_string(), "a positive integer, at most 2^40"))
            }
            given => Ok(given.unwrap_or(default)),
        }
    }

    /// A number that is not negative.
    fn not_negative(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        let number = self.config.f64(key)?.unwrap_or(default);
        if number < 0.0 {
            Err(wrong(key, &number.to_string(), "a number that is not negative"))
        } else {
            Ok(number)
        }
    }

    pub(super) fn bool(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        self.config.bool(key, default)
    }

    /// A factor with its default.
    pub(super) fn f32(&self, key: &str, default: f64) -> Result<f32, ModelError> {
        in_f32(key, self.config.f64(key)?.unwrap_or(default))
    }

    /// A number with its default, or none where it is null.
    pub(super) fn nullable(&self, key: &str, default: Option<f64>) -> Result<Option<f32>, ModelError> {
        if !self.config.json.contains_key(key) {
            return Ok(default.map(|x| x as f32));
        }
        self.config.f64(key)?.map(|x| in_f32(key, x)).transpose()
    }

    /// Where queries, keys and values are clipped: no number that is negative.
    pub(super) fn clip_qkv(&self) -> Result<Option<f32>, ModelError> {
        match self.nullable("clip_qkv", None)? {
            Some(clip) if clip < 0.0 => {
                Err(wrong("clip_qkv", &clip.to_string(), "a number that is not negative, or null for none"))
            }
            clip => Ok(clip),
        }
    }

    pub(super) fn activation(&self, key: &str, default: &str) -> Result<Activation, ModelError> {
        let word = self.config.str(key)?.unwrap_or(default);
        Activation::of_word(word).ok_or_else(|| ModelError::Unsupported {
            key: key.to_owned(),
            got: word.to_owned(),
            supported: Activation::WORDS,
        })
    }

    /// The token whose embedding the lookup does not train: `padding_idx`, from the end where it is negative.
    pub(super) fn padding(&self, default: Option<u64>) -> Result<Option<u32>, ModelError> {
        let vocab = self.positive("vocab_size")? as i64;
        let given = match self.config.json.get("pad_token_id") {
            None => default.map(|id| id as i64),
            Some(Value::Null) => None,
            Some(value) => Some(value.as_i64().ok_or_else(|| {
                wrong("pad_token_id", &value.to_string(), "a token's number, or null for none")
            })?),
        };
        let id = given.map(|id| if id < 0 { id + vocab } else { id });
        Ok(id.filter(|id| (0..vocab).contains(id)).and_then(|id| u32::try_from(id).ok()))
    }

    /// Refuses a key that is anything but `value`, which is what absence means.
    pub(super) fn only(&self, key: &str, value: bool) -> Result<(), ModelError> {
        if self.bool(key, value)? == value {
            return Ok(());
        }
        let supported = if value { "true" } else { "false" };
        Err(ModelError::Unsupported { key: key.to_owned(), got: (!value).to_string(), supported })
    }

    /// Refuses a key that is any other word than this, which is what absence means.
    pub(super) fn only_word(&self, key: &str, word: &'static str) -> Result<(), ModelError> {
        match self.config.str(key)?.filter(|got| *got != word) {
            None => Ok(()),
            Some(got) => {
                Err(ModelError::Unsupported { key: key.to_owned(), got: got.to_owned(), supported: word })
            }
        }
    }

    /// `sliding_window`: absent is the class's default, null is none.
    pub(super) fn window(&self, default: Option<usize>) -> Result<Option<usize>, ModelError> {
        match self.config.usize("sliding_window")? {
            None if !self.config.json.contains_key("sliding_window") => Ok(default),
            Some(0) => Err(wrong("sliding_window", "0", "a positive integer, or null for none")),
            window => Ok(window),
        }
    }

    /// Per layer whether it slides: by `layer_types`, else by `default`.
    pub(super) fn sliding(
        &self,
        layers: usize,
        default: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, ModelError> {
        let Some(types) = self.config.get("layer_types") else {
            return Ok((0..layers).map(default).collect());
        };
        // Transformers takes as many as there are layers.
        let types = types
            .as_array()
            .filter(|t| t.len() >= layers)
            .ok_or_else(|| wrong("layer_types", &types.to_string(), "one entry per layer"))?;
        let slides = |t: &Value| match t.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(ModelError::Unsupported {
                key: "layer_types".to_owned(),
                got: t.to_string(),
                supported: "full_attention, sliding_attention",
            }),
        };
        types.iter().take(layers).map(slides).collect()
    }

    /// Windows on the layers that slide.
    pub(super) fn windows(
        &self,
        spec: &mut Spec,
        window: Option<usize>,
        default: impl Fn(usize) -> bool,
    ) -> Result<(), ModelError> {
        let sliding = self.sliding(spec.layers.len(), default)?;
        for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
            layer.window = window.filter(|_| slides);
        }
        Ok(())
    }

    /// A whole number that may stand under either name of a pattern of windows.
    pub(super) fn pattern(&self, default: usize) -> Result<usize, ModelError> {
        Ok(self.config.usize("sliding_window_pattern")?.unwrap_or(default).max(1))
    }

    /// One rope for the layers that slide and one for the others, where `rope_parameters` has both or their bases differ.
    /// `partial` is what part of a head turns where the family may say so, without a word on it.
    pub(super) fn ropes_by_type(
        &self,
        spec: &mut Spec,
        [local, global]: [f64; 2],
        partial: Option<f64>,
    ) -> Result<(), ModelError> {
        let nested = |kind: &str| -> Option<&Map<String, Value>> {
            self.config.get("rope_parameters")?.get(kind)?.as_object()
        };
        let defaults = |theta: f64| RopeDefaults {
            head_dim: spec.head_dim,
            max_positions: spec.max_positions,
            original_positions: spec.max_positions,
            theta,
            partial,
        };
        let theta = self.config.f64("rope_theta")?;
        let by_type = self.config.get("rope_parameters").is_some();
        let full = match nested("full_attention") {
            Some(map) => Rope::of(map, self.config, &defaults(theta.unwrap_or(global)))?,
            None if by_type => Rope::of(&Map::new(), self.config, &defaults(theta.unwrap_or(global)))?,
            None => Rope::read(self.config, &defaults(global))?,
        };
        let local = self.config.f64("rope_local_base_freq")?.unwrap_or(local);
        let sliding = match nested("sliding_attention") {
            Some(map) => Rope::of(map, self.config, &defaults(local))?,
            None => Rope { theta: local, dim: spec.head_dim, kind: RopeKind::Default },
        };
        spec.ropes = vec![full, sliding];
        Ok(())
    }
}

/// A number that float32 holds.
fn in_f32(key: &str, number: f64) -> Result<f32, ModelError> {
    let narrow = number as f32;
    if narrow.is_finite() {
        Ok(narrow)
    } else {
        Err(wrong(key, &number.to_string(), "a number that float32 holds"))
    }
}

/// The configuration with keys under the names that most families have: `(theirs, the family's)`.
pub(super) fn renamed(config: &ConfigFile, names: &[(&str, &str)]) -> ConfigFile {
    let mut config = config.clone();
    for (theirs, own) in names {
        if let Some(value) = config.json.get(*own).cloned() {
            config.json.insert((*theirs).to_owned(), value);
        }
    }
    config
}

/// The configuration with what its class has where it does not say: an object.
pub(super) fn with_defaults(config: &ConfigFile, defaults: Value) -> ConfigFile {
    let mut config = config.clone();
    for (key, value) in defaults.as_object().cloned().unwrap_or_default() {
        config.json.entry(key).or_insert(value);
    }
    config
}

/// The same with a feed-forward four times as wide as the stream where nothing is said.
pub(super) fn four_times_wide(mut config: ConfigFile) -> ConfigFile {
    if config.get("intermediate_size").is_none()
        && let Some(hidden) = config.get("hidden_size").and_then(Value::as_u64)
    {
        config.json.insert("intermediate_size".to_owned(), Value::from(4 * hidden));
    }
    config
}

/// The slopes of `ALiBi` (Press et al., arXiv:2108.12409): powers of `2^-(8/n)` for the nearest power of two below, then
/// every other one of the next power's.
pub(super) fn alibi_slopes(heads: usize) -> Vec<f32> {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let of = |n: usize, i: usize| 2f64.powf(-8.0 / n as f64 * i as f64) as f32;
    let more = (0..heads - below).map(|i| of(2 * below, 2 * i + 1));
    (1..=below).map(|i| of(below, i)).chain(more).collect()
}

/// The keys of the first GPTs.
pub(super) const GPT_KEYS: [(&str, &str); 5] = [
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
];

/// The head that `architectures` names; of scores there must be one.
pub(super) fn output(config: &ConfigFile) -> Result<Output, ModelError> {
    let class = config.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    if !class.is_some_and(|class| class.ends_with(SCORING)) {
        return Ok(Output::Vocabulary);
    }
    let named = config.get("id2label").and_then(|labels| labels.as_object()).map(Map::len);
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
