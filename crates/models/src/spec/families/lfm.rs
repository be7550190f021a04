//! LFM2 and LFM3: attention in some blocks, short convolutions in the others.

use serde_json::{Value, json};

use super::mixtures::lfm2_mixture;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed};
use crate::ModelError;
use crate::spec::{BlockLayout, HeadGates, QkNorm, ShortConv, Spec, names, wrong};

pub(super) fn lfm2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config =
        renamed(r.config, &[("intermediate_size", "block_ff_dim"), ("tie_word_embeddings", "tie_embedding")]);
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        max_positions: 128_000,
        norm_eps: 1e-5,
        eps_key: "norm_eps",
        tied: true,
        pad_token: Some(0),
        rope_theta: 1_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::LFM2;
    spec.qk_norm = Some(QkNorm::PerHead);
    if r.bool("block_auto_adjust_ff_dim", true)? {
        let mut width = 2 * spec.intermediate / 3;
        if let Some(factor) = r.nullable("block_ffn_dim_multiplier", Some(1.0))? {
            width = (f64::from(factor) * width as f64) as usize;
        }
        let multiple = config.usize("block_multiple_of")?.unwrap_or(256).max(1);
        spec.intermediate = width.next_multiple_of(multiple);
    }
    let taps = config.usize("conv_L_cache")?.unwrap_or(3);
    if taps == 0 {
        return Err(wrong("conv_L_cache", "0", "a positive integer"));
    }
    let layers = spec.layers.len();
    let convolves: Vec<bool> = match (config.get("layer_types"), config.get("full_attn_idxs")) {
        (Some(types), _) => {
            let kinds = types.as_array().filter(|types| types.len() >= layers);
            let kinds = kinds.map(|types| types.iter().take(layers).map(Value::as_str).collect::<Vec<_>>());
            let known = |kinds: &Vec<Option<&str>>| {
                kinds.iter().all(|kind| matches!(kind, Some("conv" | "full_attention")))
            };
            let kinds = kinds.filter(known).ok_or_else(|| {
                wrong("layer_types", &types.to_string(), "`conv` or `full_attention` for each layer")
            })?;
            kinds.into_iter().map(|kind| kind == Some("conv")).collect()
        }
        (None, Some(attends)) => {
            let attends: Vec<u64> =
                attends.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
            (0..layers as u64).map(|layer| !attends.contains(&layer)).collect()
        }
        (None, None) => vec![false; layers],
    };
    for (layer, conv) in spec.layers.iter_mut().zip(convolves) {
        layer.conv = conv;
    }
    spec.conv = Some(ShortConv { taps, bias: r.bool("conv_bias", false)? });
    Ok(spec)
}

/// LFM2 with mixtures of experts, whose widths are as they are said.
pub(super) fn lfm2_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    config.json.insert("block_auto_adjust_ff_dim".to_owned(), Value::from(false));
    let r = Reader { config: &config, family: r.family };
    let mut spec = Spec { names: names::LFM2_MOE, ..lfm2(&r)? };
    lfm2_mixture(&r, &mut spec)?;
    Ok(spec)
}

/// Ropes by kinds of blocks.
const ROPES: &str = "rope_parameters";

/// What a block of LFM3 has in place of attention, or which attention.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Convolves,
    Slides,
    Sees,
}

/// LFM3: a gate for each head, windows, norms on both sides.
pub(super) fn lfm3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    // Its ropes are by kinds of blocks, and read below.
    let mut config = r.config.clone();
    let ropes = config.json.remove(ROPES).filter(|ropes| !ropes.is_null());
    let own = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(4),
        head_dim: Some(128),
        max_positions: 128_000,
        norm_eps: 1e-5,
        eps_key: "norm_eps",
        tied: true,
        pad_token: Some(124_893),
        ..LLAMA_DEFAULTS
    };
    let mut spec = own.spec(&defaults)?;
    spec.names = names::LFM3;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    spec.head_gates = r.bool("use_attention_gate", true)?.then_some(HeadGates::Heads);
    if r.bool("use_sandwich_norm", true)? {
        spec.layout = BlockLayout::Sandwich;
    }
    config.json.insert(ROPES.to_owned(), ropes.unwrap_or_else(|| {
        json!({"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}})
    }));
    Reader { config: &config, family: r.family }.ropes_by_type(&mut spec, [10_000.0, 10_000.0], None)?;
    let window = r.window(Some(256))?;
    for (layer, kind) in spec.layers.iter_mut().zip(kinds(r)?) {
        layer.conv = kind == Kind::Convolves;
        layer.window = window.filter(|_| kind == Kind::Slides);
        layer.rope = Some(usize::from(kind == Kind::Slides));
    }
    let taps = config.usize("conv_L_cache")?.unwrap_or(7);
    if taps == 0 {
        return Err(wrong("conv_L_cache", "0", "a positive integer"));
    }
    spec.conv = Some(ShortConv { taps, bias: r.bool("conv_bias", false)? });
    Ok(spec)
}

/// What LFM3's blocks have, by `layer_types`.
fn kinds(r: &Reader<'_>) -> Result<Vec<Kind>, ModelError> {
    let layers = r.positive("num_hidden_layers")?;
    let Some(types) = r.config.get("layer_types") else {
        let kind = |at: usize| match at % 4 {
            2 => Kind::Sees,
            0 if at > 0 => Kind::Slides,
            _ => Kind::Convolves,
        };
        return Ok((0..layers).map(kind).collect());
    };
    let kind = |kind: &Value| match kind.as_str() {
        Some("conv") => Some(Kind::Convolves),
        Some("sliding_attention") => Some(Kind::Slides),
        Some("full_attention") => Some(Kind::Sees),
        _ => None,
    };
    let list = types.as_array().filter(|list| list.len() >= layers);
    let kinds = list.and_then(|list| list.iter().take(layers).map(kind).collect());
    kinds.ok_or_else(|| {
        let expected = "`conv`, `sliding_attention` or `full_attention` for each layer";
        wrong("layer_types", &types.to_string(), expected)
    })
}
