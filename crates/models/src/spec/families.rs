//! The families: what each one's `config.json` means, with the defaults of Transformers' classes.
//!
//! A family is an entry of [`FAMILIES`]: its `model_type`, its class and a function that starts from [`Reader::spec`],
//! which is Llama, and says what differs. Keys that change what is computed and are not computed here are refused with
//! [`Reader::only`].

use burnish_core::Activation;
use serde_json::{Map, Value};

use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::names::{self, LLAMA, QkvNames};
use crate::spec::rope::{Rope, RopeDefaults, RopeKind};
use crate::spec::{
    BlockLayout, LayerSpec, LearnedPositions, NormKind, Output, Pairs, QkNorm, QueryGrowth, SCORING, Spec,
    wrong,
};

/// A model family, by `model_type`.
#[derive(Clone, Copy)]
pub struct Family(&'static Entry);

/// What is known of a family.
struct Entry {
    model_type: &'static str,
    /// Transformers' classes are called by it: `LlamaForCausalLM`.
    class: &'static str,
    read: fn(&Reader<'_>) -> Result<Spec, ModelError>,
}

impl Family {
    /// The family of a `model_type`.
    #[must_use]
    pub fn of(model_type: &str) -> Option<Self> {
        FAMILIES.iter().find(|entry| entry.model_type == model_type).map(Self)
    }

    /// Every family.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(Self)
    }

    /// `model_type` of `config.json`.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        self.0.model_type
    }

    /// What Transformers' classes begin with.
    #[must_use]
    pub fn class(self) -> &'static str {
        self.0.class
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type() == other.model_type()
    }
}

impl Eq for Family {}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.model_type())
    }
}

