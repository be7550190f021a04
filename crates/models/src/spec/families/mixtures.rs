//! Mixtures of experts.

use burnish_core::{ExpertGate, RouterGroups, RouterRule, RouterScores};
use serde_json::{Value, json};

use super::llamas::{ernie4_5, turned_blocks};
use super::olmo::olmo_spec;
use super::reader::{Defaults, LLAMA_DEFAULTS, MOST_WIDTH, Reader, with_defaults};
use crate::ModelError;
use crate::spec::rope::RopeKind;
use crate::spec::{
    BlockLayout, ExpertsSpec, Grows, HeadGates, LatentAttention, NormKind, Pairs, QkNorm, QueryGrowth,
    SharedExpert, Spec, names, wrong,
};

/// What a class of Transformers has where its configuration does not say.
pub(super) struct MixtureDefaults {
    /// Experts.
    pub(super) count: usize,
    pub(super) per_token: usize,
    /// The key of an expert's width.
    pub(super) width_key: &'static str,
    pub(super) width: usize,
    /// Whether a token's weights sum to one; by `norm_topk_prob` where that is none.
    pub(super) renormalise: Option<bool>,
    pub(super) balance: f64,
}

/// Experts are described one by one before any is read: no more than could be.
const MOST_EXPERTS: usize = 65_536;

/// A mixture of softmax scores in every block.
pub(super) fn mixture(r: &Reader<'_>, spec: &mut Spec, defaults: &MixtureDefaults) -> Result<(), ModelError> {
    // Transformers' classes take one name for the other.
    let local = r.config.usize("num_local_experts")?;
    let count = r.positive_or("num_experts", local.unwrap_or(defaults.count))?;
    if !(1..=MOST_EXPERTS).contains(&count) {
        return Err(wrong("num_local_experts", &count.to_string(), "between 1 and 65536 experts"));
    }
    let per_token = r.positive_or("num_experts_per_tok", defaults.per_token)?;
    if per_token > count {
        let got = format!("{per_token} of {count} experts");
        return Err(wrong("num_experts_per_tok", &got, "at most as many as there are experts"));
    }
    let renormalise = match defaults.renormalise {
        Some(always) => always,
        None => r.bool("norm_topk_prob", false)?,
    };
    let rule = RouterRule { per_token, scores: RouterScores::Softmax, renormalise, scale: 1.0, groups: None };
    spec.experts = Some(ExpertsSpec {
        count,
        intermediate: r.positive_or(defaults.width_key, defaults.width)?,
        rule,
        gate: ExpertGate::Halves(spec.activation),
        biased: false,
        shared: None,
        shared_scale: 1.0,
        beside: false,
        weighs_inputs: false,
        corrected: false,
        balance: r.nullable("router_aux_loss_coef", Some(defaults.balance))?,
    });
    spec.layers.iter_mut().for_each(|layer| layer.experts = true);
    Ok(())
}

/// Which blocks are mixtures in Qwen's.
pub(super) fn qwen_blocks(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let step = r.config.usize("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(wrong("decoder_sparse_step", "0", "a positive integer"));
    }
    let dense: Vec<u64> = match r.config.get("mlp_only_layers") {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => list
            .as_array()
            .and_then(|all| all.iter().map(Value::as_u64).collect())
            .ok_or_else(|| wrong("mlp_only_layers", &list.to_string(), "a list of blocks' numbers"))?,
    };
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.experts = (at + 1) % step == 0 && !dense.contains(&(at as u64));
    }
    Ok(())
}

/// The mixtures of Qwen3-Next and Qwen3.5: Qwen2-MoE's.
pub(super) fn qwen_delta_mixture(
    r: &Reader<'_>,
    spec: &mut Spec,
    [count, per_token]: [usize; 2],
    renormalise: bool,
) -> Result<(), ModelError> {
    let own = MixtureDefaults {
        count,
        per_token,
        width_key: "moe_intermediate_size",
        width: 512,
        renormalise: Some(renormalise),
        balance: 0.001,
    };
    mixture(r, spec, &own)?;
    let intermediate = r.positive_or("shared_expert_intermediate_size", 512)?;
    if let Some(experts) = &mut spec.experts {
        experts.shared = Some(SharedExpert { intermediate, gated: true });
    }
    Ok(())
}

/// The mixtures of Qwen3-VL, whose weights sum to one whatever is said.
pub(super) fn qwen_mixture(
    r: &Reader<'_>,
    spec: &mut Spec,
    count: usize,
    per_token: usize,
    width: usize,
) -> Result<(), ModelError> {
    let own = MixtureDefaults {
        count,
        per_token,
        width_key: "moe_intermediate_size",
        width,
        renormalise: Some(true),
        balance: 0.001,
    };
    mixture(r, spec, &own)?;
    qwen_blocks(r, spec)
}

