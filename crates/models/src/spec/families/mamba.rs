//! Families with Mamba-2's state spaces in some or all of their blocks.

use serde_json::{Value, json};

use super::mixtures::{granite_experts, nemotron_experts};
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed, with_defaults};
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::{LayerSpec, Spec, SsdSpec, names, wrong};

/// Heads of a state space, and elements of its parts, at most.
const MOST: usize = 1 << 24;

/// What families call the sizes of a state space.
struct Keys {
    heads: &'static str,
    head_dim: &'static str,
    groups: &'static str,
    state: &'static str,
    taps: &'static str,
    conv_bias: &'static str,
}

const MAMBA: Keys = Keys {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    taps: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
};

/// What their classes have where nothing is said.
struct SsdDefaults {
    heads: usize,
    /// None: the width over the heads.
    head_dim: Option<usize>,
    groups: usize,
    state: usize,
}

const SSD: SsdDefaults = SsdDefaults { heads: 128, head_dim: None, groups: 1, state: 256 };

pub(super) fn number(r: &Reader<'_>, key: &str, default: usize) -> Result<usize, ModelError> {
    match r.config.usize(key)? {
        Some(n) if n == 0 || n > MOST => Err(wrong(key, &n.to_string(), "a positive integer, at most 2^24")),
        given => Ok(given.unwrap_or(default)),
    }
}

/// The sizes of a state space of `width` elements, where a family fixes that.
fn ssd(
    r: &Reader<'_>,
    keys: &Keys,
    defaults: &SsdDefaults,
    width: Option<usize>,
) -> Result<SsdSpec, ModelError> {
    let heads = number(r, keys.heads, defaults.heads)?;
    let auto = r.config.get(keys.head_dim).is_none_or(|value| value.as_str() == Some("auto"));
    let head_dim = match (auto, defaults.head_dim, width) {
        (true, Some(default), _) => default,
        (true, None, Some(width)) => width / heads,
        _ => number(r, keys.head_dim, 1)?,
    };
    let all = heads.saturating_mul(head_dim);
    if width.is_some_and(|width| width != all) || all == 0 || all > MOST {
        let of = width.map_or_else(String::new, |width| format!(", of a width of {width}"));
        let got = format!("{heads} heads of {head_dim}{of}");
        return Err(wrong(keys.heads, &got, "heads whose elements make the width, at most 2^24"));
    }
    let groups = number(r, keys.groups, defaults.groups)?;
    if !heads.is_multiple_of(groups) {
        let got = format!("{groups} for {heads} heads");
        return Err(wrong(keys.groups, &got, "a divisor of the number of heads"));
    }
    steps_unlimited(r)?;
    Ok(SsdSpec {
        heads,
        head_dim,
        groups,
        state: number(r, keys.state, defaults.state)?,
        taps: number(r, keys.taps, 4)?,
        conv_bias: r.bool(keys.conv_bias, true)?,
        biases: [false; 2],
        norm: true,
        norm_before_gate: false,
        scales: [1.0; 5],
        out_scales: [1.0; 2],
        selective: None,
    })
}

/// Refuses limits of steps: Transformers has them where it reads texts, and not where it generates.
fn steps_unlimited(r: &Reader<'_>) -> Result<(), ModelError> {
    let Some(limits) = r.config.get("time_step_limit") else { return Ok(()) };
    let infinite = |value: &Value| {
        value.get("__float__").and_then(Value::as_str) == Some("Infinity")
            || value.as_f64().is_some_and(|limit| limit > 1e30)
    };
    let all = limits.as_array().map(Vec::as_slice);
    if let Some([least, most]) = all
        && least.as_f64() == Some(0.0)
        && infinite(most)
    {
        return Ok(());
    }
    Err(ModelError::Unsupported {
        key: "time_step_limit".to_owned(),
        got: limits.to_string(),
        supported: "[0, infinity]",
    })
}

