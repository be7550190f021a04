//! Families that Transformers runs by code of their folders.

use serde_json::{Map, Value, json};

use super::llamas::llama;
use super::mixtures::{MIXTRAL, MixtureDefaults, dense_first, glm4_moe, mixture, shared_experts};
use super::reader::{Defaults, LLAMA_DEFAULTS, MOST_WIDTH, Reader, renamed, with_defaults};
use crate::ModelError;
use crate::spec::{BlockSizes, LayerSpec, Spec, names, wrong};

/// DeepSeek of before V2: Llama with mixtures of softmax scores, and feed-forwards that every token goes through.
pub(super) fn deepseek_v1(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = renamed(r.config, &[("num_experts", "n_routed_experts")]);
    let r = &Reader { config: &config, family: r.family };
    let mut spec = Spec { names: names::GLM4_MOE, ..llama(r)? };
    if r.config.usize("n_routed_experts")?.is_none() {
        return Ok(spec);
    }
    softmax_mixture(r, &mut spec, "n_shared_experts", 1407)?;
    Ok(spec)
}

/// Ling of before 2.0: the same under other names.
pub(super) fn bailing_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    for key in ["norm_head", "multi_gate", "use_sliding_window"] {
        r.only(key, false)?;
    }
    let defaults = Defaults { kv_heads: Some(4), max_positions: 16_384, norm_eps: 1e-5, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::BAILING_MOE, ..r.spec(&defaults)? };
    (spec.qkv_bias, spec.o_bias) = (r.bool("use_qkv_bias", false)?, r.bool("use_bias", false)?);
    softmax_mixture(r, &mut spec, "num_shared_experts", 1408)?;
    Ok(spec)
}

/// Softmax scores, which sum to one if that is said, and so many experts that every token goes through as are said.
fn softmax_mixture(
    r: &Reader<'_>,
    spec: &mut Spec,
    shared_key: &str,
    width: usize,
) -> Result<(), ModelError> {
    r.only_word("scoring_func", "softmax")?;
    r.only_word("topk_method", "greedy")?;
    if let Some(got) = r.config.usize("moe_layer_freq")?.filter(|got| *got != 1) {
        return Err(ModelError::Unsupported {
            key: "moe_layer_freq".to_owned(),
            got: got.to_string(),
            supported: "1: mixtures in all blocks but the first",
        });
    }
    for key in ["num_experts", "num_experts_per_tok"] {
        r.positive(key)?;
    }
    let own = MixtureDefaults {
        width_key: "moe_intermediate_size",
        width,
        renormalise: Some(r.bool("norm_topk_prob", false)?),
        balance: 0.0,
        ..MIXTRAL
    };
    mixture(r, spec, &own)?;
    dense_first(r, spec, 0)?;
    let shared = r.config.usize(shared_key)?.filter(|count| *count > 0);
    if let Some(experts) = &mut spec.experts {
        experts.balance = None;
        experts.shared =
            shared.map(|count| shared_experts(shared_key, count, experts.intermediate)).transpose()?;
    }
    Ok(())
}

/// Ling 2.0: GLM-4.5 under other names, half of each head turned.
pub(super) fn bailing_moe_v2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [("n_shared_experts", "num_shared_experts"), ("attention_bias", "use_qkv_bias")];
    let defaults = json!({"use_qk_norm": true, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "num_experts": 256,
        "moe_intermediate_size": 512, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4,
        "num_nextn_predict_layers": 0, "max_position_embeddings": 32_768, "rope_theta": 600_000.0,
        "partial_rotary_factor": 0.5, "norm_topk_prob": true});
    let config = with_defaults(&renamed(r.config, &keys), defaults);
    let r = &Reader { config: &config, family: r.family };
    r.only("norm_topk_prob", true)?;
    r.only_word("score_function", "sigmoid")?;
    Ok(Spec { names: names::BAILING_MOE_V2, o_bias: r.bool("use_bias", false)?, ..glm4_moe(r)? })
}