/// Gemma 4's, beside the feed-forward of every block. Its class has no defaults.
pub(super) fn beside(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let renamed = super::reader::renamed(r.config, &[("num_experts_per_tok", "top_k_experts")]);
    for key in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
        r.positive(key)?;
    }
    let own = MixtureDefaults {
        count: 1,
        per_token: 1,
        width_key: "moe_intermediate_size",
        width: 1,
        renormalise: Some(true),
        balance: 0.0,
    };
    mixture(&Reader { config: &renamed, family: r.family }, spec, &own)?;
    if let Some(experts) = &mut spec.experts {
        experts.beside = true;
        experts.balance = None;
    }
    Ok(())
}

pub(super) const MIXTRAL: MixtureDefaults = MixtureDefaults {
    count: 8,
    per_token: 2,
    width_key: "intermediate_size",
    width: 14_336,
    renormalise: Some(true),
    balance: 0.001,
};

pub(super) fn mixtral(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { kv_heads: Some(8), max_positions: 131_072, norm_eps: 1e-5, ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::MIXTRAL;
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    without_noise(r)?;
    mixture(r, &mut spec, &MIXTRAL)?;
    Ok(spec)
}

/// Refuses noise on what routers read in training.
fn without_noise(r: &Reader<'_>) -> Result<(), ModelError> {
    if r.nullable("router_jitter_noise", Some(0.0))?.is_some_and(|noise| noise > 0.0) {
        return Err(ModelError::Unsupported {
            key: "router_jitter_noise".to_owned(),
            got: r.config.get("router_jitter_noise").map_or_else(String::new, Value::to_string),
            supported: "0: set it to 0 in config.json to train without noise on the router's input",
        });
    }
    Ok(())
}

/// MiniMax-M2: norms over the whole width of queries and of keys, sigmoid scores, corrected where experts are compared.
pub(super) fn minimax_m2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    let head_dim = r.config.usize("head_dim")?.unwrap_or(128);
    // Published files say how many dimensions turn.
    if let Some(turned) = r.config.usize("rotary_dim")? {
        let part = json!(turned as f64 / head_dim.max(1) as f64);
        match config.json.get_mut("rope_parameters").and_then(Value::as_object_mut) {
            Some(rope) => rope.entry("partial_rotary_factor").or_insert(part),
            None => config.json.entry("partial_rotary_factor").or_insert(part),
        };
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 196_608,
        rope_theta: 5_000_000.0,
        partial_rotary: Some(1.0),
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::MINIMAX_M2, ..r.spec(&defaults)? };
    spec.qk_norm = Some(QkNorm::WholeWidth);
    without_noise(r)?;
    let own = MixtureDefaults { count: 256, per_token: 8, width: 1536, ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.corrected = true;
    }
    Ok(spec)
}

/// The mixtures of LFM2 behind its first blocks.
pub(super) fn lfm2_mixture(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let own = MixtureDefaults {
        count: 32,
        per_token: 4,
        width_key: "moe_intermediate_size",
        width: 1792,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    mixture(r, spec, &own)?;
    let renamed = super::reader::renamed(r.config, &[("first_k_dense_replace", "num_dense_layers")]);
    dense_first(&Reader { config: &renamed, family: r.family }, spec, 2)?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.rule.scale = r.f32("routed_scaling_factor", 1.0)?;
        experts.corrected = r.bool("use_expert_bias", true)?;
        experts.balance = None;
    }
    Ok(())
}

/// AFMoE: gates of attention's elements, blocks with windows, which turn, and blocks without, norms on both sides, sigmoid
/// scores.
pub(super) fn afmoe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let own = [
        ("n_shared_experts", "num_shared_experts"),
        ("routed_scaling_factor", "route_scale"),
        ("first_k_dense_replace", "num_dense_layers"),
    ];
    let renamed = super::reader::renamed(r.config, &own);
    let r = &Reader { config: &renamed, family: r.family };
    let defaults = Defaults { head_dim: Some(128), max_positions: 16_384, norm_eps: 1e-5, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::AFMOE, ..r.spec(&defaults)? };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    spec.head_gates = Some(HeadGates::Elements);
    spec.layout = BlockLayout::Sandwich;
    if r.bool("mup_enabled", false)? {
        spec.embedding_scale = (spec.hidden as f64).sqrt() as f32;
    }
    let every = r.config.usize("global_attn_every_n_layers")?.unwrap_or(4).max(1);
    let window = r.window(Some(1024))?;
    let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % every != 0)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        (layer.window, layer.rope) = (window.filter(|_| slides), slides.then_some(0));
    }
    let own = MixtureDefaults {
        count: 64,
        per_token: 6,
        width_key: "moe_intermediate_size",
        width: 1408,
        renormalise: Some(true),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    dense_first(r, &mut spec, 1)?;
    corrected(r, &mut spec, 2)?;
    Ok(spec)
}

pub(super) fn qwen3_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { kv_heads: Some(4), max_positions: 32_768, ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    let slides = r.bool("use_sliding_window", false)?;
    let window = r.window(Some(4096))?.filter(|_| slides);
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    let own = MixtureDefaults {
        count: 128,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 768,
        renormalise: None,
        balance: 0.001,
    };
    mixture(r, &mut spec, &own)?;
    qwen_blocks(r, &mut spec)?;
    Ok(spec)
}