/// Refuses an activation of the convolution but SiLU.
pub(super) fn convolves_with_silu(r: &Reader<'_>, key: &str) -> Result<(), ModelError> {
    match r.config.str(key)? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => {
            Err(ModelError::Unsupported { key: key.to_owned(), got: other.to_owned(), supported: "silu" })
        }
    }
}

/// `mamba_expand` times the stream's width.
pub(super) fn expanded(r: &Reader<'_>, key: &str) -> Result<usize, ModelError> {
    Ok(number(r, key, 2)?.saturating_mul(r.positive("hidden_size")?))
}

/// The state space of `mamba_*`, as wide as they say.
fn mamba_ssd(r: &Reader<'_>) -> Result<SsdSpec, ModelError> {
    let biases = [r.bool("mamba_proj_bias", false)?; 2];
    Ok(SsdSpec { biases, ..ssd(r, &MAMBA, &SSD, Some(expanded(r, "mamba_expand")?))? })
}

/// Of each block its kind, by the names of today and of before.
fn kinds<'a>(config: &'a ConfigFile, layers: usize) -> Result<Option<Vec<&'a str>>, ModelError> {
    let Some(types) = config.get("layer_types").or_else(|| config.get("layers_block_type")) else {
        return Ok(None);
    };
    let list = types.as_array().filter(|list| list.len() >= layers);
    let list = list.ok_or_else(|| wrong("layer_types", &types.to_string(), "one entry per layer"))?;
    let kind = |kind: &'a Value| match kind.as_str() {
        Some("mamba") => Ok("linear_attention"),
        Some("attention") => Ok("full_attention"),
        Some(other) => Ok(other),
        None => Err(wrong("layer_types", &kind.to_string(), "words")),
    };
    list.iter().take(layers).map(kind).collect::<Result<_, _>>().map(Some)
}

fn unknown_kind(got: &str, supported: &'static str) -> ModelError {
    ModelError::Unsupported { key: "layer_types".to_owned(), got: got.to_owned(), supported }
}

/// A block with a state space in place of attention, or with attention.
pub(super) fn place(layer: &mut LayerSpec, kind: &str) -> Result<(), ModelError> {
    match kind {
        "linear_attention" => {
            (layer.ssd, layer.no_attention) = (true, true);
            Ok(())
        }
        "full_attention" => Ok(()),
        other => Err(unknown_kind(other, "mamba, attention, linear_attention, full_attention")),
    }
}

/// Granite 4: most blocks with a state space, no rotation, a feed-forward in every block, beside experts where there are some.
pub(super) fn granitemoehybrid(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = super::llamas::granite(r)?;
    spec.names = names::GRANITE_HYBRID;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, false);
    let shared = number(r, "shared_intermediate_size", 1024)?;
    if r.config.usize("num_local_experts")? != Some(0) {
        granite_experts(r, &mut spec, shared)?;
    }
    spec.intermediate = shared;
    let layers = spec.layers.len();
    let kinds = kinds(r.config, layers)?.unwrap_or_else(|| vec!["linear_attention"; layers]);
    let turns = r.config.str("position_embedding_type")? == Some("rope");
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        place(layer, kind)?;
        layer.rope = layer.rope.filter(|_| turns);
    }
    convolves_with_silu(r, "hidden_act")?;
    spec.ssd = Some(mamba_ssd(r)?);
    Ok(spec)
}

pub(super) fn bamba(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    // Half of a head turns, whatever is said; but what the rotation itself says goes before.
    config.json.insert("partial_rotary_factor".to_owned(), json!(0.5));
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        reads_head_dim: true,
        max_positions: 262_144,
        norm_eps: 1e-5,
        pad_token: Some(0),
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::BAMBA, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    let attends = match r.config.get("attn_layer_indices") {
        None => Vec::new(),
        Some(list) => list
            .as_array()
            .and_then(|all| all.iter().map(Value::as_u64).collect::<Option<Vec<_>>>())
            .ok_or_else(|| wrong("attn_layer_indices", &list.to_string(), "a list of blocks' numbers"))?,
    };
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        let kind = if attends.contains(&(at as u64)) { "full_attention" } else { "linear_attention" };
        place(layer, kind)?;
    }
    convolves_with_silu(r, "hidden_act")?;
    spec.ssd = Some(mamba_ssd(r)?);
    Ok(spec)
}

