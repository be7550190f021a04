//! Families that have the attention of one and the feed-forwards of another.

use burnish_core::RouterScores;
use serde_json::{Value, json};

use super::cohere_glm::{COHERE, cohere_spec, glm};
use super::llamas::{exaone4, hunyuan, llama4_growth, minicpm_factors};
use super::mixtures::{
    MIXTRAL, MixtureDefaults, corrected, deepseek, dense_first, glm4_moe, groups, latents, mixture,
    qwen_blocks, typed_blocks,
};
use super::reader::{Defaults, LLAMA_DEFAULTS, MOST_HEADS, MOST_WIDTH, Reader, renamed, with_defaults};
use crate::ModelError;
use crate::spec::{
    BlockLayout, BlockSizes, HeadGates, NormKind, Pairs, QkNorm, SharedExpert, Spec, names, wrong,
};

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
    let config = with_defaults(
        &renamed(r.config, &[("n_shared_experts", "num_shared_experts")]),
        json!({"num_experts": 64, "pad_token_id": 0, "routed_scaling_factor": 2.5}),
    );
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
    typed_blocks(r, &mut spec, dense)?;
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
    r.ropes_by_type(&mut spec, [10_000.0, 500_000.0], None)?;
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
    typed_blocks(r, &mut spec, 0)?;
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
    let mut config = with_defaults(
        r.config,
        json!({"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}),
    );
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

/// Laguna: Qwen3's attention with gates that are softpluses, blocks that slide with heads and a rotation of their own,
/// DeepSeek-V3's mixtures.
pub(super) fn laguna(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    if config.get("rope_parameters").is_none_or(Value::is_null) {
        let rope = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults =
        Defaults { kv_heads: Some(8), head_dim: Some(128), max_positions: 131_072, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::LAGUNA, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    let by_head = match r.config.get("gating") {
        None => true,
        Some(gating) => gating == true || gating == "per-head",
    };
    spec.head_gates = Some(if by_head { HeadGates::Heads } else { HeadGates::Elements });
    spec.softplus_gates = true;
    r.ropes_by_type(&mut spec, [10_000.0, 500_000.0], Some(1.0))?;
    let window = r.window(Some(512))?;
    let sliding = r.sliding(spec.layers.len(), |_| false)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        (layer.window, layer.rope) = (window.filter(|_| slides), Some(usize::from(slides)));
    }
    if let Some(given) = r.config.get("num_attention_heads_per_layer").filter(|given| !given.is_null()) {
        let of = |heads: &Value| heads.as_u64().map(|n| n as usize).filter(|n| (1..=MOST_HEADS).contains(n));
        let list: Option<Vec<usize>> = given.as_array().and_then(|list| list.iter().map(of).collect());
        let list = list.filter(|list| list.len() == spec.layers.len());
        let key = "num_attention_heads_per_layer";
        let list =
            list.ok_or_else(|| wrong(key, &given.to_string(), "one integer from 1 to 65536 per layer"))?;
        let sizes = spec.sizes(spec.layers.len());
        for (layer, heads) in spec.layers.iter_mut().zip(list) {
            layer.sizes = Some(BlockSizes { heads, ..sizes });
        }
    }
    for (key, off) in
        [("moe_apply_router_weight_on_input", json!(false)), ("moe_router_logit_softcapping", json!(0.0))]
    {
        if let Some(got) = r.config.get(key).filter(|got| **got != off && **got != json!(0)) {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: got.to_string(),
                supported: "none",
            });
        }
    }
    let own = MixtureDefaults {
        count: 256,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 512,
        renormalise: Some(true),
        balance: 0.001,
    };
    mixture(r, &mut spec, &own)?;
    typed_blocks(r, &mut spec, 1)?;
    let intermediate = r.positive_or("shared_expert_intermediate_size", 512)?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.rule.scale = r.f32("moe_routed_scaling_factor", 1.0)?;
        experts.corrected = true;
        experts.shared = Some(SharedExpert { intermediate, gated: false });
    }
    Ok(spec)
}

/// Hy3: Qwen3's attention, DeepSeek-V3's mixtures behind the first block.
pub(super) fn hy_v3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let own =
        [("n_shared_experts", "num_shared_experts"), ("routed_scaling_factor", "router_scaling_factor")];
    let mut config = renamed(r.config, &own);
    config.json.entry("routed_scaling_factor").or_insert(json!(2.826));
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1e-5,
        initializer_range: 0.006,
        rope_theta: 11_158_840.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::HY_V3, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    r.only("mlp_bias", false)?;
    spec.qk_norm = Some(QkNorm::PerHead);
    let own = MixtureDefaults {
        count: 192,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 1536,
        renormalise: Some(true),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    typed_blocks(r, &mut spec, 1)?;
    corrected(r, &mut spec, 1)?;
    Ok(spec)
}