pub(super) fn qwen2_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = r.spec(&Defaults { kv_heads: Some(16), max_positions: 32_768, ..LLAMA_DEFAULTS })?;
    spec.qkv_bias = r.bool("qkv_bias", true)?;
    // The class says 0 where nothing slides.
    let window = if r.bool("use_sliding_window", false)? { r.window(Some(4096))? } else { None };
    let until = r.config.usize("max_window_layers")?.unwrap_or(28);
    r.windows(&mut spec, window, |layer| layer % 2 == 0 && layer < until)?;
    let own = MixtureDefaults {
        count: 60,
        per_token: 4,
        width_key: "moe_intermediate_size",
        width: 1408,
        renormalise: None,
        balance: 0.001,
    };
    mixture(r, &mut spec, &own)?;
    qwen_blocks(r, &mut spec)?;
    let intermediate = r.positive_or("shared_expert_intermediate_size", 5632)?;
    if let Some(experts) = &mut spec.experts {
        experts.shared = Some(SharedExpert { intermediate, gated: true });
    }
    Ok(spec)
}

pub(super) fn olmoe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults { max_positions: 4096, norm_eps: 1e-5, pad_token: Some(1), ..LLAMA_DEFAULTS };
    let mut spec = olmo_spec(r, &defaults)?;
    spec.qk_norm = Some(QkNorm::WholeWidth);
    spec.clip_qkv = r.clip_qkv()?;
    let own =
        MixtureDefaults { count: 64, per_token: 8, width: 2048, renormalise: None, balance: 0.01, ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    Ok(spec)
}

/// FlexOlmo: OLMo 2 with OLMoE's mixtures.
pub(super) fn flex_olmo(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults =
        Defaults { max_positions: 4096, pad_token: Some(100_277), rope_theta: 500_000.0, ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::GEMMA2, ..olmo_spec(r, &defaults)? };
    spec.layout = BlockLayout::Post;
    spec.qk_norm = Some(QkNorm::WholeWidth);
    let own = MixtureDefaults {
        count: 7,
        per_token: 5,
        width: 11_008,
        renormalise: None,
        balance: 0.01,
        ..MIXTRAL
    };
    mixture(r, &mut spec, &own)?;
    Ok(spec)
}

pub(super) fn granitemoe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = super::llamas::granite(r)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, false);
    spec.names = names::GRANITE_MOE;
    let own = MixtureDefaults { width: 11_008, ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    Ok(spec)
}

/// Granite's with a feed-forward that every token goes through.
pub(super) fn granitemoeshared(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = Spec { names: names::GRANITE_MOE_SHARED, ..granitemoe(r)? };
    let width = r.config.usize("shared_intermediate_size")?.unwrap_or(0);
    if let Some(experts) = &mut spec.experts {
        experts.shared = (width > 0).then_some(SharedExpert { intermediate: width, gated: false });
    }
    Ok(spec)
}

/// Granite's mixtures with a feed-forward of width `shared` that every token goes through.
pub(super) fn granite_experts(r: &Reader<'_>, spec: &mut Spec, shared: usize) -> Result<(), ModelError> {
    mixture(r, spec, &MixtureDefaults { width: 11_008, ..MIXTRAL })?;
    if let Some(experts) = &mut spec.experts {
        experts.shared = Some(SharedExpert { intermediate: shared, gated: false });
    }
    Ok(())
}

