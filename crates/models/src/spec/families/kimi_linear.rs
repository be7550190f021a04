//! Delta rules whose channels forget each by itself, between latent attention: Kimi Linear (Kimi Team, arXiv:2510.26692), Ling 3.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::mixtures::{MixtureDefaults, corrected, deepseek, further, typed_blocks};
use super::qwen::delta_blocks;
use super::reader::{Reader, renamed, with_defaults};
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::{ChannelDecay, GatedDelta, HeadGates, Names, Spec, names, wrong};

/// Keys that its class has under other names.
const KEYS: [(&str, &str); 6] = [
    ("num_experts", "num_local_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
    ("norm_topk_prob", "moe_renormalize"),
    ("n_group", "num_expert_group"),
    ("max_position_embeddings", "model_max_length"),
];

pub(super) fn kimi_linear(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = json!({"num_experts": 256, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446, "q_lora_rank": null,
        "num_key_value_heads": null, "max_position_embeddings": 1_048_576, "rms_norm_eps": 1e-5, "norm_topk_prob": true,
        "first_k_dense_replace": 1});
    let mut config = with_defaults(&renamed(r.config, &KEYS), defaults);
    // As published, or as its class writes it.
    let nested = config.get("linear_attn_config").cloned().unwrap_or(Value::Null);
    let said = |theirs: &str, own: &str, default: u64| {
        let given = nested.get(theirs).or_else(|| r.config.get(own)).cloned();
        given.unwrap_or(json!(default))
    };
    let heads = said("num_heads", "linear_num_heads", 32);
    let (dim, taps) = (
        said("head_dim", "linear_head_dim", 128),
        said("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
    );
    put_sizes(&mut config, &heads, &dim, taps);
    if config.get("layer_types").is_none()
        && let Some(types) = listed_types(&nested, r.positive("num_hidden_layers")?)?
    {
        config.json.insert("layer_types".to_owned(), types);
    }
    let r = &Reader { config: &config, family: r.family };
    r.only("mla_use_nope", true)?;
    r.only_word("moe_router_activation_func", "sigmoid")?;
    let rank = r.positive("linear_key_head_dim")?;
    let decay = ChannelDecay { rank: Some(rank), bound: None };
    let mut spec = hybrid(r, names::KIMI_LINEAR, decay, |at| at > 0 && at % 4 == 0)?;
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.rope = None);
    Ok(spec)
}

/// Ling 3: each head of latent attention has a gate, decays are bounded.
pub(super) fn bailing_hybrid(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = json!({"num_experts": 512, "moe_intermediate_size": 768, "routed_scaling_factor": 2.5, "q_lora_rank": null,
        "num_key_value_heads": null, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6, "norm_topk_prob": true, "n_group": 8,
        "topk_group": 4, "first_k_dense_replace": 2, "rope_theta": 6_000_000.0, "head_dim": 128});
    let mut config = with_defaults(&renamed(r.config, &KEYS), defaults);
    // Where its class wrote it `head_dim` is what turns of a latent's.
    let said = |own: &str, other: &str| config.get(own).or_else(|| config.get(other)).cloned();
    let heads = said("linear_num_heads", "num_attention_heads").unwrap_or(Value::Null);
    let dim = said("linear_head_dim", "head_dim").unwrap_or(Value::Null);
    let taps = said("linear_conv_kernel_dim", "short_conv_kernel_size").unwrap_or(json!(4));
    put_sizes(&mut config, &heads, &dim, taps);
    let r = &Reader { config: &config, family: r.family };
    let bound = if r.bool("kda_safe_gate", true)? { Some(r.f32("kda_lower_bound", -5.0)?) } else { None };
    if let Some(bound) = bound.filter(|bound| *bound > 0.0) {
        return Err(wrong("kda_lower_bound", &bound.to_string(), "a logarithm, at most 0"));
    }
    let group = r.positive_or("layer_group_size", 6)?;
    let decay = ChannelDecay { rank: None, bound };
    let mut spec = hybrid(r, names::BAILING_HYBRID, decay, |at| (at + 1).is_multiple_of(group))?;
    spec.head_gates = Some(HeadGates::Heads);
    further(r, &mut spec)?;
    Ok(spec)
}

/// The sizes of the rule under the names that most families have: of keys and values the same.
fn put_sizes(config: &mut ConfigFile, heads: &Value, dim: &Value, taps: Value) {
    for key in ["linear_num_key_heads", "linear_num_value_heads"] {
        config.json.insert(key.to_owned(), heads.clone());
    }
    for key in ["linear_key_head_dim", "linear_value_head_dim"] {
        config.json.insert(key.to_owned(), dim.clone());
    }
    config.json.insert("linear_conv_kernel_dim".to_owned(), taps);
}

/// `layer_types` of two lists of blocks that count from one, where there are such.
fn listed_types(nested: &Value, layers: usize) -> Result<Option<Value>, ModelError> {
    let (Some(full), Some(delta)) = (nested.get("full_attn_layers"), nested.get("kda_layers")) else {
        return Ok(None);
    };
    let set = |list: &Value| -> BTreeSet<u64> {
        list.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let (full, delta) = (set(full), set(delta));
    let kind = |at: usize| match (full.contains(&(at as u64)), delta.contains(&(at as u64))) {
        (true, false) => Ok("full_attention"),
        (false, true) => Ok("linear_attention"),
        _ => Err(wrong("linear_attn_config", &format!("layer {at}"), "each layer in one of its lists")),
    };
    if layers > full.len() + delta.len() {
        let got = format!("{} layers", full.len() + delta.len());
        return Err(wrong("linear_attn_config", &got, "each layer in one of its lists"));
    }
    (1..=layers).map(kind).collect::<Result<Vec<_>, _>>().map(|types| Some(json!(types)))
}

/// DeepSeek-V3's attention and mixtures, with the rule in blocks that do not attend.
fn hybrid(
    r: &Reader<'_>,
    names: Names,
    decay: ChannelDecay,
    attends: impl Fn(usize) -> bool,
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
    let sizes = GatedDelta {
        key_heads: 32,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        taps: 4,
        doubled: false,
        by_channel: Some(decay),
        norm_eps: None,
    };
    delta_blocks(r, &mut spec, sizes, attends)?;
    Ok(spec)
}