/// Llama Nemotron of architecture search: blocks of Llama with a width and a number of key heads each, or without attention or
/// feed-forward.
pub(super) fn nemotron_nas(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let layers = r.positive("num_hidden_layers")?;
    let (hidden, heads) = (r.positive("hidden_size")?, r.positive("num_attention_heads")?);
    let given = r.config.get("block_configs").unwrap_or(&Value::Null);
    let one_each = || wrong("block_configs", &given.to_string(), "one object for each layer");
    let blocks = given.as_array().filter(|blocks| blocks.len() == layers).ok_or_else(one_each)?;
    let part = |block: &Value, part: &str| block.get(part).and_then(Value::as_object).cloned();
    let mut sizes = Vec::with_capacity(blocks.len());
    for block in blocks {
        let (Some(attention), Some(ffn)) = (part(block, "attention"), part(block, "ffn")) else {
            return Err(one_each());
        };
        let kv_heads = if skipped(&attention)? { None } else { Some(key_heads(&attention, heads)?) };
        let intermediate = if skipped(&ffn)? { None } else { Some(width(&ffn, hidden)?) };
        sizes.push((kv_heads, intermediate));
    }
    let kv_heads = sizes.iter().find_map(|own| own.0).unwrap_or(heads);
    let intermediate = sizes.iter().find_map(|own| own.1).unwrap_or(hidden);
    let mut config = with_defaults(
        r.config,
        json!({"vocab_size": 128_256, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 131_072}),
    );
    config.json.insert("intermediate_size".to_owned(), intermediate.into());
    config.json.insert("num_key_value_heads".to_owned(), kv_heads.into());
    let mut spec = llama(&Reader { config: &config, family: r.family })?;
    let head_dim = spec.head_dim;
    for (layer, (own_kv, own_width)) in spec.layers.iter_mut().zip(sizes) {
        let kv_heads = own_kv.unwrap_or(kv_heads);
        let intermediate = own_width.unwrap_or(intermediate);
        *layer = LayerSpec {
            sizes: Some(BlockSizes { heads, kv_heads, head_dim, intermediate }),
            no_attention: own_kv.is_none(),
            no_feed_forward: own_width.is_none(),
            ..*layer
        };
    }
    Ok(spec)
}

/// Whether a block goes without a part; what changes how it computes is refused.
fn skipped(part: &Map<String, Value>) -> Result<bool, ModelError> {
    let other = part.iter().find(|(key, value)| {
        let known = [
            "no_op",
            "n_heads_in_group",
            "ffn_mult",
            "intermediate_size",
            "num_key_value_heads",
            "hidden_act",
        ];
        !known.contains(&key.as_str()) && !matches!(value, Value::Null | Value::Bool(false))
    });
    if let Some((key, value)) = other {
        return Err(ModelError::Unsupported {
            key: format!("block_configs.{key}"),
            got: value.to_string(),
            supported: "blocks of attention and a feed-forward, or without one of them",
        });
    }
    Ok(part.get("no_op").and_then(Value::as_bool).unwrap_or(false))
}

/// Key heads of a block.
fn key_heads(attention: &Map<String, Value>, heads: usize) -> Result<usize, ModelError> {
    let given = attention.get("n_heads_in_group").unwrap_or(&Value::Null);
    let group = given.as_u64().and_then(|group| usize::try_from(group).ok());
    let group = group.filter(|group| *group > 0 && heads.is_multiple_of(*group));
    let key = "block_configs.attention.n_heads_in_group";
    group
        .map(|group| heads / group)
        .ok_or_else(|| wrong(key, &given.to_string(), "a divisor of num_attention_heads"))
}

/// The width of a block's feed-forward: two thirds of so many times the stream's, rounded up to 256.
fn width(ffn: &Map<String, Value>, hidden: usize) -> Result<usize, ModelError> {
    if let Some(width) = ffn.get("intermediate_size").and_then(Value::as_u64) {
        let width = usize::try_from(width).ok().filter(|width| (1..=MOST_WIDTH).contains(width));
        return width.ok_or_else(|| wrong("block_configs.ffn.intermediate_size", "too large", "a width"));
    }
    let given = ffn.get("ffn_mult").unwrap_or(&Value::Null);
    let width = given.as_f64().map(|factor| 2.0 * factor * hidden as f64 / 3.0);
    let width = width.filter(|width| *width >= 1.0 && *width <= MOST_WIDTH as f64);
    let width =
        width.ok_or_else(|| wrong("block_configs.ffn.ffn_mult", &given.to_string(), "a positive factor"))?;
    Ok((width as usize).next_multiple_of(256))
}