const fn family(
    model_type: &'static str,
    class: &'static str,
    read: fn(&Reader<'_>) -> Result<Spec, ModelError>,
) -> Entry {
    Entry { model_type, class, read }
}

/// Every family, in the order of messages.
static FAMILIES: &[Entry] = &[
    family("llama", "Llama", llama),
    family("mistral", "Mistral", mistral),
    family("qwen2", "Qwen2", qwen2),
    family("qwen3", "Qwen3", qwen3),
    family("phi3", "Phi3", phi3),
    family("gemma", "Gemma", gemma),
    family("gemma2", "Gemma2", gemma2),
    family("gemma3_text", "Gemma3", gemma3),
    family("smollm3", "SmolLM3", smollm3),
    family("granite", "Granite", granite),
    family("olmo", "Olmo", olmo),
    family("olmo2", "Olmo2", olmo2),
    family("olmo3", "Olmo3", olmo3),
    family("ministral", "Ministral", ministral),
    family("ministral3", "Ministral3", ministral3),
    family("cohere", "Cohere", cohere),
    family("cohere2", "Cohere2", cohere2),
    family("glm", "Glm", glm),
    family("glm4", "Glm4", glm4),
    family("starcoder2", "Starcoder2", starcoder2),
    family("phi", "Phi", phi),
    family("stablelm", "StableLm", stablelm),
    family("nemotron", "Nemotron", nemotron),
    family("gpt_neox", "GPTNeoX", gpt_neox),
    family("internlm3", "Llama", internlm3),
    family("exaone4", "Exaone4", exaone4),
    family("helium", "Helium", helium),
    family("ernie4_5", "Ernie4_5", ernie4_5),
    family("seed_oss", "SeedOss", seed_oss),
    family("hunyuan_v1_dense", "HunYuanDenseV1", hunyuan),
    family("arcee", "Arcee", arcee),
    family("opt", "OPT", opt),
    family("falcon", "Falcon", falcon),
    family("gptj", "GPTJ", gptj),
    family("gpt_neo", "GPTNeo", gpt_neo),
    family("gpt_bigcode", "GPTBigCode", gpt_bigcode),
];

/// The spec of a configuration.
pub(super) fn read(config: &ConfigFile) -> Result<Spec, ModelError> {
    let named = config.str("model_type")?;
    let Some(family) = named.and_then(Family::of) else {
        return Err(ModelError::Family {
            got: named.unwrap_or("missing").to_owned(),
            supported: Family::all().map(Family::model_type).collect::<Vec<_>>().join(", "),
        });
    };
    if config.get("quantization_config").is_some() {
        return Err(ModelError::Unsupported {
            key: "quantization_config".to_owned(),
            got: "set".to_owned(),
            supported: "unquantised weights in float32, bfloat16 or float16",
        });
    }
    let reader = Reader { config, family };
    let spec = (family.0.read)(&reader)?;
    check(&spec)?;
    Ok(spec)
}

/// What every family needs.
fn check(spec: &Spec) -> Result<(), ModelError> {
    let Spec { heads, kv_heads, head_dim, .. } = *spec;
    if !head_dim.is_multiple_of(2) && !spec.ropes.is_empty() {
        return Err(wrong("head_dim", &head_dim.to_string(), "an even number, whose halves rotate"));
    }
    if kv_heads == 0 || heads % kv_heads != 0 {
        return Err(ModelError::Unsupported {
            key: "num_key_value_heads".to_owned(),
            got: format!("{kv_heads} for {heads} heads"),
            supported: "a divisor of num_attention_heads",
        });
    }
    if let Some(rope) = spec.ropes.iter().find(|rope| rope.dim % 2 != 0 || rope.dim > head_dim) {
        return Err(wrong(
            "partial_rotary_factor",
            &format!("{} of {head_dim} dimensions", rope.dim),
            "an even number of a head's dimensions",
        ));
    }
    Ok(())
}

/// Defaults that Transformers' configuration classes differ in; those of Llama, but for what a family says.
#[derive(Clone, Copy)]
struct Defaults {
    /// `num_key_value_heads`, where the key is absent (null is one per query head).
    kv_heads: Option<usize>,
    /// `head_dim`, where it is absent or null; else the hidden size over the heads.
    head_dim: Option<usize>,
    /// Whether the configuration's `head_dim` counts.
    reads_head_dim: bool,
    max_positions: usize,
    norm_eps: f64,
    /// The key of the norms' epsilon.
    eps_key: &'static str,
    tied: bool,
    pad_token: Option<u64>,
    /// Whether the embedding has a padding row at all.
    pads: bool,
    activation: &'static str,
    activation_key: &'static str,
    initializer_range: f64,
    rope_theta: f64,
    /// `partial_rotary_factor`, where the family has one.
    partial_rotary: Option<f64>,
}

const LLAMA_DEFAULTS: Defaults = Defaults {
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

/// A configuration on its way to a spec.
struct Reader<'a> {
    config: &'a ConfigFile,
    family: Family,
}

impl Reader<'_> {
    /// Llama's spec with these defaults: one rope on all layers, no windows, no biases.
    fn spec(&self, defaults: &Defaults) -> Result<Spec, ModelError> {
        let config = self.config;
        let output = output(config)?;
        let hidden = self.positive("hidden_size")?;
        let layers = self.positive("num_hidden_layers")?;
        let heads = self.positive("num_attention_heads")?;
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
            hidden,
            intermediate: self.positive("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            norm: NormKind::Rms,
            norm_eps: config.f64(defaults.eps_key)?.unwrap_or(defaults.norm_eps) as f32,
            layout: BlockLayout::Pre,
            qk_norm: None,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            head_bias: false,
            activation: self.activation(defaults.activation_key, defaults.activation)?,
            attention_scale: (head_dim as f32).powf(-0.5),
            attention_softcap: None,
            clip_qkv: None,
            query_growth: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            tied: config.bool("tie_word_embeddings", defaults.tied)? && output == Output::Vocabulary,
            output,
            ropes: vec![rope],
            pairs: Pairs::Halves,
            recached_beyond: None,
            positions: None,
            layers: vec![LayerSpec { window: None, rope: Some(0) }; layers],
            padding: if defaults.pads { self.padding(defaults.pad_token)? } else { None },
            max_positions,
            initializer_range: config.f64("initializer_range")?.unwrap_or(defaults.initializer_range),
        })
    }

    fn positive(&self, key: &str) -> Result<usize, ModelError> {
        match self.config.require_usize(key)? {
            0 => Err(wrong(key, "0", "a positive integer")),
            n => Ok(n),
        }
    }

    fn bool(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        self.config.bool(key, default)
    }

    /// A factor with its default.
    fn f32(&self, key: &str, default: f64) -> Result<f32, ModelError> {
        Ok(self.config.f64(key)?.unwrap_or(default) as f32)
    }

    /// A number with its default, or none where it is null.
    fn nullable(&self, key: &str, default: Option<f64>) -> Result<Option<f32>, ModelError> {
        if !self.config.json.contains_key(key) {
            return Ok(default.map(|x| x as f32));
        }
        Ok(self.config.f64(key)?.map(|x| x as f32))
    }

    fn activation(&self, key: &str, default: &str) -> Result<Activation, ModelError> {
        let word = self.config.str(key)?.unwrap_or(default);
        Activation::of_word(word).ok_or_else(|| ModelError::Unsupported {
            key: key.to_owned(),
            got: word.to_owned(),
            supported: Activation::WORDS,
        })
    }

    /// The token whose embedding the lookup does not train: `padding_idx`, from the end where it is negative.
    fn padding(&self, default: Option<u64>) -> Result<Option<u32>, ModelError> {
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
    fn only(&self, key: &str, value: bool) -> Result<(), ModelError> {
        if self.bool(key, value)? == value {
            return Ok(());
        }
        let supported = if value { "true" } else { "false" };
        Err(ModelError::Unsupported { key: key.to_owned(), got: (!value).to_string(), supported })
    }

    /// `sliding_window`: absent is the class's default, null is none.
    fn window(&self, default: Option<usize>) -> Result<Option<usize>, ModelError> {
        match self.config.usize("sliding_window")? {
            None if !self.config.json.contains_key("sliding_window") => Ok(default),
            Some(0) => Err(wrong("sliding_window", "0", "a positive integer, or null for none")),
            window => Ok(window),
        }
    }

    /// Per layer whether it slides: by `layer_types`, else by `default`.
    fn sliding(&self, layers: usize, default: impl Fn(usize) -> bool) -> Result<Vec<bool>, ModelError> {
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
    fn windows(
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
    fn pattern(&self, default: usize) -> Result<usize, ModelError> {
        Ok(self.config.usize("sliding_window_pattern")?.unwrap_or(default).max(1))
    }

    /// One rope for the layers that slide and one for the others, where `rope_parameters` has both or their bases differ.
    fn ropes_by_type(&self, spec: &mut Spec, local: f64, global: f64) -> Result<(), ModelError> {
        let nested = |kind: &str| -> Option<&Map<String, Value>> {
            self.config.get("rope_parameters")?.get(kind)?.as_object()
        };
        let defaults = |theta: f64| RopeDefaults {
            head_dim: spec.head_dim,
            max_positions: spec.max_positions,
            original_positions: spec.max_positions,
            theta,
            partial: None,
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

/// The configuration with keys under the names that most families have: `(theirs, the family's)`.
fn renamed(config: &ConfigFile, names: &[(&str, &str)]) -> ConfigFile {
    let mut config = config.clone();
    for (theirs, own) in names {
        if let Some(value) = config.json.get(*own).cloned() {
            config.json.insert((*theirs).to_owned(), value);
        }
    }
    config
}

/// The same with a feed-forward four times as wide as the stream where nothing is said.
fn four_times_wide(mut config: ConfigFile) -> ConfigFile {
    if config.get("intermediate_size").is_none()
        && let Some(hidden) = config.get("hidden_size").and_then(Value::as_u64)
    {
        config.json.insert("intermediate_size".to_owned(), Value::from(4 * hidden));
    }
    config
}

/// The keys of the first GPTs.
const GPT_KEYS: [(&str, &str); 5] = [
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
];

/// The head that `architectures` names; of scores there must be one.
fn output(config: &ConfigFile) -> Result<Output, ModelError> {
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

fn llama(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let attention_bias = r.bool("attention_bias", false)?;
    Ok(Spec {
        qkv_bias: attention_bias,
        o_bias: attention_bias,
        mlp_bias: r.bool("mlp_bias", false)?,
        ..r.spec(&LLAMA_DEFAULTS)?
    })
}

fn mistral(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(8), max_positions: 131_072, ..LLAMA_DEFAULTS })?;
    let window = r.window(Some(4096))?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

/// Qwen's windows: by `layer_types`, or on the layers from `max_window_layers` on.
fn qwen_windows(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let window = r.window(Some(4096))?.filter(|_| r.bool("use_sliding_window", false).unwrap_or(false));
    r.bool("use_sliding_window", false)?;
    let full_until = r.config.usize("max_window_layers")?.unwrap_or(28);
    r.windows(spec, window, |layer| layer >= full_until)
}

fn qwen2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(32), max_positions: 32_768, ..LLAMA_DEFAULTS })?;
    spec.qkv_bias = true;
    qwen_windows(r, &mut spec)?;
    Ok(spec)
}

fn qwen3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(32), head_dim: Some(128), max_positions: 32_768, ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    qwen_windows(r, &mut spec)?;
    Ok(spec)
}

fn phi3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        max_positions: 4096,
        norm_eps: 1e-5,
        pad_token: Some(32_000),
        partial_rotary: Some(1.0),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::PHI3;
    let original_positions = 4096;
    spec.ropes = vec![Rope::read(
        r.config,
        &RopeDefaults {
            head_dim: spec.head_dim,
            max_positions: spec.max_positions,
            original_positions,
            theta: 10_000.0,
            partial: Some(1.0),
        },
    )?];
    if let RopeKind::LongRope { original, .. } = spec.ropes[0].kind {
        spec.recached_beyond = Some(original as usize);
    }
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

/// What the three Gemmas share.
const GEMMA: Defaults = Defaults {
    head_dim: Some(256),
    max_positions: 8192,
    tied: true,
    pad_token: Some(0),
    activation: "gelu_pytorch_tanh",
    ..LLAMA_DEFAULTS
};

fn gemma_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    r.only("use_bidirectional_attention", false)?;
    let mut spec = r.spec(defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.norm = NormKind::RmsPlusOne;
    spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    Ok(spec)
}

fn gemma(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = gemma_spec(r, &Defaults { kv_heads: Some(16), ..GEMMA })?;
    // The first releases say `gelu` and mean the tanh form.
    if spec.activation == Activation::Gelu {
        spec.activation = Activation::GeluTanh;
    }
    Ok(spec)
}

fn gemma2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { kv_heads: Some(4), activation_key: "hidden_activation", ..GEMMA };
    let mut spec = gemma_spec(r, &defaults)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Sandwich;
    spec.attention_scale = r.f32("query_pre_attn_scalar", 256.0)?.powf(-0.5);
    spec.attention_softcap = r.nullable("attn_logit_softcapping", Some(50.0))?;
    spec.logit_softcap = r.nullable("final_logit_softcapping", Some(30.0))?;
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |layer| layer % 2 == 0)?;
    Ok(spec)
}

