//! Qwen.

use serde_json::{Value, json};

use super::mixtures::{qwen_blocks, qwen_delta_mixture};
use super::multimodal::plain_rope;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader};
use crate::ModelError;
use crate::spec::{GatedDelta, HeadGates, NormKind, QkNorm, Spec, names, wrong};

/// Qwen's windows: by `layer_types`, or on the layers from `max_window_layers` on.
pub(super) fn qwen_windows(r: &Reader<'_>, spec: &mut Spec, full_until: usize) -> Result<(), ModelError> {
    let window = r.window(Some(4096))?.filter(|_| r.bool("use_sliding_window", false).unwrap_or(false));
    r.bool("use_sliding_window", false)?;
    let full_until = r.config.usize("max_window_layers")?.unwrap_or(full_until);
    r.windows(spec, window, |layer| layer >= full_until)
}

pub(super) fn qwen2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(32), max_positions: 32_768, ..LLAMA_DEFAULTS })?;
    spec.qkv_bias = true;
    qwen_windows(r, &mut spec, 28)?;
    Ok(spec)
}

/// MiMo: Qwen2, before blocks that predict tokens further on, which nothing reads.
pub(super) fn mimo(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = qwen2(r)?;
    spec.names = names::MIMO;
    spec.qkv_bias = r.bool("attention_bias", true)?;
    Ok(spec)
}

pub(super) fn qwen3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(32), head_dim: Some(128), max_positions: 32_768, ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    qwen_windows(r, &mut spec, 28)?;
    Ok(spec)
}

/// What Qwen3-Next and Qwen3.5 share: gated delta rules in most blocks, attention with gates in the others.
fn deltas(r: &Reader<'_>, kv_heads: usize) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(kv_heads),
        head_dim: Some(256),
        max_positions: 32_768,
        partial_rotary: Some(0.25),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.norm = NormKind::RmsPlusOne;
    spec.qk_norm = Some(QkNorm::PerHead);
    spec.head_gates = Some(HeadGates::BehindQueries);
    let sizes = GatedDelta {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        taps: 4,
        doubled: false,
        by_channel: None,
        norm_eps: None,
    };
    let every = r.positive_or("full_attention_interval", 4)?;
    delta_blocks(r, &mut spec, sizes, |at| (at + 1) % every == 0)?;
    Ok(spec)
}

/// Gated delta rules in blocks that do not attend, by `layer_types` or else by `attends`.
pub(super) fn delta_blocks(
    r: &Reader<'_>,
    spec: &mut Spec,
    defaults: GatedDelta,
    attends: impl Fn(usize) -> bool,
) -> Result<(), ModelError> {
    let sizes = GatedDelta {
        key_heads: r.positive_or("linear_num_key_heads", defaults.key_heads)?,
        value_heads: r.positive_or("linear_num_value_heads", defaults.value_heads)?,
        key_dim: r.positive_or("linear_key_head_dim", defaults.key_dim)?,
        value_dim: r.positive_or("linear_value_head_dim", defaults.value_dim)?,
        taps: r.positive_or("linear_conv_kernel_dim", defaults.taps)?,
        ..defaults
    };
    if !sizes.value_heads.is_multiple_of(sizes.key_heads) || sizes.value_heads > MOST_DELTA_HEADS {
        let got = format!("{} for {} heads of keys", sizes.value_heads, sizes.key_heads);
        return Err(wrong(
            "linear_num_value_heads",
            &got,
            "a multiple of linear_num_key_heads, at most 65536",
        ));
    }
    let layers = spec.layers.len();
    let attends: Vec<bool> = match r.config.get("layer_types") {
        None => (0..layers).map(attends).collect(),
        Some(types) => {
            let kinds = types.as_array().filter(|types| types.len() >= layers);
            let kinds =
                kinds.ok_or_else(|| wrong("layer_types", &types.to_string(), "one entry per layer"))?;
            let attends = |kind: &Value| match kind.as_str() {
                Some("full_attention") => Ok(true),
                Some("linear_attention") => Ok(false),
                _ => Err(ModelError::Unsupported {
                    key: "layer_types".to_owned(),
                    got: kind.to_string(),
                    supported: "full_attention, linear_attention",
                }),
            };
            kinds.iter().take(layers).map(attends).collect::<Result<_, _>>()?
        }
    };
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        layer.delta = !attends;
    }
    spec.delta = Some(sizes);
    Ok(())
}

/// Heads of a delta rule, at most.
const MOST_DELTA_HEADS: usize = 65_536;

pub(super) fn qwen3_5(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = plain_rope(r.config);
    let r = Reader { config: &config, family: r.family };
    Ok(Spec { names: names::QWEN3_5, ..deltas(&r, 4)? })
}

/// Its mixtures, whose weights sum to one.
pub(super) fn qwen3_5_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = plain_rope(r.config);
    // No block of it is dense.
    config.json.entry("intermediate_size").or_insert(json!(512));
    let r = Reader { config: &config, family: r.family };
    let mut spec = Spec { names: names::QWEN3_5, ..deltas(&r, 2)? };
    qwen_delta_mixture(&r, &mut spec, [256, 8], true)?;
    Ok(spec)
}

pub(super) fn qwen3_next(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = Spec { names: names::QWEN3_NEXT, ..deltas(r, 2)? };
    qwen_delta_mixture(r, &mut spec, [512, 10], r.bool("norm_topk_prob", true)?)?;
    qwen_blocks(r, &mut spec)?;
    Ok(spec)
}