/// Falcon-H1: attention and a state space beside each other in every block, and factors everywhere.
pub(super) fn falcon_h1(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        max_positions: 8192,
        norm_eps: 1e-5,
        pad_token: Some(0),
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::BAMBA, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    spec.embedding_scale = r.f32("embedding_multiplier", 1.0)?;
    spec.logit_scale = r.f32("lm_head_multiplier", 1.0)?;
    let factors = |key: &str, count: usize| match r.config.get(key) {
        None => Ok(vec![1.0; count]),
        Some(list) => list
            .as_array()
            .filter(|all| all.len() == count)
            .and_then(|all| all.iter().map(|x| Some(x.as_f64()? as f32)).collect::<Option<Vec<_>>>())
            .ok_or_else(|| {
                wrong(key, &list.to_string(), "a list of numbers: five, or two of the feed-forward")
            }),
    };
    let of_mlp = factors("mlp_multipliers", 2)?;
    spec.mlp_scales = [of_mlp[0], of_mlp[1]];
    let into = r.f32("attention_in_multiplier", 1.0)?;
    let of_ssd = r.f32("ssm_in_multiplier", 1.0)?;
    let in_bias = r.bool("mamba_proj_bias", false)?;
    for (key, factor, biased) in
        [("attention_in_multiplier", into, bias), ("ssm_in_multiplier", of_ssd, in_bias)]
    {
        if biased && factor != 1.0 {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: factor.to_string(),
                supported: "1 where the layers behind it have biases",
            });
        }
    }
    // Queries and keys are both of what is multiplied.
    spec.attention_scale *= into * into * r.f32("key_multiplier", 1.0)?;
    convolves_with_silu(r, "hidden_act")?;
    let width = match r.config.json.contains_key("mamba_d_ssm") {
        true => r.config.usize("mamba_d_ssm")?,
        false => Some(1024),
    };
    let width = match width {
        Some(width) => width,
        None => expanded(r, "mamba_expand")?,
    };
    let mut sizes = ssd(r, &MAMBA, &SSD, Some(width))?;
    sizes.biases = [in_bias, r.bool("projectors_bias", false)?];
    sizes.norm = r.bool("mamba_rms_norm", false)?;
    sizes.norm_before_gate = r.bool("mamba_norm_before_gate", true)?;
    for (scale, factor) in sizes.scales.iter_mut().zip(factors("ssm_multipliers", 5)?) {
        *scale = factor * of_ssd;
    }
    sizes.out_scales = [r.f32("ssm_out_multiplier", 1.0)?, into * r.f32("attention_out_multiplier", 1.0)?];
    spec.ssd = Some(sizes);
    spec.layers.iter_mut().for_each(|layer| layer.ssd = true);
    Ok(spec)
}

const MIXER: Keys = Keys {
    heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    groups: "n_groups",
    state: "ssm_state_size",
    taps: "conv_kernel",
    conv_bias: "use_conv_bias",
};