fn gemma3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(4), max_positions: 131_072, activation_key: "hidden_activation", ..GEMMA };
    let mut spec = gemma_spec(r, &defaults)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Sandwich;
    spec.qk_norm = Some(QkNorm::PerHead);
    spec.attention_scale = r.f32("query_pre_attn_scalar", 256.0)?.powf(-0.5);
    // Transformers has `attn_logit_softcapping` in the configuration and applies none.
    spec.logit_softcap = r.nullable("final_logit_softcapping", None)?;
    let (window, pattern) = (r.window(Some(4096))?, r.pattern(6)?);
    r.windows(&mut spec, window, |layer| (layer + 1) % pattern != 0)?;
    r.ropes_by_type(&mut spec, 10_000.0, 1_000_000.0)?;
    let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % pattern != 0)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    Ok(spec)
}

fn smollm3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(4),
        max_positions: 32_768,
        tied: true,
        pad_token: Some(128_004),
        rope_theta: 2_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    let interval = r.config.usize("no_rope_layer_interval")?.unwrap_or(4).max(1);
    let layers = spec.layers.len();
    let turned: Vec<bool> = match r.config.get("no_rope_layers") {
        None => (0..layers).map(|layer| (layer + 1) % interval != 0).collect(),
        Some(value) => {
            let list = value.as_array().filter(|list| list.len() >= layers);
            let list = list.ok_or_else(|| {
                wrong("no_rope_layers", &value.to_string(), "one 0 or 1 per layer, 1 where it has a rope")
            })?;
            list.iter()
                .take(layers)
                .map(|v| v.as_u64().map_or(v.as_bool() == Some(true), |n| n != 0))
                .collect()
        }
    };
    for (layer, turned) in spec.layers.iter_mut().zip(&turned) {
        layer.rope = turned.then_some(0);
    }
    let window = if r.bool("use_sliding_window", false)? { r.window(None)? } else { None };
    r.windows(&mut spec, window, |layer| !turned[layer])?;
    Ok(spec)
}

