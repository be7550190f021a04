//! The first GPTs and what follows them.

use serde_json::Value;

use super::reader::{Defaults, GPT_KEYS, LLAMA_DEFAULTS, Reader, alibi_slopes, four_times_wide, renamed};
use crate::ModelError;
use crate::spec::names::{self, QkvNames};
use crate::spec::rope::{Rope, RopeKind};
use crate::spec::{BlockLayout, LearnedPositions, NormKind, Output, Pairs, QkNorm, Spec, wrong};

pub(super) fn gpt_neox(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

/// GPT-NeoX Japanese: one after the other, without biases but for one behind the last block's attention.
pub(super) fn gpt_neox_japanese(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    let scaling = config
        .json
        .remove("rope_scaling")
        .filter(|scaling| scaling.as_object().is_some_and(|map| !map.is_empty()));
    if let Some(scaling) = scaling {
        config.json.insert("rope_parameters".to_owned(), scaling);
    }
    let times = r.positive_or("intermediate_multiple_size", 4)?;
    let width = times.checked_mul(r.positive("hidden_size")?);
    let width =
        width.ok_or_else(|| wrong("intermediate_multiple_size", &times.to_string(), "a smaller integer"))?;
    for (key, value) in [
        ("intermediate_size", Value::from(width)),
        ("use_parallel_residual", Value::from(false)),
        ("attention_bias", Value::from(false)),
    ] {
        config.json.insert(key.to_owned(), value);
    }
    config.json.entry("rotary_pct").or_insert(Value::from(1.0));
    config.json.entry("tie_word_embeddings").or_insert(Value::from(true));
    let mut spec =
        Spec { names: names::GPT_NEOX_JAPANESE, ..gpt_neox(&Reader { config: &config, family: r.family })? };
    spec.mlp_bias = false;
    if let Some(last) = spec.layers.last_mut() {
        last.o_bias = true;
    }
    Ok(spec)
}

pub(super) fn opt(r: &Reader<'_>) -> Result<Spec, ModelError> {
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
    let before = r.bool("do_layer_norm_before", true)?;
    spec.final_norm = before && !r.bool("_remove_final_layer_norm", false)?;
    spec.ends = match config.usize("word_embed_proj_dim")? {
        Some(0) => return Err(wrong("word_embed_proj_dim", "0", "a positive integer")),
        width => width.unwrap_or(spec.hidden),
    };
    if spec.ends != spec.hidden && spec.final_norm {
        return Err(ModelError::Unsupported {
            key: "word_embed_proj_dim".to_owned(),
            got: spec.ends.to_string(),
            supported: "the hidden size, or another where do_layer_norm_before is false (OPT-350m)",
        });
    }
    spec.names = if before { names::OPT } else { names::OPT_AFTER };
    if !before {
        spec.layout = BlockLayout::AfterSum;
    }
    spec.kv_heads = spec.heads;
    (spec.norm, spec.norm_eps) = (NormKind::Layer { bias: true }, 1e-5);
    let bias = r.bool("enable_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, bias);
    learned(&mut spec, 2);
    spec.initializer_range = r.config.f64("init_std")?.unwrap_or(0.02);
    Ok(spec)
}

pub(super) fn falcon(r: &Reader<'_>) -> Result<Spec, ModelError> {
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
    if r.bool("alibi", false)? {
        spec.rounded_slopes = alibi_slopes(spec.heads);
        unturned(&mut spec);
    }
    Ok(spec)
}

/// What the first GPTs share: every query head has its key head, and the norms are LayerNorms.
pub(super) fn gpt_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
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
fn learned(spec: &mut Spec, offset: usize) {
    unturned(spec);
    spec.positions = Some(LearnedPositions { offset, count: spec.max_positions });
}

/// Nothing turns.
pub(super) fn unturned(spec: &mut Spec) {
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.rope = None);
}

pub(super) fn codegen(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = gptj(r)?;
    if !spec.heads.is_multiple_of(4) {
        return Err(wrong("n_head", &spec.heads.to_string(), "a multiple of 4"));
    }
    spec.names = names::CODEGEN;
    Ok(spec)
}

pub(super) fn gptj(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn gpt_neo(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [("num_attention_heads", "num_heads"), ("num_hidden_layers", "num_layers")];
    let config = four_times_wide(renamed(r.config, &keys));
    let r = Reader { config: &config, family: r.family };
    let mut spec = gpt_spec(&r, &Defaults { activation: "gelu_new", tied: true, ..LLAMA_DEFAULTS })?;
    spec.names = names::GPT_NEO;
    (spec.o_bias, spec.mlp_bias, spec.attention_scale) = (true, true, 1.0);
    learned(&mut spec, 0);
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

pub(super) fn gpt_bigcode(r: &Reader<'_>) -> Result<Spec, ModelError> {
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
    learned(&mut spec, 0);
    Ok(spec)
}

pub(super) fn gpt2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("scale_attn_weights", true)?;
    r.only("add_cross_attention", false)?;
    let config = four_times_wide(renamed(r.config, &GPT_KEYS));
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults { activation: "gelu_new", tied: true, max_positions: 1024, ..LLAMA_DEFAULTS };
    let mut spec = gpt_spec(&r, &defaults)?;
    spec.names = names::GPT2;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    if r.bool("scale_attn_by_inverse_layer_idx", false)? {
        spec.layers.iter_mut().zip(1..).for_each(|(layer, number)| layer.divisor = number);
    }
    learned(&mut spec, 0);
    Ok(spec)
}

/// GPT: GPT-2 with norms after the sums, and none at the end.
pub(super) fn openai_gpt(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = four_times_wide(renamed(r.config, &GPT_KEYS));
    let r = Reader { config: &config, family: r.family };
    let activation = match config.str("afn")? {
        None | Some("gelu") => "gelu_new",
        Some("relu") => "relu",
        Some("silu" | "swish") => "silu",
        Some(other) => {
            return Err(ModelError::Unsupported {
                key: "afn".to_owned(),
                got: other.to_owned(),
                supported: "gelu, relu, silu, swish",
            });
        }
    };
    let defaults = Defaults { activation, tied: true, max_positions: 512, ..LLAMA_DEFAULTS };
    let mut spec = gpt_spec(&r, &defaults)?;
    spec.names = names::OPENAI_GPT;
    (spec.layout, spec.final_norm) = (BlockLayout::AfterSum, false);
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    learned(&mut spec, 0);
    Ok(spec)
}

pub(super) fn bloom(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("apply_residual_connection_post_layernorm", false)?;
    let keys =
        [("hidden_size", "n_embed"), ("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer")];
    let mut config = renamed(r.config, &keys);
    // The class has no key for it.
    config.json.remove("intermediate_size");
    let config = four_times_wide(config);
    let r = Reader { config: &config, family: r.family };
    let mut spec = gpt_spec(&r, &Defaults { activation: "gelu_pytorch_tanh", tied: true, ..LLAMA_DEFAULTS })?;
    spec.names = names::BLOOM;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    unturned(&mut spec);
    (spec.slopes, spec.embedding_norm) = (alibi_slopes(spec.heads), true);
    Ok(spec)
}

pub(super) fn mpt(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [
        ("hidden_size", "d_model"),
        ("num_attention_heads", "n_heads"),
        ("num_hidden_layers", "n_layers"),
        ("max_position_embeddings", "max_seq_len"),
    ];
    let mut config = renamed(r.config, &keys);
    config.json.remove("intermediate_size");
    let config = four_times_wide(config);
    let r = Reader { config: &config, family: r.family };
    let mut spec = gpt_spec(&r, &Defaults { activation: "gelu", tied: true, ..LLAMA_DEFAULTS })?;
    spec.names = names::MPT;
    spec.norm = NormKind::Layer { bias: false };
    unturned(&mut spec);
    // Of `attn_config` Transformers' class computes these alone.
    let attention = config.get("attn_config");
    let number = |key: &str| attention.and_then(|a| a.get(key)).and_then(Value::as_f64);
    spec.clip_qkv = number("clip_qkv").filter(|clip| *clip != 0.0).map(|clip| clip as f32);
    if let Some(clip) = spec.clip_qkv.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
        return Err(wrong("attn_config.clip_qkv", &clip.to_string(), "a positive number, or null for none"));
    }
    if let Some(scale) = number("softmax_scale") {
        spec.attention_scale = scale as f32;
    }
    // Its slopes: powers of two for the power of two above, every other one first.
    let (above, heads) = (spec.heads.next_power_of_two(), spec.heads);
    let steepest = number("alibi_bias_max").unwrap_or(8.0);
    let of = |i: usize| 2f64.powf(-steepest * i as f64 / above as f64) as f32;
    spec.slopes = if above == heads {
        (1..=heads).map(of).collect()
    } else {
        (2..=above).step_by(2).chain((1..=above).step_by(2)).take(heads).map(of).collect()
    };
    Ok(spec)
}

pub(super) fn persimmon(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        reads_head_dim: false,
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        max_positions: 16_384,
        activation: "relu2",
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::PERSIMMON;
    spec.kv_heads = spec.heads;
    spec.norm = NormKind::Layer { bias: true };
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    spec.qk_norm = r.bool("qk_layernorm", true)?.then_some(QkNorm::PerHeadLayer { own: false });
    Ok(spec)
}

pub(super) fn biogpt(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        reads_head_dim: false,
        max_positions: 1024,
        tied: true,
        pad_token: Some(1),
        activation: "gelu",
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::BIOGPT;
    spec.kv_heads = spec.heads;
    // Its class takes `layer_norm_eps` and leaves the norms at their default.
    (spec.norm, spec.norm_eps) = (NormKind::Layer { bias: true }, 1e-5);
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    if r.bool("scale_embedding", true)? {
        spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    }
    learned(&mut spec, 2);
    Ok(spec)
}

pub(super) fn xglm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("add_cross_attention", false)?;
    let keys = [
        ("hidden_size", "d_model"),
        ("num_attention_heads", "attention_heads"),
        ("num_hidden_layers", "num_layers"),
        ("intermediate_size", "ffn_dim"),
    ];
    let config = renamed(r.config, &keys);
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        reads_head_dim: false,
        tied: true,
        pad_token: Some(1),
        activation: "gelu",
        activation_key: "activation_function",
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::XGLM;
    spec.kv_heads = spec.heads;
    (spec.norm, spec.norm_eps) = (NormKind::Layer { bias: true }, 1e-5);
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    if r.bool("scale_embedding", true)? {
        spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    }
    unturned(&mut spec);
    spec.sinusoids = true;
    spec.initializer_range = r.config.f64("init_std")?.unwrap_or(0.02);
    Ok(spec)
}
