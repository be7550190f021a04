//! A model's hyperparameters as metadata, and what it derives from them: factors of frequencies.

use burnish_gguf::{OutType, Value};
use serde_json::{Map, Value as Json};

use super::arch::Arch;
use crate::{ConfigFile, ModelError, Rope, RopeKind, Spec};

/// The version of ggml's blocks.
pub(super) const QUANTIZATION_VERSION: u32 = 2;

/// `general.*` and `{arch}.*`.
pub(super) fn metadata(
    spec: &Spec,
    arch: Arch,
    config: &ConfigFile,
    out: OutType,
) -> Result<Vec<(String, Value)>, ModelError> {
    let mut keys = Keys { arch: arch.name, all: Vec::new() };
    let whole = |number: usize| Value::U32(u32::try_from(number).unwrap_or(u32::MAX));
    keys.add("vocab_size", whole(spec.vocab));
    keys.add("context_length", whole(spec.positions.map_or(spec.max_positions, |learned| learned.count)));
    keys.add("embedding_length", whole(spec.hidden));
    keys.add("block_count", whole(spec.layers.len()));
    keys.add("feed_forward_length", whole(spec.intermediate));
    keys.add("attention.head_count", whole(spec.heads));
    keys.add("attention.head_count_kv", whole(spec.kv_heads));
    keys.add("attention.key_length", whole(spec.head_dim));
    keys.add("attention.value_length", whole(spec.head_dim));
    let eps = if spec.norm.is_layer() { "layer_norm_epsilon" } else { "layer_norm_rms_epsilon" };
    keys.add(&format!("attention.{eps}"), Value::F32(spec.norm_eps));
    windows(&mut keys, spec, arch);
    if let Some(cap) = spec.attention_softcap {
        keys.add("attn_logit_softcapping", Value::F32(cap));
    }
    if let Some(cap) = spec.logit_softcap {
        keys.add("final_logit_softcapping", Value::F32(cap));
    }
    if arch.name == "granite" {
        keys.add("attention.scale", Value::F32(spec.attention_scale));
        keys.add("embedding_scale", Value::F32(spec.embedding_scale));
        keys.add("residual_scale", Value::F32(spec.residual_scale));
        let divisor = config.f64("logits_scaling")?.unwrap_or(1.0);
        keys.add("logit_scale", Value::F32(divisor as f32));
    }
    if let Some(experts) = &spec.experts {
        keys.add("expert_count", whole(experts.count));
        keys.add("expert_used_count", whole(experts.rule.per_token));
        if arch.name == "qwen3moe" {
            keys.add("expert_feed_forward_length", whole(experts.intermediate));
        }
    }
    for (at, rope) in spec.ropes.iter().enumerate() {
        rope_keys(&mut keys, rope, at, spec, config)?;
    }
    keys.all.push(("general.file_type".to_owned(), Value::U32(out.file_type())));
    keys.all.push(("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION)));
    Ok(keys.all)
}

/// Keys of an architecture.
struct Keys {
    arch: &'static str,
    all: Vec<(String, Value)>,
}

impl Keys {
    fn add(&mut self, name: &str, value: Value) {
        self.all.push((format!("{}.{name}", self.arch), value));
    }
}

/// Gemma's windows, and which blocks have one where that is not what llama.cpp takes for granted.
fn windows(keys: &mut Keys, spec: &Spec, arch: Arch) {
    let usual = match arch.name {
        "gemma2" => 2,
        "gemma3" => 6,
        "phi3" => {
            // 0 tells Phi-4, which has none.
            let window = spec.layers.iter().find_map(|own| own.window).unwrap_or(0);
            return keys.add("attention.sliding_window", Value::U32(window as u32));
        }
        _ => return,
    };
    let Some(window) = spec.layers.iter().find_map(|own| own.window) else { return };
    keys.add("attention.sliding_window", Value::U32(window as u32));
    let slides = || spec.layers.iter().map(|own| own.window.is_some());
    if slides().enumerate().any(|(at, slides)| slides != (at % usual < usual - 1)) {
        keys.add("attention.sliding_window_pattern", Value::truths(slides()));
    }
}

fn rope_keys(
    keys: &mut Keys,
    rope: &Rope,
    at: usize,
    spec: &Spec,
    config: &ConfigFile,
) -> Result<(), ModelError> {
    if at > 0 {
        keys.add("rope.freq_base_swa", Value::F32(rope.theta as f32));
        return Ok(());
    }
    keys.add("rope.dimension_count", Value::U32(rope.dim as u32));
    keys.add("rope.freq_base", Value::F32(rope.theta as f32));
    let scaled = |keys: &mut Keys, kind: &str, factor: f64| {
        keys.add("rope.scaling.type", Value::from(kind));
        keys.add("rope.scaling.factor", Value::F32(factor as f32));
    };
    match &rope.kind {
        RopeKind::Linear { factor } => scaled(keys, "linear", *factor),
        RopeKind::Yarn { factor, attention, .. } => {
            let said = scaling(config);
            let number = |key: &str| said.and_then(|map| map.get(key)).and_then(Json::as_f64);
            if said.and_then(|map| map.get("truncate")).and_then(Json::as_bool) == Some(false) {
                let what = "a ramp of frequencies between whole pairs (truncate: false)".to_owned();
                return Err(ModelError::GgufComputes { arch: keys.arch, what });
            }
            scaled(keys, "yarn", *factor);
            let original = number("original_max_position_embeddings").unwrap_or(spec.max_positions as f64);
            keys.add("rope.scaling.original_context_length", Value::U32(original as u32));
            for (own, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if let Some(beta) = number(own) {
                    keys.add(&format!("rope.scaling.{key}"), Value::F32(beta as f32));
                }
            }
            // What it multiplies by beside this.
            let usual = if *factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            if (attention / usual - 1.0).abs() > 1e-6 {
                keys.add("rope.scaling.attn_factor", Value::F32((attention / usual) as f32));
            }
        }
        RopeKind::LongRope { original, attention: [short, long], .. } => {
            if short != long {
                let what = "one factor on attention for short texts and another for long ones".to_owned();
                return Err(ModelError::GgufComputes { arch: keys.arch, what });
            }
            keys.add("rope.scaling.original_context_length", Value::U32(*original as u32));
            keys.add("rope.scaling.attn_factor", Value::F32(*long as f32));
        }
        RopeKind::Default
        | RopeKind::Llama3 { .. }
        | RopeKind::Dynamic { .. }
        | RopeKind::Proportional { .. } => {
            if spec.family.model_type() == "phi3" {
                let original = config.usize("original_max_position_embeddings")?.unwrap_or(4096);
                keys.add("rope.scaling.original_context_length", Value::U32(original as u32));
            }
        }
    }
    Ok(())
}

/// What the configuration says of scaling.
fn scaling(config: &ConfigFile) -> Option<&Map<String, Json>> {
    config.get("rope_parameters").or_else(|| config.get("rope_scaling"))?.as_object()
}

/// Tensors of factors that frequencies are divided by.
pub(super) fn factors(spec: &Spec) -> Vec<(&'static str, Vec<f32>)> {
    let Some(rope) = spec.ropes.first() else { return Vec::new() };
    let narrow = |all: &[f64]| all.iter().map(|&factor| factor as f32).collect();
    match &rope.kind {
        RopeKind::LongRope { short, long, .. } => {
            vec![("rope_factors_long.weight", narrow(long)), ("rope_factors_short.weight", narrow(short))]
        }
        RopeKind::Llama3 { factor, low, high, original } => {
            let of = |pair: usize| {
                let frequency = rope.theta.powf(-2.0 * pair as f64 / rope.dim as f64);
                let length = std::f64::consts::TAU / frequency;
                if length < original / high {
                    1.0
                } else if length > original / low {
                    *factor
                } else {
                    let smooth = (original / length - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            };
            vec![("rope_freqs.weight", (0..rope.dim / 2).map(|pair| of(pair) as f32).collect())]
        }
        _ => Vec::new(),
    }
}

/// How large a model is, in words: `1.2B`.
pub(super) fn size_label(elements: u64, experts: Option<(usize, u64)>) -> String {
    let label = |count: u64| {
        let steps = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
        let (by, letter) = steps.into_iter().find(|(by, _)| count as f64 > *by).unwrap_or((1e3, "K"));
        let scaled = count as f64 / by;
        let digits = scaled.round_ties_even().to_string().trim_start_matches('0').len();
        format!("{scaled:.*}{letter}", 2_usize.saturating_sub(digits))
    };
    match experts {
        Some((count, each)) => format!("{count}x{}", label(each)),
        None => label(elements),
    }
}