/// Nemotron-H's: experts without gates and a feed-forward as these in the blocks that have experts, by DeepSeek-V3's rule.
pub(super) fn nemotron_experts(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let renamed = super::reader::renamed(r.config, &[("num_experts", "n_routed_experts")]);
    let r = &Reader { config: &renamed, family: r.family };
    let mixed: Vec<bool> = spec.layers.iter().map(|layer| layer.experts).collect();
    let own = MixtureDefaults {
        count: 8,
        per_token: 2,
        width_key: "moe_intermediate_size",
        width: 7688,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    mixture(r, spec, &own)?;
    for (layer, mixed) in spec.layers.iter_mut().zip(mixed) {
        layer.experts = mixed;
    }
    corrected(r, spec, 1)?;
    let shared = r.positive_or("moe_shared_expert_intermediate_size", 7688)?;
    let activation = spec.activation;
    if let Some(experts) = &mut spec.experts {
        experts.gate = ExpertGate::Plain(activation);
        experts.shared = Some(SharedExpert { intermediate: shared, gated: false });
    }
    Ok(())
}

/// ERNIE 4.5's: softmax scores, corrected where experts are compared, and feed-forwards that every token goes through.
pub(super) fn ernie4_5_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let own = [("num_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_k")];
    let mut config = super::reader::renamed(r.config, &own);
    config.json.entry("num_key_value_heads").or_insert(json!(4));
    if config.get("head_dim").is_none() {
        let width = r.positive("hidden_size")? / r.positive("num_attention_heads")?;
        config.json.insert("head_dim".to_owned(), width.into());
    }
    let r = &Reader { config: &config, family: r.family };
    let mut spec = ernie4_5(r)?;
    spec.names = names::ERNIE_MOE;
    spec.head_bias = spec.mlp_bias;
    let defaults = MixtureDefaults {
        count: 64,
        per_token: 6,
        width_key: "moe_intermediate_size",
        width: 1536,
        renormalise: Some(true),
        balance: 0.001,
    };
    mixture(r, &mut spec, &defaults)?;
    let number = |key: &str, default: usize| Ok::<_, ModelError>(r.config.usize(key)?.unwrap_or(default));
    let (step, start) = (number("moe_layer_interval", 1)?, number("moe_layer_start_index", 1)?);
    if step == 0 {
        return Err(wrong("moe_layer_interval", "0", "a positive integer"));
    }
    let end = match r.config.get("moe_layer_end_index") {
        None => usize::MAX,
        Some(last) if last.as_i64() == Some(-1) => usize::MAX,
        Some(_) => number("moe_layer_end_index", usize::MAX)?,
    };
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.experts = (at + 1) % step == 0 && (start..=end).contains(&at);
    }
    let least = r.config.f64("moe_norm_min")?.unwrap_or(1e-12);
    if !(0.0..=1e-12).contains(&least) {
        return Err(ModelError::Unsupported {
            key: "moe_norm_min".to_owned(),
            got: least.to_string(),
            supported: "at most 1e-12",
        });
    }
    let shared = number("moe_num_shared_experts", 2)?;
    if let Some(experts) = &mut spec.experts {
        experts.corrected = true;
        let intermediate = shared.checked_mul(experts.intermediate);
        let wrong = || wrong("moe_num_shared_experts", &shared.to_string(), "a smaller integer");
        let intermediate = intermediate.ok_or_else(wrong)?;
        experts.shared = (shared > 0).then_some(SharedExpert { intermediate, gated: false });
    }
    Ok(spec)
}

/// PhiMoE: Mixtral with LayerNorm and biases, whose router is SparseMixer's without samples; cosines and sines are
/// multiplied by one of two numbers.
pub(super) fn phimoe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        max_positions: 131_072,
        norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::PHIMOE;
    spec.norm = NormKind::Layer { bias: true };
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.head_bias = r.bool("lm_head_bias", false)?;
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    let scaling = r.config.get("rope_parameters").or_else(|| r.config.get("rope_scaling"));
    let mscale = |key: &'static str| {
        let given = scaling.and_then(|scaling| scaling.get(key));
        given.and_then(Value::as_f64).ok_or_else(|| {
            wrong(key, &given.map_or_else(|| "missing".to_owned(), Value::to_string), "a number")
        })
    };
    match spec.ropes.first_mut().map(|rope| &mut rope.kind) {
        None | Some(RopeKind::Default) => {}
        Some(RopeKind::LongRope { short, long, original, attention }) => {
            // Its class never takes the other factors.
            long.clone_from(short);
            *attention = [mscale("short_mscale")?, mscale("long_mscale")?];
            spec.recached_beyond = Some(*original as usize);
        }
        Some(_) => {
            return Err(ModelError::Unsupported {
                key: "rope_type".to_owned(),
                got: scaling.map_or_else(String::new, Value::to_string),
                supported: "default, longrope",
            });
        }
    }
    let own = MixtureDefaults { count: 16, width: 6400, renormalise: Some(false), ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    let within = 2.0 * r.f32("router_jitter_noise", 0.01)?;
    if let Some(experts) = &mut spec.experts {
        if experts.rule.per_token != 2 {
            return Err(ModelError::Unsupported {
                key: "num_experts_per_tok".to_owned(),
                got: experts.rule.per_token.to_string(),
                supported: "2, as its class computes whatever is said",
            });
        }
        experts.rule.scores = RouterScores::SparseMixer { within };
    }
    Ok(spec)
}

