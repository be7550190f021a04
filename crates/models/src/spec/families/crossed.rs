//! Families that have the attention of one and the feed-forwards of another.

use serde_json::{Value, json};

use super::cohere_glm::glm;
use super::llamas::{exaone4, hunyuan, minicpm_factors};
use super::mixtures::{MIXTRAL, MixtureDefaults, corrected, glm4_moe, latents, mixture};
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed};
use crate::ModelError;
use crate::spec::{BlockLayout, Pairs, QkNorm, SharedExpert, Spec, names, wrong};

/// Which blocks are mixtures, by `mlp_layer_types`, else those from `dense` on.
fn mixed_blocks(r: &Reader<'_>, spec: &mut Spec, dense: usize) -> Result<(), ModelError> {
    let given = r.config.get("mlp_layer_types");
    let layers = spec.layers.len();
    let list = given.map(|types| {
        let list = types.as_array().filter(|list| list.len() >= layers);
        list.ok_or_else(|| wrong("mlp_layer_types", &types.to_string(), "one entry per layer"))
    });
    let list = list.transpose()?;
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.experts = match list.map(|list| &list[at]) {
            None => at >= dense,
            Some(kind) => match kind.as_str() {
                Some("sparse") => true,
                Some("dense") => false,
                _ => return Err(wrong("mlp_layer_types", &kind.to_string(), "dense or sparse")),
            },
        };
    }
    Ok(())
}

/// HunYuan's mixtures: softmax scores that sum to one, and a feed-forward of an expert's width that every token goes through.
pub(super) fn hunyuan_v1_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    for key in ["num_experts", "moe_topk"] {
        if let Some(list) = r.config.get(key).filter(|value| value.is_array()) {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: list.to_string(),
                supported: "one number for all blocks",
            });
        }
    }
    let config = renamed(r.config, &[("num_experts_per_tok", "moe_topk")]);
    let r = &Reader { config: &config, family: r.family };
    let mut spec = Spec { names: names::HUNYUAN_MOE, ..hunyuan(r)? };
    let own = MixtureDefaults { count: 1, per_token: 1, width: 11_008, balance: 0.0, ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    let intermediate = spec.intermediate;
    if let Some(experts) = &mut spec.experts {
        experts.shared = Some(SharedExpert { intermediate, gated: false });
        experts.balance = None;
    }
    Ok(spec)
}

/// K-EXAONE: EXAONE 4's attention behind norms, DeepSeek-V3's mixtures.
pub(super) fn exaone_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = renamed(r.config, &[("n_shared_experts", "num_shared_experts")]);
    for (key, value) in
        [("num_experts", json!(64)), ("pad_token_id", json!(0)), ("routed_scaling_factor", json!(2.5))]
    {
        config.json.entry(key).or_insert(value);
    }
    let r = &Reader { config: &config, family: r.family };
    let mut spec = exaone4(r)?;
    (spec.names, spec.layout) = (names::EXAONE_MOE, BlockLayout::Pre);
    let own = MixtureDefaults {
        count: 64,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 1024,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    let dense = r.config.usize("first_k_dense_replace")?.unwrap_or(1);
    mixed_blocks(r, &mut spec, dense)?;
    corrected(r, &mut spec, 1)?;
    Ok(spec)
}

/// Solar Open: GLM-4.5's mixtures in every block.
pub(super) fn solar_open(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = renamed(r.config, &[("num_local_experts", "n_routed_experts")]);
    // No block of it is dense.
    config.json.entry("intermediate_size").or_insert(json!(1280));
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::GLM4_MOE, ..r.spec(&defaults)? };
    spec.qkv_bias = r.bool("attention_bias", false)?;
    let own = MixtureDefaults {
        count: 128,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 1280,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    corrected(r, &mut spec, 1)?;
    Ok(spec)
}

