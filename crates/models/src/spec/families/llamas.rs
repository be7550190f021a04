//! Llama and what differs from it by little.

use serde_json::{Value, json};

use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed};
use crate::ModelError;
use crate::spec::rope::{Rope, RopeDefaults, RopeKind};
use crate::spec::{BlockLayout, Grows, NormKind, Pairs, QkNorm, QueryGrowth, Spec, names, wrong};

pub(super) fn llama(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let attention_bias = r.bool("attention_bias", false)?;
    Ok(Spec {
        qkv_bias: attention_bias,
        o_bias: attention_bias,
        mlp_bias: r.bool("mlp_bias", false)?,
        ..r.spec(&LLAMA_DEFAULTS)?
    })
}

/// EXAONE 3: Llama under other names.
pub(super) fn exaone(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let own = [
        ("num_hidden_layers", "num_layers"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
    ];
    let config = renamed(r.config, &own);
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        max_positions: 4096,
        norm_eps: 1e-5,
        pad_token: Some(0),
        rope_theta: 500_000.0,
        ..LLAMA_DEFAULTS
    };
    let bias = r.bool("attention_bias", false)?;
    let (mlp_bias, spec) = (r.bool("mlp_bias", false)?, r.spec(&defaults)?);
    Ok(Spec { names: names::EXAONE, qkv_bias: bias, o_bias: bias, mlp_bias, ..spec })
}

/// InternLM 2: Llama with queries, keys and values of a group in one matrix.
pub(super) fn internlm2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { pad_token: Some(0), ..LLAMA_DEFAULTS })?;
    spec.names = names::INTERNLM2;
    let bias = r.bool("bias", true)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    Ok(spec)
}

/// MiniCPM 1, 2 and 4: factors of embeddings, branches and logits. Attention over some blocks of keys alone (`sparse_config`)
/// is refused, and so are its mixtures.
pub(super) fn minicpm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    for key in ["sparse_config", "num_experts"] {
        if let Some(value) = r.config.get(key).filter(|value| !value.is_null() && **value != 0) {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: value.to_string(),
                supported: "none: leave it out of config.json for dense attention and feed-forwards",
            });
        }
    }
    let mut spec = r.spec(&Defaults { tied: true, initializer_range: 0.1, ..LLAMA_DEFAULTS })?;
    spec.qkv_bias = r.bool("attention_bias", false)?;
    spec.o_bias = spec.qkv_bias;
    minicpm_factors(r, &mut spec, [1.0, 1.0, 1.0])?;
    Ok(spec)
}

/// What MiniCPM multiplies: embeddings, what is added to the stream, and what the head reads.
pub(super) fn minicpm_factors(
    r: &Reader<'_>,
    spec: &mut Spec,
    [embedding, depth, base]: [f64; 3],
) -> Result<(), ModelError> {
    spec.embedding_scale = r.f32("scale_emb", embedding)?;
    if let Some(depth) = r.nullable("scale_depth", Some(depth))? {
        spec.residual_scale = depth / (spec.layers.len() as f32).sqrt();
    }
    if let Some(base) = r.nullable("dim_model_base", Some(base))? {
        spec.logit_scale = base / spec.hidden as f32;
    }
    Ok(())
}

pub(super) fn mistral(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(8), max_positions: 131_072, ..LLAMA_DEFAULTS })?;
    let window = r.window(Some(4096))?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

pub(super) fn phi3(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn smollm3(r: &Reader<'_>) -> Result<Spec, ModelError> {
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
    let turned = turned_blocks(r, &mut spec, false)?;
    let window = if r.bool("use_sliding_window", false)? { r.window(None)? } else { None };
    r.windows(&mut spec, window, |layer| !turned[layer])?;
    Ok(spec)
}

/// Which blocks turn, by `no_rope_layers`: those of others have no rope then. An empty list says nothing where `may_be_empty`.
pub(super) fn turned_blocks(
    r: &Reader<'_>,
    spec: &mut Spec,
    may_be_empty: bool,
) -> Result<Vec<bool>, ModelError> {
    let interval = r.config.usize("no_rope_layer_interval")?.unwrap_or(4).max(1);
    let layers = spec.layers.len();
    let given = r.config.get("no_rope_layers");
    let given = given.filter(|value| !may_be_empty || value.as_array().is_none_or(|list| !list.is_empty()));
    let turned: Vec<bool> = match given {
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
    Ok(turned)
}

pub(super) fn granite(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = llama(r)?;
    spec.attention_scale = r.f32("attention_multiplier", 1.0)?;
    spec.embedding_scale = r.f32("embedding_multiplier", 1.0)?;
    spec.residual_scale = r.f32("residual_multiplier", 1.0)?;
    let divisor = r.f32("logits_scaling", 1.0)?;
    spec.logit_scale = 1.0 / divisor;
    if !spec.logit_scale.is_finite() {
        return Err(wrong("logits_scaling", &divisor.to_string(), "a number that logits can be divided by"));
    }
    Ok(spec)
}

pub(super) fn hyperclovax(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = granite(r)?;
    spec.attention_scale = match r.nullable("attention_multiplier", None)? {
        Some(scale) => scale,
        None => (spec.head_dim as f32).powf(-0.5),
    };
    // Here it multiplies.
    spec.logit_scale = r.f32("logits_scaling", 1.0)?;
    if r.bool("use_post_norm", true)? {
        (spec.names, spec.layout) = (names::HYPERCLOVAX, BlockLayout::Sandwich);
    }
    Ok(spec)
}

pub(super) fn iquestcoder(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1e-5,
        ..LLAMA_DEFAULTS
    };
    r.only("use_sliding_window", false)?;
    if r.config.get("clip_qkv").is_some() {
        return Err(ModelError::Unsupported {
            key: "clip_qkv".to_owned(),
            got: "set".to_owned(),
            supported: "null",
        });
    }
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    Ok(spec)
}

pub(super) fn jais2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        max_positions: 8192,
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        activation: "relu2",
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::UNGATED;
    spec.norm = NormKind::Layer { bias: true };
    let bias = r.bool("attention_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", true)?);
    Ok(spec)
}