/// GLM-4.5: sigmoid scores, corrected where experts are compared, and a feed-forward that every token goes through.
pub(super) fn glm4_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let renamed = super::reader::renamed(r.config, &[("num_local_experts", "n_routed_experts")]);
    let r = &Reader { config: &renamed, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        max_positions: 131_072,
        norm_eps: 1e-5,
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::GLM4_MOE;
    spec.qkv_bias = r.bool("attention_bias", false)?;
    spec.qk_norm = r.bool("use_qk_norm", false)?.then_some(QkNorm::PerHead);
    let own = MixtureDefaults {
        count: 128,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 1408,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    dense_first(r, &mut spec, 1)?;
    further(r, &mut spec)?;
    corrected(r, &mut spec, 1)?;
    Ok(spec)
}

/// dots.llm1: Qwen3's attention, DeepSeek-V3's mixtures.
pub(super) fn dots1(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let renamed = super::reader::renamed(r.config, &[("num_experts", "n_routed_experts")]);
    let r = &Reader { config: &renamed, family: r.family };
    for key in ["num_experts", "num_experts_per_tok", "n_shared_experts"] {
        r.positive(key)?;
    }
    let mut spec = r.spec(&Defaults { kv_heads: Some(32), ..LLAMA_DEFAULTS })?;
    spec.names = names::GLM4_MOE;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    let (window, from) = (r.window(Some(4096))?, r.config.usize("max_window_layers")?.unwrap_or(62));
    r.windows(&mut spec, window, |layer| layer >= from)?;
    let own = MixtureDefaults {
        count: 1,
        per_token: 1,
        width_key: "moe_intermediate_size",
        width: 1408,
        renormalise: None,
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    dense_first(r, &mut spec, 0)?;
    corrected(r, &mut spec, 1)?;
    Ok(spec)
}

/// DeepSeek-V3's rule: sigmoid scores, corrected where experts are compared, and feed-forwards that every token goes through.
pub(super) fn corrected(r: &Reader<'_>, spec: &mut Spec, shared: usize) -> Result<(), ModelError> {
    let shared = r.config.usize("n_shared_experts")?.unwrap_or(shared);
    let groups = groups(r, spec.experts.map_or(0, |experts| experts.count), 2, [1, 1])?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.rule.scale = r.f32("routed_scaling_factor", 1.0)?;
        experts.rule.groups = groups;
        experts.corrected = true;
        experts.balance = None;
        experts.shared = Some(shared_experts("n_shared_experts", shared, experts.intermediate)?);
    }
    Ok(())
}

/// gpt-oss: sinks, biases, windows on every other block, experts whose gates and ups alternate.
pub(super) fn gpt_oss(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    if config.get("rope_parameters").or_else(|| config.get("rope_scaling")).is_none() {
        let rope = json!({
            "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096
        });
        config.json.insert("rope_parameters".to_owned(), rope);
    }
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(64),
        max_positions: 131_072,
        norm_eps: 1e-5,
        rope_theta: 150_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::GPT_OSS;
    let bias = r.bool("attention_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.sinks) = (bias, bias, true);
    let window = r.window(Some(128))?;
    r.windows(&mut spec, window, |layer| layer % 2 == 0)?;
    let own = MixtureDefaults { count: 128, per_token: 4, width: 2880, ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    let (alpha, limit) = (r.f32("swiglu_alpha", 1.702)?, r.f32("swiglu_limit", 7.0)?);
    if limit < 0.0 {
        return Err(wrong("swiglu_limit", &limit.to_string(), "a number that is not negative"));
    }
    if let Some(experts) = &mut spec.experts {
        experts.gate = ExpertGate::Clamped { alpha, limit };
        experts.biased = true;
    }
    Ok(spec)
}

/// Llama 4: a shared feed-forward, scores that multiply what experts read, blocks that turn and see chunks, blocks that do
/// neither and whose queries grow.
pub(super) fn llama4(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::LLAMA4;
    spec.pairs = Pairs::Neighbours;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    let turned = turned_blocks(r, &mut spec, true)?;
    spec.qk_norm = r.bool("use_qk_norm", true)?.then_some(QkNorm::PerHeadRotatedBare);
    if r.bool("attn_temperature_tuning", true)? {
        let original = r.positive_or("floor_scale", 8192)?;
        let beta = f64::from(r.f32("attn_scale", 0.1)?);
        spec.query_growth = Some(QueryGrowth { beta, original, shift: 1, grows: Grows::Still });
    }
    let chunked = chunked_blocks(r, &turned)?;
    let chunk = match r.config.usize("attention_chunk_size")? {
        Some(0) => return Err(wrong("attention_chunk_size", "0", "a positive integer")),
        None if !r.config.json.contains_key("attention_chunk_size") => Some(8192),
        size => size,
    };
    if chunk.is_none() && chunked.contains(&true) {
        return Err(wrong(
            "attention_chunk_size",
            "null",
            "a positive integer: layer_types has chunked_attention",
        ));
    }
    let own = MixtureDefaults { count: 16, per_token: 1, width: 8192, renormalise: Some(false), ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    let mixed = mixed_blocks(r, spec.layers.len())?;
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.chunk = chunk.filter(|_| chunked[at]);
        layer.experts = mixed[at];
    }
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.weighs_inputs = true;
        experts.balance = None;
        experts.shared = Some(SharedExpert { intermediate: experts.intermediate, gated: false });
    }
    spec.intermediate = r.positive_or("intermediate_size_mlp", 16_384)?;
    Ok(spec)
}

/// Whose attention is chunked, by `layer_types`, else those that turn.
fn chunked_blocks(r: &Reader<'_>, turned: &[bool]) -> Result<Vec<bool>, ModelError> {
    let Some(types) = r.config.get("layer_types") else { return Ok(turned.to_vec()) };
    let list = types.as_array().filter(|list| list.len() >= turned.len());
    let list = list.ok_or_else(|| wrong("layer_types", &types.to_string(), "one entry per layer"))?;
    let chunked = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("chunked_attention") => Ok(true),
        _ => Err(ModelError::Unsupported {
            key: "layer_types".to_owned(),
            got: kind.to_string(),
            supported: "full_attention, chunked_attention",
        }),
    };
    list.iter().take(turned.len()).map(chunked).collect()
}

/// Which blocks are mixtures in Llama 4.
fn mixed_blocks(r: &Reader<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let step = r.positive_or("interleave_moe_layer_step", 1)?;
    let Some(given) = r.config.get("moe_layers") else {
        return Ok((0..layers).map(|layer| (layer + 1) % step == 0).collect());
    };
    let list: Option<Vec<u64>> = given.as_array().and_then(|all| all.iter().map(Value::as_u64).collect());
    let list = list.ok_or_else(|| wrong("moe_layers", &given.to_string(), "a list of blocks' numbers"))?;
    Ok((0..layers as u64).map(|layer| list.contains(&layer)).collect())
}

/// Attention over latents.
pub(super) fn latents(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    let sizes = LatentAttention {
        query_rank: match r.config.json.contains_key("q_lora_rank") {
            true => r.config.usize("q_lora_rank")?,
            false => Some(1536),
        },
        rank: r.positive_or("kv_lora_rank", 512)?,
        still: r.positive_or("qk_nope_head_dim", 128)?,
        turned: r.positive_or("qk_rope_head_dim", 64)?,
        value: r.positive_or("v_head_dim", 128)?,
    };
    if !sizes.turned.is_multiple_of(2) {
        return Err(wrong("qk_rope_head_dim", &sizes.turned.to_string(), "an even number: pairs are turned"));
    }
    if sizes.query_rank == Some(0) {
        return Err(wrong("q_lora_rank", "0", "a positive integer, or null for none"));
    }
    let mut config = r.config.clone();
    config.json.insert("head_dim".to_owned(), sizes.turned.into());
    let r = &Reader { config: &config, family: r.family };
    let mut spec = r.spec(defaults)?;
    if spec.kv_heads != spec.heads {
        return Err(ModelError::Unsupported {
            key: "num_key_value_heads".to_owned(),
            got: format!("{} for {} heads", spec.kv_heads, spec.heads),
            supported: "as many as num_attention_heads: each head has keys and values of its own",
        });
    }
    spec.names = if sizes.query_rank.is_some() { names::DEEPSEEK } else { names::DEEPSEEK_LITE };
    spec.latent = Some(sizes);
    // Attention has queries, keys and values of one width.
    let width = sizes.still.checked_add(sizes.turned).map(|width| width.max(sizes.value));
    let too_wide = || wrong("qk_nope_head_dim", &sizes.still.to_string(), "a smaller integer");
    spec.head_dim = width.and_then(|width| width.checked_next_multiple_of(2)).ok_or_else(too_wide)?;
    spec.attention_scale = ((sizes.still + sizes.turned) as f32).powf(-0.5) * of_yarn(r, &spec)?;
    spec.pairs = Pairs::Neighbours;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    Ok(spec)
}

/// What DeepSeek-V2 and V3 share: latents, a mixture with a feed-forward that every token goes through.
pub(super) fn deepseek(
    r: &Reader<'_>,
    max_positions: usize,
    own: &MixtureDefaults,
) -> Result<Spec, ModelError> {
    if r.config.usize("n_routed_experts")? == Some(0) {
        return Err(wrong("n_routed_experts", "0", "a positive integer"));
    }
    let mut spec = latents(r, &Defaults { max_positions, ..LLAMA_DEFAULTS })?;
    mixture(r, &mut spec, own)?;
    let shared = r.config.usize("n_shared_experts")?.unwrap_or(if own.count == 64 { 2 } else { 1 });
    if let Some(experts) = &mut spec.experts {
        experts.rule.scale = r.f32("routed_scaling_factor", if own.count == 64 { 1.0 } else { 2.5 })?;
        experts.balance = None;
        experts.shared = Some(shared_experts("n_shared_experts", shared, experts.intermediate)?);
    }
    Ok(spec)
}

/// What scores are multiplied by beyond the usual, where the rope is scaled: the square of YaRN's factor of all dimensions.
fn of_yarn(r: &Reader<'_>, spec: &Spec) -> Result<f32, ModelError> {
    let rope = r.config.get("rope_parameters").or_else(|| r.config.get("rope_scaling"));
    let number = |key: &str| rope.and_then(|rope| rope.get(key)).and_then(Value::as_f64);
    let plain = spec.ropes.first().is_none_or(|rope| rope.kind == RopeKind::Default);
    let all = number("mscale_all_dim").unwrap_or(0.0);
    if plain || all == 0.0 {
        return Ok(1.0);
    }
    let Some(factor) = number("factor") else {
        return Err(wrong("rope_parameters.factor", "missing", "a number"));
    };
    let mscale = if factor <= 1.0 { 1.0 } else { 0.1 * all * factor.ln() + 1.0 };
    Ok((mscale * mscale) as f32)
}

/// The rule of DeepSeek-V2's groups, by `topk_method`.
fn greedy_groups(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let groups = match r.config.str("topk_method")?.unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => groups(r, spec.experts.map_or(0, |experts| experts.count), 1, [1, 1])?,
        other => {
            return Err(ModelError::Unsupported {
                key: "topk_method".to_owned(),
                got: other.to_owned(),
                supported: "greedy, group_limited_greedy",
            });
        }
    };
    if let Some(experts) = &mut spec.experts {
        experts.rule.groups = groups;
    }
    Ok(())
}