fn granite(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = llama(r)?;
    spec.attention_scale = r.f32("attention_multiplier", 1.0)?;
    spec.embedding_scale = r.f32("embedding_multiplier", 1.0)?;
    spec.residual_scale = r.f32("residual_multiplier", 1.0)?;
    spec.logit_scale = 1.0 / r.f32("logits_scaling", 1.0)?;
    Ok(spec)
}

/// What the three OLMos share.
const OLMO: Defaults = Defaults { pad_token: Some(1), norm_eps: 1e-5, ..LLAMA_DEFAULTS };

fn olmo_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    let mut spec = r.spec(defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    Ok(spec)
}

fn olmo(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = olmo_spec(r, &OLMO)?;
    (spec.norm, spec.norm_eps) = (NormKind::LayerBare, 1e-5);
    spec.clip_qkv = r.nullable("clip_qkv", None)?;
    Ok(spec)
}

fn olmo2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = olmo_spec(r, &OLMO)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Post;
    spec.qk_norm = Some(QkNorm::WholeWidth);
    Ok(spec)
}

fn olmo3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = olmo2(r)?;
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |layer| (layer + 1) % 4 != 0)?;
    r.ropes_by_type(&mut spec, 500_000.0, 500_000.0)?;
    // As in Transformers `rope_theta` is that of the layers that see everything.
    let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % 4 != 0)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    Ok(spec)
}