pub(super) fn nanochat(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { activation: "relu2", pad_token: Some(1), ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::NANOCHAT;
    spec.norm = NormKind::RmsBare;
    // Behind the rotation there, but without weights that is the same.
    spec.qk_norm = Some(QkNorm::PerHeadBare);
    spec.embedding_norm = true;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.logit_softcap = r.nullable("final_logit_softcapping", Some(15.0))?;
    // Turns the other way.
    for rope in &mut spec.ropes {
        rope.kind = match rope.kind {
            RopeKind::Default => RopeKind::Linear { factor: -1.0 },
            RopeKind::Linear { factor } => RopeKind::Linear { factor: -factor },
            _ => {
                return Err(ModelError::Unsupported {
                    key: "rope_type".to_owned(),
                    got: "another".to_owned(),
                    supported: "default, linear",
                });
            }
        };
    }
    Ok(spec)
}

pub(super) fn ministral(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(8), max_positions: 131_072, ..LLAMA_DEFAULTS })?;
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |_| true)?;
    Ok(spec)
}

/// How queries of the later Mistrals grow.
pub(super) fn llama4_growth(r: &Reader<'_>, spec: &Spec) -> Result<QueryGrowth, ModelError> {
    let rope = r.config.get("rope_parameters").or_else(|| r.config.get("rope_scaling"));
    let number = |key: &str| rope.and_then(|rope| rope.get(key)).and_then(Value::as_f64);
    let Some(beta) = number("llama_4_scaling_beta") else {
        return Err(wrong("rope_parameters.llama_4_scaling_beta", "missing", "a number"));
    };
    let original = number("original_max_position_embeddings").unwrap_or(spec.max_positions as f64);
    Ok(QueryGrowth { beta, original: (original as usize).max(1), shift: 0, grows: Grows::All })
}

pub(super) fn ministral3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 262_144,
        norm_eps: 1e-5,
        pad_token: Some(11),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.query_growth = Some(llama4_growth(r, &spec)?);
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

pub(super) fn nemotron(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn internlm3(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn exaone4(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn helium(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn ernie4_5(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn seed_oss(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn hunyuan(r: &Reader<'_>) -> Result<Spec, ModelError> {
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

pub(super) fn arcee(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { max_positions: 4096, norm_eps: 1e-5, activation: "relu2", ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::UNGATED;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    Ok(spec)
}

pub(super) fn apertus(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    if config.get("rope_parameters").or_else(|| config.get("rope_scaling")).is_none() {
        let rope = json!({
            "rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    let xielu = config.str("hidden_act")?.unwrap_or("xielu") == "xielu";
    if xielu {
        config.json.remove("hidden_act");
    }
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        reads_head_dim: false,
        max_positions: 65_536,
        norm_eps: 1e-5,
        pad_token: Some(3),
        rope_theta: 12_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::APERTUS;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    (spec.qk_norm, spec.xielu) = (Some(QkNorm::PerHead), xielu);
    Ok(spec)
}

/// Apertus 1.5: the head may leave out tokens of pictures and sound.
pub(super) fn apertus1p5(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = apertus(r)?;
    spec.vocab = r.positive_or("output_vocab_size", spec.vocab)?;
    if spec.vocab > spec.embeddings {
        let got = format!("{} of {} tokens", spec.vocab, spec.embeddings);
        return Err(wrong("output_vocab_size", &got, "at most vocab_size"));
    }
    Ok(spec)
}

pub(super) fn cwm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    if config.get("rope_parameters").or_else(|| config.get("rope_scaling")).is_none() {
        let rope = json!({
            "rope_type": "llama3", "rope_theta": 1_000_000.0, "factor": 16.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.mlp_bias = r.bool("mlp_bias", false)?;
    let window = r.window(Some(8192))?;
    r.windows(&mut spec, window, |layer| layer % 4 != 0)?;
    Ok(spec)
}