/// DeepSeek-OCR 2's text: Llama's attention, DeepSeek-V2's mixtures.
pub(super) fn deepseek_ocr(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.positive("num_experts_per_tok")?;
    let mut spec = Spec { names: names::GLM4_MOE, ..super::llamas::llama(r)? };
    let own = MixtureDefaults {
        count: 64,
        per_token: 1,
        width_key: "moe_intermediate_size",
        width: 1407,
        renormalise: Some(false),
        balance: 0.0,
    };
    mixture(r, &mut spec, &own)?;
    typed_blocks(r, &mut spec, 0)?;
    greedy_groups(r, &mut spec)?;
    let shared = r.positive_or("n_shared_experts", 2)?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scale = r.f32("routed_scaling_factor", 1.0)?;
        experts.balance = None;
        experts.shared = Some(shared_experts("n_shared_experts", shared, experts.intermediate)?);
    }
    Ok(spec)
}

pub(super) fn deepseek_v2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let renamed = super::reader::renamed(r.config, &[("num_experts", "n_routed_experts")]);
    let r = &Reader { config: &renamed, family: r.family };
    r.positive("num_experts_per_tok")?;
    let own = MixtureDefaults {
        count: 64,
        per_token: 1,
        width_key: "moe_intermediate_size",
        width: 1407,
        // Its class has `norm_topk_prob` and computes without.
        renormalise: Some(false),
        balance: 0.0,
    };
    let mut spec = deepseek(r, 2048, &own)?;
    spec.mlp_bias = r.bool("mlp_bias", false)?;
    dense_first(r, &mut spec, 0)?;
    greedy_groups(r, &mut spec)?;
    Ok(spec)
}