/// MiMo-V2-Flash: blocks that slide have sinks and twice the key heads, values are narrower than keys and scaled; DeepSeek-V3's mixtures without
/// a feed-forward beside them.
pub(super) fn mimo_v2_flash(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = with_defaults(
        &renamed(r.config, &[("num_local_experts", "n_routed_experts")]),
        json!({"num_key_value_heads": 4, "sliding_window": 129}),
    );
    // What its class does not read of a rotation.
    for key in ["rope_scaling", "rope_theta", "partial_rotary_factor"] {
        config.json.remove(key);
    }
    if config.get("rope_parameters").is_none_or(Value::is_null) {
        let rope = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 5_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    let ropes = config.json.get_mut("rope_parameters").and_then(Value::as_object_mut).into_iter();
    for own in ropes.flat_map(|ropes| ropes.values_mut()).filter_map(Value::as_object_mut) {
        let plain = own.get("rope_type").is_none_or(|kind| kind == "default");
        own.entry("partial_rotary_factor").or_insert(json!(if plain { 0.334 } else { 1.0 }));
    }
    if let Some(tokens) = r.config.usize("sliding_window_size")? {
        config.json.insert("sliding_window".to_owned(), json!(tokens.saturating_add(1)));
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults { head_dim: Some(192), max_positions: 131_072, norm_eps: 1e-5, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::MIMO_V2_FLASH, ..r.spec(&defaults)? };
    spec.qkv_bias = r.bool("attention_bias", false)?;
    let width = r.positive_or("v_head_dim", 128)?;
    if width > spec.head_dim {
        let got = format!("{width}, and head_dim {}", spec.head_dim);
        return Err(wrong("v_head_dim", &got, "at most head_dim"));
    }
    let scale = r.nullable("attention_value_scale", Some(0.707))?.unwrap_or(1.0);
    (spec.narrow_values, spec.sinks) = (Some((width, scale)), true);
    r.ropes_by_type(&mut spec, [10_000.0, 5_000_000.0], Some(0.334))?;
    let window = r.window(None)?;
    let sliding = r.sliding(spec.layers.len(), |layer| layer != 0 && (layer + 1) % 6 != 0)?;
    let sizes = spec.sizes(spec.layers.len());
    let twice = BlockSizes { kv_heads: 2 * sizes.kv_heads, ..sizes };
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        (layer.window, layer.rope) = (window.filter(|_| slides), Some(usize::from(slides)));
        (layer.no_sinks, layer.sizes) = (!slides, Some(if slides { twice } else { sizes }));
    }
    let own = MixtureDefaults {
        count: 256,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 2048,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    typed_blocks(r, &mut spec, 1)?;
    corrected(r, &mut spec, 1)?;
    if let Some(experts) = &mut spec.experts {
        experts.shared = None;
    }
    Ok(spec)
}

/// Kolibri: EXAONE 4's attention, norms on both sides, experts that are compared by their logits and weighted by sigmoids.
pub(super) fn kolibri1(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = with_defaults(
        r.config,
        json!({"num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144, "sliding_window": 513}),
    );
    // No block of it is dense.
    config.json.insert("intermediate_size".to_owned(), json!(r.positive_or("moe_intermediate_size", 512)?));
    let r = &Reader { config: &config, family: r.family };
    let mut spec = Spec { names: names::KOLIBRI, layout: BlockLayout::Sandwich, ..exaone4(r)? };
    let window = r.window(None)?;
    let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % 5 != 0)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| slides);
        layer.rope = (window.is_none() || slides).then_some(0);
    }
    let own = MixtureDefaults {
        count: 384,
        per_token: 6,
        width_key: "moe_intermediate_size",
        width: 512,
        renormalise: None,
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    let intermediate = r.positive_or("shared_expert_intermediate_size", 512)?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::SigmoidByLogit;
        (experts.corrected, experts.balance) = (true, None);
        experts.shared = Some(SharedExpert { intermediate, gated: false });
    }
    Ok(spec)
}

/// Flint: Qwen3's attention with sinks, which turns where it slides, and mixtures of sigmoids.
pub(super) fn flint(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    if config.get("mlp_only_layers").is_none_or(Value::is_null) {
        config.json.insert("mlp_only_layers".to_owned(), json!([0, 1]));
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults =
        Defaults { kv_heads: Some(4), head_dim: Some(128), max_positions: 262_144, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::FLINT, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    (spec.qk_norm, spec.sinks) = (Some(QkNorm::PerHead), true);
    let (window, last) = (r.window(Some(513))?, spec.layers.len() - 1);
    let sliding = r.sliding(spec.layers.len(), |layer| layer >= 2 && layer % 4 != 1 && layer != last)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| slides);
        layer.rope = layer.window.map(|_| 0);
    }
    let own = MixtureDefaults {
        count: 256,
        per_token: 6,
        width_key: "moe_intermediate_size",
        width: 512,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0005,
    };
    mixture(r, &mut spec, &own)?;
    qwen_blocks(r, &mut spec)?;
    let intermediate = r.positive_or("shared_expert_intermediate_size", 1024)?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.shared = Some(SharedExpert { intermediate, gated: false });
    }
    Ok(spec)
}