/// Nemotron-H: each block is a state space, attention without a rotation, or a feed-forward.
pub(super) fn nemotron_h(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = renamed(
        r.config,
        &[
            ("n_groups", "mamba_n_groups"),
            ("conv_kernel", "mamba_d_conv"),
            ("use_conv_bias", "mamba_conv_bias"),
        ],
    );
    if let Some(limits) = config.get("mamba_dt_limit").cloned() {
        config.json.insert("time_step_limit".to_owned(), limits);
    }
    config.json.entry("intermediate_size").or_insert(json!(21_504));
    let given = config.get("layer_types").or_else(|| config.get("layers_block_type"));
    let pattern = config.str("hybrid_override_pattern")?;
    let types: Vec<Value> = match (given, pattern) {
        (Some(types), _) => types.as_array().cloned().unwrap_or_default(),
        (None, Some(pattern)) => pattern
            .chars()
            .map(|letter| match letter {
                'M' => Ok(json!("linear_attention")),
                '*' => Ok(json!("full_attention")),
                '-' => Ok(json!("mlp")),
                'E' => Ok(json!("moe")),
                other => Err(wrong("hybrid_override_pattern", &other.to_string(), "M, *, - and E")),
            })
            .collect::<Result<_, _>>()?,
        (None, None) => ["linear_attention", "moe", "full_attention", "mlp"].map(Value::from).to_vec(),
    };
    if types.is_empty() {
        return Err(wrong("layers_block_type", "nothing", "one entry per layer"));
    }
    config.json.insert("num_hidden_layers".to_owned(), types.len().into());
    config.json.insert("layer_types".to_owned(), Value::Array(types));
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 4096,
        norm_eps: 1e-5,
        eps_key: "layer_norm_epsilon",
        activation: "relu2",
        activation_key: "mlp_hidden_act",
        pads: false,
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::NEMOTRON_H, ..r.spec(&defaults)? };
    spec.mlp_bias = r.bool("mlp_bias", false)?;
    spec.ropes = Vec::new();
    let kinds = kinds(r.config, spec.layers.len())?.unwrap_or_default();
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        layer.rope = None;
        match kind {
            "mlp" => layer.no_attention = true,
            "moe" => (layer.no_attention, layer.experts) = (true, true),
            other => {
                place(layer, other)?;
                layer.no_feed_forward = true;
            }
        }
    }
    if spec.layers.iter().any(|layer| layer.experts) {
        if let Some(latent) = r.config.get("moe_latent_size") {
            return Err(ModelError::Unsupported {
                key: "moe_latent_size".to_owned(),
                got: latent.to_string(),
                supported: "null: experts read the stream",
            });
        }
        nemotron_experts(r, &mut spec)?;
    }
    convolves_with_silu(r, "mamba_hidden_act")?;
    let defaults = SsdDefaults { heads: 128, head_dim: Some(64), groups: 8, state: 128 };
    let bias = r.bool("use_bias", false)?;
    spec.ssd = Some(SsdSpec { biases: [bias; 2], ..ssd(r, &MIXER, &defaults, None)? });
    Ok(spec)
}

const MAMBA2: Keys = Keys { heads: "num_heads", head_dim: "head_dim", state: "state_size", ..MIXER };

/// Blocks of one state space each, with neither attention nor feed-forwards: ranks are counted by its `heads`.
pub(super) fn alone(r: &Reader<'_>, heads: Value, tied: bool) -> Result<Spec, ModelError> {
    let mut config = renamed(r.config, &[("intermediate_size", "hidden_size")]);
    config.json.insert("num_attention_heads".to_owned(), heads);
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        reads_head_dim: false,
        head_dim: Some(2),
        norm_eps: 1e-5,
        eps_key: "layer_norm_epsilon",
        tied,
        pads: false,
        initializer_range: 0.1,
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::MAMBA, ..r.spec(&defaults)? };
    spec.ropes = Vec::new();
    // A text may be of any length.
    spec.max_positions = r.config.usize("max_position_embeddings")?.unwrap_or(1 << 20);
    for layer in &mut spec.layers {
        *layer = LayerSpec { ssd: true, no_attention: true, no_feed_forward: true, ..LayerSpec::default() };
    }
    convolves_with_silu(r, "hidden_act")?;
    Ok(spec)
}

/// Mamba-2: state spaces alone.
pub(super) fn mamba2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"hidden_size": 4096, "vocab_size": 32_768, "num_hidden_layers": 64, "num_heads": 128}),
    );
    let r = &Reader { config: &config, family: r.family };
    let mut spec = alone(r, config.get("num_heads").cloned().unwrap_or_default(), false)?;
    let defaults = SsdDefaults { heads: 128, head_dim: Some(64), groups: 8, state: 128 };
    let bias = r.bool("use_bias", false)?;
    let sizes = ssd(r, &MAMBA2, &defaults, Some(expanded(r, "expand")?))?;
    spec.ssd = Some(SsdSpec { biases: [bias; 2], ..sizes });
    Ok(spec)
}