pub(super) fn deepseek_v3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let renamed = super::reader::renamed(r.config, &[("num_experts", "n_routed_experts")]);
    let r = &Reader { config: &renamed, family: r.family };
    let own = MixtureDefaults {
        count: 256,
        per_token: 8,
        width_key: "moe_intermediate_size",
        width: 2048,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    let mut spec = deepseek(r, 4096, &own)?;
    if !r.bool("rope_interleave", true)? {
        spec.pairs = Pairs::Halves;
    }
    dense_first(r, &mut spec, 3)?;
    further(r, &mut spec)?;
    let groups = groups(r, spec.experts.map_or(0, |experts| experts.count), 2, [8, 4])?;
    if let Some(experts) = &mut spec.experts {
        experts.rule.scores = RouterScores::Sigmoid;
        experts.rule.groups = groups;
        experts.corrected = true;
    }
    Ok(spec)
}

/// A.X K1: DeepSeek-V3 with other defaults and a norm behind mixtures.
pub(super) fn axk1(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"num_key_value_heads": null, "n_routed_experts": 192, "max_position_embeddings": 32_768}),
    );
    if config.json.get("q_lora_rank").is_some_and(Value::is_null) {
        return Err(wrong("q_lora_rank", "null", "a positive integer"));
    }
    let r = &Reader { config: &config, family: r.family };
    let mut spec = Spec { further: 0, names: names::AXK1, ..deepseek_v3(r)? };
    let (dense, step) =
        (r.config.usize("first_k_dense_replace")?.unwrap_or(1), r.positive_or("moe_layer_freq", 1)?);
    typed_blocks(r, &mut spec, dense)?;
    let typed = r.config.get("mlp_layer_types").is_some();
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.experts &= typed || at % step == 0;
        layer.mlp_post_norm = layer.experts;
    }
    Ok(spec)
}

/// Sarvam 30B: GLM-4.5 with other defaults, under names of its own.
pub(super) fn sarvam_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let own = [
        ("n_routed_experts", "num_experts"),
        ("n_shared_experts", "num_shared_experts"),
        ("attention_bias", "use_qkv_bias"),
    ];
    let config = with_defaults(
        &super::reader::renamed(r.config, &own),
        json!({"num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-6, "moe_intermediate_size": 1024,
            "num_experts_per_tok": 6, "routed_scaling_factor": 2.5, "use_qk_norm": true, "num_mtp_layers": 0,
            "num_nextn_predict_layers": 0, "pad_token_id": 0, "rope_theta": 8_000_000.0, "partial_rotary_factor": 1.0}),
    );
    Ok(Spec { names: names::SARVAM_MOE, ..glm4_moe(&Reader { config: &config, family: r.family })? })
}

/// So many experts of a width that every token goes through, as one.
pub(super) fn shared_experts(key: &str, count: usize, width: usize) -> Result<SharedExpert, ModelError> {
    let intermediate = count.checked_mul(width).filter(|width| (1..=MOST_WIDTH).contains(width));
    let wrong = || wrong(key, &count.to_string(), "a positive integer");
    Ok(SharedExpert { intermediate: intermediate.ok_or_else(wrong)?, gated: false })
}