fn ministral(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(8), max_positions: 131_072, ..LLAMA_DEFAULTS })?;
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |_| true)?;
    Ok(spec)
}

fn ministral3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 262_144,
        norm_eps: 1e-5,
        pad_token: Some(11),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let rope = r.config.get("rope_parameters").or_else(|| r.config.get("rope_scaling"));
    let number = |key: &str| rope.and_then(|rope| rope.get(key)).and_then(Value::as_f64);
    let Some(beta) = number("llama_4_scaling_beta") else {
        return Err(wrong("rope_parameters.llama_4_scaling_beta", "missing", "a number"));
    };
    let original = number("original_max_position_embeddings").unwrap_or(spec.max_positions as f64);
    spec.query_growth = Some(QueryGrowth { beta, original: (original as usize).max(1) });
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

/// What both Coheres share.
const COHERE: Defaults = Defaults {
    max_positions: 8192,
    norm_eps: 1e-5,
    eps_key: "layer_norm_eps",
    tied: true,
    pad_token: Some(0),
    ..LLAMA_DEFAULTS
};

fn cohere_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    let mut spec = r.spec(defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.norm = NormKind::Layer { bias: false };
    spec.layout = BlockLayout::ParallelShared;
    spec.pairs = Pairs::Neighbours;
    spec.logit_scale = r.f32("logit_scale", 0.0625)?;
    Ok(spec)
}

fn cohere(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("use_qk_norm", false)?;
    cohere_spec(r, &Defaults { rope_theta: 500_000.0, ..COHERE })
}

