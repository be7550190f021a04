//! Delta rules whose channels forget each by itself, between latent attention: Kimi Linear (Kimi Team, arXiv:2510.26692), Ling 3.

use serde_json::{Value, json};

use super::mixtures::{MixtureDefaults, corrected, deepseek, further, typed_blocks};
use super::reader::{Reader, renamed, with_defaults};
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::{ChannelDecay, GatedDelta, HeadGates, Names, Spec, names, wrong};

/// Keys that its class has under other names.
const KEYS: [(&str, &str); 7] = [
    ("num_experts", "num_local_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
    ("norm_topk_prob", "moe_renormalize"),
    ("n_group", "num_expert_group"),
    ("max_position_embeddings", "model_max_length"),
    ("router", "moe_router_activation_func"),
];

pub(super) fn kimi_linear(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = json!({"num_experts": 256, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446, "q_lora_rank": null,
        "num_key_value_heads": null, "max_position_embeddings": 1_048_576, "rms_norm_eps": 1e-5, "norm_topk_prob": true});
    let config = with_defaults(&renamed(r.config, &KEYS), defaults);
    let r = &Reader { config: &config, family: r.family };
    r.only("mla_use_nope", true)?;
    if let Some(got) = r.config.str("router")?.filter(|got| *got != "sigmoid") {
        let key = "moe_router_activation_func".to_owned();
        return Err(ModelError::Unsupported { key, got: got.to_owned(), supported: "sigmoid" });
    }
    let mut spec = hybrid(r, names::KIMI_LINEAR, sizes(r)?, |at| at == 0 || at % 4 != 0)?;
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.rope = None);
    Ok(spec)
}

/// Ling 3: each head of latent attention has a gate, decays are bounded.
pub(super) fn bailing_hybrid(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = json!({"num_experts": 512, "moe_intermediate_size": 768, "routed_scaling_factor": 2.5, "q_lora_rank": null,
        "num_key_value_heads": null, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "n_group": 8,
        "topk_group": 4, "first_k_dense_replace": 2, "rope_theta": 6_000_000.0, "head_dim": 128});
    let config = with_defaults(&renamed(r.config, &KEYS), defaults);
    let r = &Reader { config: &config, family: r.family };
    // Where its class wrote it `head_dim` is what turns of a latent's.
    let dim = r.positive_or("linear_head_dim", r.positive("head_dim")?)?;
    let heads = r.positive_or("linear_num_heads", r.positive("num_attention_heads")?)?;
    let bound = if r.bool("kda_safe_gate", true)? { Some(r.f32("kda_lower_bound", -5.0)?) } else { None };
    if let Some(bound) = bound.filter(|bound| *bound > 0.0) {
        return Err(wrong("kda_lower_bound", &bound.to_string(), "a logarithm, at most 0"));
    }
    let delta = GatedDelta {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        taps: r.positive_or("linear_conv_kernel_dim", r.positive_or("short_conv_kernel_size", 4)?)?,
        doubled: false,
        by_channel: Some(ChannelDecay { rank: None, bound }),
        norm_eps: None,
    };
    let group = r.positive_or("layer_group_size", 6)?;
    let mut spec = hybrid(r, names::BAILING_HYBRID, delta, |at| !(at + 1).is_multiple_of(group))?;
    spec.head_gates = Some(HeadGates::Heads);
    further(r, &mut spec)?;
    Ok(spec)
}

/// DeepSeek-V3's attention and mixtures, with the rule in blocks that `usual` says where the configuration does not.
fn hybrid(
    r: &Reader<'_>,
    names: Names,
    delta: GatedDelta,
    usual: impl Fn(usize) -> bool,
) -> Result<Spec, ModelError> {
    let own = MixtureDefaults {
        count: 256,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 1024,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    let mut spec = deepseek(r, 1_048_576, &own)?;
    let dense = r.config.usize("first_k_dense_replace")?.unwrap_or(1);
    typed_blocks(r, &mut spec, dense)?;
    corrected(r, &mut spec, 1)?;
    spec.names = Names { qkv: spec.names.qkv, ..names };
    spec.delta = Some(delta);
    let blocks = delta_blocks(r.config, spec.layers.len(), usual)?;
    spec.layers.iter_mut().zip(blocks).for_each(|(layer, delta)| layer.delta = delta);
    Ok(spec)
}

/// Sizes of the rule, as published or as its class writes them.
fn sizes(r: &Reader<'_>) -> Result<GatedDelta, ModelError> {
    let published = r.config.get("linear_attn_config").and_then(Value::as_object).cloned();
    let nested = published.map(|json| ConfigFile { json });
    let read = |theirs: &str, key: &str, default: usize| match &nested {
        Some(config) => match config.usize(theirs)? {
            Some(0) => Err(wrong(theirs, "0", "a positive integer")),
            Some(given) => Ok(given),
            None => r.positive_or(key, default),
        },
        None => r.positive_or(key, default),
    };
    let (heads, dim) =
        (read("num_heads", "linear_num_heads", 32)?, read("head_dim", "linear_head_dim", 128)?);
    Ok(GatedDelta {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        taps: read("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?,
        doubled: false,
        by_channel: Some(ChannelDecay { rank: Some(dim), bound: None }),
        norm_eps: None,
    })
}

/// Which blocks have the rule: by `layer_types`, by lists of blocks that count from one, or by `usual`.
fn delta_blocks(
    config: &ConfigFile,
    layers: usize,
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ModelError> {
    if let Some(types) = config.get("layer_types") {
        let list = types.as_array().filter(|list| list.len() == layers);
        let list = list.ok_or_else(|| wrong("layer_types", &types.to_string(), "one entry per layer"))?;
        let delta = |kind: &Value| match kind.as_str() {
            Some("linear_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(wrong("layer_types", &kind.to_string(), "linear_attention or full_attention")),
        };
        return list.iter().map(delta).collect();
    }
    let nested = config.get("linear_attn_config");
    let listed = |key: &str| nested.and_then(|nested| nested.get(key));
    let (Some(full), Some(delta)) = (listed("full_attn_layers"), listed("kda_layers")) else {
        return Ok((0..layers).map(usual).collect());
    };
    let holds = |list: &Value, at: usize| list.as_array().is_some_and(|list| list.contains(&json!(at + 1)));
    let kind = |at: usize| match (holds(full, at), holds(delta, at)) {
        (true, false) => Ok(false),
        (false, true) => Ok(true),
        _ => Err(wrong("linear_attn_config", &format!("layer {}", at + 1), "each layer in one of its lists")),
    };
    (0..layers).map(kind).collect()
}