/// Command A's mixtures: Cohere 2's blocks, of which the first are none and may slide by a pattern of their own.
pub(super) fn cohere2_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    let norm_eps = r.config.f64("rms_norm_eps")?;
    if let Some(eps) = norm_eps {
        config.json.insert("layer_norm_eps".to_owned(), json!(eps));
    }
    let dense = r.config.usize("first_k_dense_replace")?.unwrap_or(0);
    let width = r.positive("intermediate_size")?;
    if let Some(dense) = r.config.usize("prefix_dense_intermediate_size")? {
        config.json.insert("intermediate_size".to_owned(), json!(dense));
    }
    config.json.insert("moe_intermediate_size".to_owned(), json!(width));
    let r = &Reader { config: &config, family: r.family };
    let mut spec = cohere_spec(r, &Defaults { head_dim: Some(128), ..COHERE })?;
    spec.names = names::GLM4_MOE;
    if norm_eps.is_some() {
        spec.norm = NormKind::Rms;
    }
    let of_dense = r.config.usize("prefix_dense_sliding_window_pattern")?.unwrap_or(1).max(1);
    let (window, pattern) = (r.window(Some(4096))?, r.pattern(4)?);
    let sliding = r.sliding(spec.layers.len(), |layer| match layer.checked_sub(dense) {
        None => (layer + 1) % of_dense != 0,
        Some(layer) => (layer + 1) % pattern != 0,
    })?;
    let own = MixtureDefaults {
        count: 8,
        per_token: 2,
        width_key: "moe_intermediate_size",
        width,
        renormalise: Some(true),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    typed_blocks(r, &mut spec, dense)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| slides);
        let turns = layer.window.is_some() || of_dense == 1 && !layer.experts;
        layer.rope = turns.then_some(0);
    }
    let shared = r.config.usize("num_shared_experts")?.unwrap_or(0);
    // Of the two the sum, or half of it.
    let scale = match r.config.str("shared_expert_combination_strategy")?.unwrap_or("average") {
        _ if shared == 0 => 1.0,
        "sum" => 1.0,
        "average" => 0.5,
        other => return Err(wrong("shared_expert_combination_strategy", other, "sum or average")),
    };
    let (scores, renormalise) = match r.config.str("expert_selection_fn")?.unwrap_or("softmax") {
        "softmax" => (RouterScores::Softmax, true),
        "sigmoid" => (RouterScores::Sigmoid, r.bool("norm_topk_prob", true)?),
        other => return Err(wrong("expert_selection_fn", other, "softmax or sigmoid")),
    };
    if let Some(experts) = &mut spec.experts {
        (experts.rule.scores, experts.rule.renormalise) = (scores, renormalise);
        (experts.rule.scale, experts.shared_scale) = (scale, scale);
        experts.balance = None;
        if shared > 0 {
            let intermediate = shared.checked_mul(width).filter(|width| *width <= MOST_WIDTH);
            let wrong = || wrong("num_shared_experts", &shared.to_string(), "a smaller integer");
            experts.shared =
                Some(SharedExpert { intermediate: intermediate.ok_or_else(wrong)?, gated: false });
        }
    }
    Ok(spec)
}

/// Mistral 4: DeepSeek-V3's attention with queries that grow, mixtures of softmax scores.
pub(super) fn mistral4(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = with_defaults(
        &renamed(r.config, &[("num_experts", "n_routed_experts")]),
        json!({"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
            "routed_scaling_factor": 1.0, "pad_token_id": 11}),
    );
    if config.get("rope_parameters").or_else(|| config.get("rope_scaling")).is_none_or(Value::is_null) {
        let rope = json!({
            "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    // All of the part that turns does.
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = config.json.get_mut(key).and_then(Value::as_object_mut) {
            rope.remove("partial_rotary_factor");
        }
    }
    let r = &Reader { config: &config, family: r.family };
    let own = MixtureDefaults {
        count: 128,
        per_token: 4,
        width_key: "moe_intermediate_size",
        width: 2048,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    let mut spec = deepseek(r, 1_048_576, &own)?;
    spec.names.experts.files = names::ExpertFiles::Same;
    if !r.bool("rope_interleave", true)? {
        spec.pairs = Pairs::Halves;
    }
    spec.query_growth = Some(llama4_growth(r, &spec)?);
    dense_first(r, &mut spec, 0)?;
    let groups = groups(r, spec.experts.map_or(0, |experts| experts.count), 2, [1, 1])?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.groups = groups;
    }
    Ok(spec)
}