fn cohere2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = cohere_spec(r, &Defaults { reads_head_dim: false, ..COHERE })?;
    let (window, pattern) = (r.window(Some(4096))?, r.pattern(4)?);
    r.windows(&mut spec, window, |layer| (layer + 1) % pattern != 0)?;
    for layer in &mut spec.layers {
        layer.rope = layer.window.map(|_| 0);
    }
    Ok(spec)
}

fn glm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1.562_5e-7,
        pad_token: Some(151_329),
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::GLM;
    spec.qkv_bias = r.bool("attention_bias", true)?;
    spec.pairs = Pairs::Neighbours;
    Ok(spec)
}

fn glm4(r: &Reader<'_>) -> Result<Spec, ModelError> {
    Ok(Spec { names: names::GLM4, layout: BlockLayout::Sandwich, ..glm(r)? })
}

fn starcoder2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        max_positions: 4096,
        norm_eps: 1e-5,
        eps_key: "norm_epsilon",
        tied: true,
        activation: "gelu_pytorch_tanh",
        initializer_range: 0.018_042,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::STARCODER2;
    spec.norm = NormKind::Layer { bias: true };
    let bias = r.bool("use_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, bias);
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

fn phi(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("qk_layernorm", false)?;
    let defaults = Defaults {
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        activation: "gelu_new",
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::PHI;
    spec.norm = NormKind::Layer { bias: true };
    spec.layout = BlockLayout::ParallelShared;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    spec.head_bias = spec.output == Output::Vocabulary;
    Ok(spec)
}

fn stablelm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("qk_layernorm", false)?;
    let defaults = Defaults {
        kv_heads: Some(32),
        reads_head_dim: false,
        max_positions: 4096,
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        partial_rotary: Some(0.25),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.norm = NormKind::Layer { bias: true };
    spec.qkv_bias = r.bool("use_qkv_bias", false)?;
    if r.bool("use_parallel_residual", false)? {
        spec.layout = BlockLayout::ParallelShared;
    }
    Ok(spec)
}

fn nemotron(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        max_positions: 4096,
        norm_eps: 1e-5,
        eps_key: "norm_eps",
        activation: "relu2",
        initializer_range: 0.0134,
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::UNGATED;
    spec.norm = NormKind::LayerPlusOne;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    Ok(spec)
}

fn gpt_neox(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        reads_head_dim: false,
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        pads: false,
        activation: "gelu",
        rope_theta: r.config.f64("rotary_emb_base")?.unwrap_or(10_000.0),
        partial_rotary: Some(r.config.f64("rotary_pct")?.unwrap_or(0.25)),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::GPT_NEOX;
    spec.kv_heads = spec.heads;
    spec.norm = NormKind::Layer { bias: true };
    if r.bool("use_parallel_residual", true)? {
        spec.layout = BlockLayout::Parallel;
    }
    let bias = r.bool("attention_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, true);
    Ok(spec)
}

fn internlm3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        max_positions: 32_768,
        norm_eps: 1e-5,
        pad_token: Some(2),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let either = |key: &str, other: &str| -> Result<bool, ModelError> {
        Ok(r.bool(key, false)? || r.bool(other, false)?)
    };
    let bias = either("attention_bias", "qkv_bias")?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, either("mlp_bias", "bias")?);
    Ok(spec)
}

fn exaone4(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { kv_heads: Some(32), norm_eps: 1e-5, ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Post;
    spec.qk_norm = Some(QkNorm::PerHead);
    let window = r.window(Some(4096))?;
    // A pattern may be spelled, `LLLG`; layer types say the same.
    let word = r.config.get("sliding_window_pattern").and_then(Value::as_str);
    let pattern = match word {
        Some(word) => word.len().max(1),
        None => r.pattern(4)?,
    };
    if window.is_some() {
        r.windows(&mut spec, window, |layer| (layer + 1) % pattern != 0)?;
        let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % pattern != 0)?;
        for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
            layer.rope = slides.then_some(0);
        }
    }
    Ok(spec)
}