/// Aria's decoder: Llama with a mixture and feed-forwards that every token goes through in every block.
pub(super) fn aria_text(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [("num_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_topk")];
    let config = super::reader::renamed(r.config, &keys);
    let r = &Reader { config: &config, family: r.family };
    let mut spec = super::llamas::llama(r)?;
    spec.names = names::ARIA;
    let width = r.positive_or("intermediate_size", 4096)?;
    let own = MixtureDefaults { width, renormalise: Some(true), balance: 0.0, ..MIXTRAL };
    mixture(r, &mut spec, &own)?;
    let shared = r.positive_or("moe_num_shared_experts", 2)?;
    if let Some(experts) = &mut spec.experts {
        experts.balance = None;
        experts.shared = Some(shared_experts("moe_num_shared_experts", shared, width)?);
    }
    Ok(spec)
}

/// Sarvam 105B: DeepSeek-V3 with other defaults, and published under other keys.
pub(super) fn sarvam_mla(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [("n_routed_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")];
    let mut config = with_defaults(
        &super::reader::renamed(r.config, &keys),
        json!({"vocab_size": 262_144, "hidden_size": 4096, "intermediate_size": 16_384, "num_hidden_layers": 32,
            "num_attention_heads": 64, "num_key_value_heads": null, "q_lora_rank": null, "n_routed_experts": 128, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1}),
    );
    // The same rule by another word.
    if let Some(rope) = config.json.get_mut("rope_scaling").and_then(Value::as_object_mut)
        && ["type", "rope_type"].iter().any(|key| rope.get(*key) == Some(&json!("deepseek_yarn")))
    {
        rope.remove("type");
        rope.insert("rope_type".to_owned(), json!("yarn"));
    }
    deepseek_v3(&Reader { config: &config, family: r.family })
}

/// GLM-4.7-Flash: DeepSeek-V3 with other defaults, which says block by block what is a mixture.
pub(super) fn glm4_moe_lite(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        &super::reader::renamed(r.config, &[("num_experts", "n_routed_experts")]),
        json!({"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_shared_experts": 1,
            "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5}),
    );
    let r = &Reader { config: &config, family: r.family };
    let own = MixtureDefaults {
        count: 64,
        per_token: 4,
        width_key: "moe_intermediate_size",
        width: 1536,
        renormalise: Some(r.bool("norm_topk_prob", true)?),
        balance: 0.0,
    };
    let mut spec = deepseek(r, 202_752, &own)?;
    if !r.bool("rope_interleave", true)? {
        spec.pairs = Pairs::Halves;
    }
    let dense = r.config.usize("first_k_dense_replace")?.unwrap_or(1);
    typed_blocks(r, &mut spec, dense)?;
    further(r, &mut spec)?;
    corrected(r, &mut spec, 1)?;
    Ok(spec)
}

/// Which blocks are mixtures, by `mlp_layer_types`, else those from `dense` on.
pub(super) fn typed_blocks(r: &Reader<'_>, spec: &mut Spec, dense: usize) -> Result<(), ModelError> {
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

/// The first blocks are no mixtures.
pub(super) fn dense_first(r: &Reader<'_>, spec: &mut Spec, default: usize) -> Result<(), ModelError> {
    let dense = r.config.usize("first_k_dense_replace")?.unwrap_or(default);
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.experts = at >= dense;
    }
    Ok(())
}

/// Blocks behind the last, which no class of Transformers runs.
pub(super) fn further(r: &Reader<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    let further = match r.config.usize("num_mtp_layers")? {
        Some(count) => count,
        None => r.config.usize("num_nextn_predict_layers")?.unwrap_or(1),
    };
    spec.further = further.min(MOST_FURTHER);
    Ok(())
}

/// Blocks that predict tokens further on, at most.
const MOST_FURTHER: usize = 16;

/// Groups of experts of which a token chooses from a few, by so many of the best of each; none where it may choose from all.
pub(super) fn groups(
    r: &Reader<'_>,
    experts: usize,
    best: usize,
    [count, kept]: [usize; 2],
) -> Result<Option<RouterGroups>, ModelError> {
    let count = r.config.usize("n_group")?.unwrap_or(count);
    let kept = r.config.usize("topk_group")?.unwrap_or(kept);
    if count <= 1 {
        return Ok(None);
    }
    if !experts.is_multiple_of(count) || experts / count < best {
        let got = format!("{count} groups of {experts} experts");
        return Err(wrong(
            "n_group",
            &got,
            "a divisor of the number of experts, with as many in each group as it is compared by",
        ));
    }
    let chosen = r.config.usize("num_experts_per_tok")?.unwrap_or(8);
    if !(1..=count).contains(&kept) || kept * (experts / count) < chosen {
        let got = format!("{kept} of {count} groups, for {chosen} experts of a token");
        return Err(wrong("topk_group", &got, "as many groups as hold a token's experts"));
    }
    Ok(Some(RouterGroups { count, kept, best }))
}