/// Mellum 2: Qwen3's mixtures, windows in some blocks, a rotation of each kind of block.
pub(super) fn mellum(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    if config.get("rope_parameters").is_none() {
        let rope = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    for kind in ["full_attention", "sliding_attention"] {
        let rope = config.get("rope_parameters").and_then(|all| all.get(kind));
        if let Some(part) = rope.and_then(|rope| rope.get("partial_rotary_factor")).and_then(Value::as_f64)
            && part != 1.0
        {
            return Err(ModelError::Unsupported {
                key: format!("rope_parameters.{kind}.partial_rotary_factor"),
                got: part.to_string(),
                supported: "1",
            });
        }
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults =
        Defaults { kv_heads: Some(4), head_dim: Some(128), max_positions: 131_072, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::QWEN3_5, ..r.spec(&defaults)? };
    spec.names.other_spellings = &[];
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    let window = r.window(Some(1024))?;
    r.windows(&mut spec, window, |_| false)?;
    r.ropes_by_type(&mut spec, 10_000.0, 500_000.0)?;
    let sliding = r.sliding(spec.layers.len(), |_| false)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    let own = MixtureDefaults {
        count: 64,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 896,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.001,
    };
    mixture(r, &mut spec, &own)?;
    mixed_blocks(r, &mut spec, 0)?;
    Ok(spec)
}

/// Youtu: DeepSeek-V3's attention before Llama's feed-forwards.
pub(super) fn youtu(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { kv_heads: Some(16), max_positions: 131_072, tied: true, ..LLAMA_DEFAULTS };
    let mut spec = latents(r, &defaults)?;
    if let Some(pad) = spec.padding.filter(|_| spec.tied) {
        return Err(ModelError::Unsupported {
            key: "pad_token_id".to_owned(),
            got: pad.to_string(),
            supported: "null where the head is tied: its class sets that token's embedding to zero when it reads the files",
        });
    }
    if !r.bool("rope_interleave", true)? {
        spec.pairs = Pairs::Halves;
    }
    if r.config.get("initializer_range").is_none() {
        spec.initializer_range = 2.0 / (5.0 * spec.hidden as f64).sqrt();
    }
    Ok(spec)
}

/// MiniCPM 3: latents whose halves turn, factors of embeddings, branches and logits.
pub(super) fn minicpm3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    for (key, value) in
        [("kv_lora_rank", 256), ("q_lora_rank", 768), ("qk_nope_head_dim", 64), ("qk_rope_head_dim", 32)]
    {
        config.json.entry(key).or_insert(json!(value));
    }
    if config.get("v_head_dim").is_none() {
        let width = r.positive("hidden_size")? / r.positive("num_attention_heads")?;
        config.json.insert("v_head_dim".to_owned(), width.into());
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(40),
        max_positions: 32_768,
        norm_eps: 1e-5,
        tied: true,
        initializer_range: 0.1,
        ..LLAMA_DEFAULTS
    };
    let mut spec = latents(r, &defaults)?;
    spec.pairs = Pairs::Halves;
    spec.mlp_bias = r.bool("mlp_bias", false)?;
    minicpm_factors(r, &mut spec, [12.0, 1.4, 256.0])?;
    Ok(spec)
}

/// The text of GLM-4.1V and GLM-4.6V: GLM-4 with other defaults.
pub(super) fn glm4v(r: &Reader<'_>) -> Result<Spec, ModelError> {
    // GLM-4.6V may have any text part.
    if let Some(text) =
        r.config.str("model_type")?.filter(|text| !["glm4v", "glm46v", "glm4v_text"].contains(text))
    {
        return Err(ModelError::Unsupported {
            key: "text_config.model_type".to_owned(),
            got: text.to_owned(),
            supported: "glm4v_text",
        });
    }
    let mut config = super::multimodal::plain_rope(r.config);
    config.json.remove("head_dim");
    let width = r.positive("hidden_size")? / r.positive("num_attention_heads")?;
    config.json.insert("head_dim".to_owned(), width.into());
    for (key, value) in [("rms_norm_eps", json!(1e-5)), ("max_position_embeddings", json!(32_768))] {
        config.json.entry(key).or_insert(value);
    }
    // Only what the rotation itself says counts, and without a word all of a head turns.
    config.json.remove("partial_rotary_factor");
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = config.json.get_mut(key).and_then(Value::as_object_mut) {
            rope.entry("partial_rotary_factor").or_insert(json!(1.0));
        }
    }
    config.json.insert("attention_bias".to_owned(), json!(true));
    config.json.entry("pad_token_id").or_insert(Value::Null);
    let spec = glm(&Reader { config: &config, family: r.family })?;
    Ok(Spec { names: names::GLM4, layout: BlockLayout::Sandwich, ..spec })
}

/// The text of GLM-4.5V and GLM-4.6V: GLM-4.5 with other defaults.
pub(super) fn glm4v_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = super::multimodal::plain_rope(r.config);
    config.json.remove("use_qk_norm");
    for (key, value) in [("attention_bias", json!(true)), ("max_position_embeddings", json!(65_536))] {
        config.json.entry(key).or_insert(value);
    }
    Ok(Spec { further: 0, ..glm4_moe(&Reader { config: &config, family: r.family })? })
}