fn helium(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(20),
        head_dim: Some(128),
        max_positions: 4096,
        norm_eps: 1e-8,
        pad_token: Some(3),
        rope_theta: 100_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.qkv_bias = r.bool("attention_bias", false)?;
    spec.mlp_bias = r.bool("mlp_bias", false)?;
    spec.pairs = Pairs::Neighbours;
    Ok(spec)
}

fn ernie4_5(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1e-5,
        tied: true,
        pad_token: Some(0),
        rope_theta: 500_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("use_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, bias);
    spec.pairs = Pairs::Neighbours;
    Ok(spec)
}

fn seed_oss(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 524_288,
        pad_token: Some(1),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.qkv_bias = r.bool("attention_bias", true)?;
    spec.o_bias = r.bool("attention_out_bias", false)?;
    spec.mlp_bias = r.bool("mlp_bias", false)?;
    Ok(spec)
}

fn hunyuan(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { norm_eps: 1e-5, pad_token: Some(0), ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::HUNYUAN;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHeadRotated);
    // Stretches the base whatever the length.
    let rope = r.config.get("rope_parameters").or_else(|| r.config.get("rope_scaling"));
    let alpha = rope.and_then(|rope| rope.get("alpha")).and_then(Value::as_f64).filter(|alpha| *alpha != 0.0);
    let (base, d) = (&mut spec.ropes[0], spec.head_dim as f64);
    if let (RopeKind::Dynamic { .. }, Some(alpha)) = (&base.kind, alpha) {
        base.theta *= alpha.powf(d / (d - 2.0));
        base.kind = RopeKind::Default;
    }
    Ok(spec)
}

fn arcee(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { max_positions: 4096, norm_eps: 1e-5, activation: "relu2", ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::UNGATED;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    Ok(spec)
}

fn opt(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("do_layer_norm_before", true)?;
    r.only("_remove_final_layer_norm", false)?;
    r.only("layer_norm_elementwise_affine", true)?;
    let config = renamed(r.config, &[("intermediate_size", "ffn_dim")]);
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        reads_head_dim: false,
        tied: true,
        pad_token: Some(1),
        activation: "relu",
        activation_key: "activation_function",
        eps_key: "layer_norm_eps",
        norm_eps: 1e-5,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let width = config.usize("word_embed_proj_dim")?.unwrap_or(spec.hidden);
    if width != spec.hidden {
        return Err(ModelError::Unsupported {
            key: "word_embed_proj_dim".to_owned(),
            got: width.to_string(),
            supported: "the hidden size",
        });
    }
    spec.names = names::OPT;
    spec.kv_heads = spec.heads;
    (spec.norm, spec.norm_eps) = (NormKind::Layer { bias: true }, 1e-5);
    let bias = r.bool("enable_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, bias);
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.rope = None);
    spec.positions = Some(LearnedPositions { offset: 2, count: spec.max_positions });
    spec.initializer_range = r.config.f64("init_std")?.unwrap_or(0.02);
    Ok(spec)
}

fn falcon(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("alibi", false)?;
    let keys = [("hidden_size", "n_embed"), ("intermediate_size", "ffn_hidden_size")];
    let config = four_times_wide(renamed(r.config, &keys));
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        reads_head_dim: false,
        norm_eps: 1e-5,
        eps_key: "layer_norm_epsilon",
        tied: true,
        pads: false,
        activation: "gelu",
        activation_key: "activation",
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::FALCON;
    spec.norm = NormKind::Layer { bias: true };
    let bias = r.bool("bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, bias);
    let (new, parallel) = (r.bool("new_decoder_architecture", false)?, r.bool("parallel_attn", true)?);
    let per_group = QkvNames::PerGroup("self_attention.query_key_value");
    if new {
        r.only("parallel_attn", true)?;
        spec.kv_heads = config.usize("num_kv_heads")?.unwrap_or(spec.heads);
        spec.names.qkv = per_group;
    } else if r.bool("multi_query", true)? {
        spec.kv_heads = 1;
    } else {
        spec.kv_heads = spec.heads;
        spec.names.qkv = per_group;
    }
    if new && config.usize("num_ln_in_parallel_attn")?.unwrap_or(2) == 2 {
        (spec.names.attention_norm, spec.names.mlp_norm) = ("ln_attn", "ln_mlp");
        spec.layout = BlockLayout::Parallel;
    } else if parallel {
        spec.layout = BlockLayout::ParallelShared;
    }
    Ok(spec)
}

/// What the first GPTs share: every query head has its key head, and the norms are LayerNorms.
fn gpt_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        reads_head_dim: false,
        norm_eps: 1e-5,
        eps_key: "layer_norm_epsilon",
        pads: false,
        activation_key: "activation_function",
        ..*defaults
    };
    let mut spec = r.spec(&defaults)?;
    spec.kv_heads = spec.heads;
    spec.norm = NormKind::Layer { bias: true };
    Ok(spec)
}

/// Positions that are learned instead of turned.
fn learned(spec: &mut Spec) {
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.rope = None);
    spec.positions = Some(LearnedPositions { offset: 0, count: spec.max_positions });
}

fn gptj(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = four_times_wide(renamed(r.config, &GPT_KEYS));
    let r = Reader { config: &config, family: r.family };
    let mut spec = gpt_spec(&r, &Defaults { activation: "gelu_new", ..LLAMA_DEFAULTS })?;
    spec.names = names::GPTJ;
    spec.layout = BlockLayout::ParallelShared;
    spec.pairs = Pairs::Neighbours;
    spec.mlp_bias = true;
    spec.head_bias = spec.output == Output::Vocabulary;
    let dim = if config.json.contains_key("rotary_dim") { r.positive("rotary_dim")? } else { 64 };
    spec.ropes = vec![Rope { theta: 10_000.0, dim, kind: RopeKind::Default }];
    Ok(spec)
}

fn gpt_neo(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [("num_attention_heads", "num_heads"), ("num_hidden_layers", "num_layers")];
    let config = four_times_wide(renamed(r.config, &keys));
    let r = Reader { config: &config, family: r.family };
    let mut spec = gpt_spec(&r, &Defaults { activation: "gelu_new", tied: true, ..LLAMA_DEFAULTS })?;
    spec.names = names::GPT_NEO;
    (spec.o_bias, spec.mlp_bias, spec.attention_scale) = (true, true, 1.0);
    learned(&mut spec);
    let window = config.usize("window_size")?.unwrap_or(256);
    // Kinds of layers, and how often they come.
    let default = serde_json::json!([[["global", "local"], 12]]);
    let types = config.get("attention_types").unwrap_or(&default);
    let mut kinds = Vec::new();
    for item in types.as_array().into_iter().flatten() {
        let times = item.get(1).and_then(Value::as_u64).unwrap_or(0).min(spec.layers.len() as u64);
        for _ in 0..times {
            kinds.extend(item.get(0).and_then(Value::as_array).into_iter().flatten().map(Value::as_str));
        }
    }
    let known = |kind: &Option<&str>| matches!(kind, Some("global" | "local"));
    if kinds.len() != spec.layers.len() || !kinds.iter().all(known) {
        return Err(wrong("attention_types", &types.to_string(), "`global` or `local` for each layer"));
    }
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        layer.window = (kind == Some("local")).then_some(window);
    }
    Ok(spec)
}

fn gpt_bigcode(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("scale_attn_weights", true)?;
    r.only("add_cross_attention", false)?;
    let config = four_times_wide(renamed(r.config, &GPT_KEYS));
    let r = Reader { config: &config, family: r.family };
    let defaults =
        Defaults { activation: "gelu_pytorch_tanh", tied: true, max_positions: 1024, ..LLAMA_DEFAULTS };
    let mut spec = gpt_spec(&r, &defaults)?;
    spec.names = names::GPT_BIGCODE;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    if r.bool("multi_query", true)? {
        spec.kv_heads = 1;
    } else {
        spec.names.qkv = QkvNames::PerGroup("attn.c_attn");
    }
    learned(&mut spec);
    Ok(spec)
}
