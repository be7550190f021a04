//! Cohere and GLM, whose neighbours turn together.

use serde_json::{Value, json};

use super::multimodal::plain_rope;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, with_defaults};
use crate::ModelError;
use crate::spec::rope::{Rope, RopeDefaults};
use crate::spec::{BlockLayout, NormKind, Pairs, QkNorm, Spec, names, wrong};

/// What both Coheres share.
pub(super) const COHERE: Defaults = Defaults {
    max_positions: 8192,
    norm_eps: 1e-5,
    eps_key: "layer_norm_eps",
    tied: true,
    pad_token: Some(0),
    ..LLAMA_DEFAULTS
};

pub(super) fn cohere_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    let mut spec = r.spec(defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.norm = NormKind::Layer { bias: false };
    spec.layout = BlockLayout::ParallelShared;
    spec.pairs = Pairs::Neighbours;
    spec.logit_scale = r.f32("logit_scale", 0.0625)?;
    Ok(spec)
}

pub(super) fn cohere(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = cohere_spec(r, &Defaults { rope_theta: 500_000.0, ..COHERE })?;
    spec.qk_norm = r.bool("use_qk_norm", false)?.then_some(QkNorm::PerHeadLayer { own: true });
    Ok(spec)
}

pub(super) fn cohere2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = cohere_spec(r, &Defaults { reads_head_dim: false, ..COHERE })?;
    let (window, pattern) = (r.window(Some(4096))?, r.pattern(4)?);
    r.windows(&mut spec, window, |layer| (layer + 1) % pattern != 0)?;
    for layer in &mut spec.layers {
        layer.rope = layer.window.map(|_| 0);
    }
    Ok(spec)
}

/// Command A's of North Micro Vision and Compass: Cohere 2's blocks, a rotation of each kind of block or none, whose halves turn.
pub(super) fn cohere_compass(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = with_defaults(
        &plain_rope(r.config),
        json!({"vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "logit_scale": 1.0}),
    );
    let by_type = config.json.remove("rope_parameters").unwrap_or_default();
    let r = &Reader { config: &config, family: r.family };
    let mut spec = cohere_spec(r, &Defaults { reads_head_dim: false, ..COHERE })?;
    spec.pairs = Pairs::Halves;
    if r.config.json.get("logit_scale").is_some_and(Value::is_null) {
        spec.logit_scale = 1.0;
    }
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |_| false)?;
    let sliding = r.sliding(spec.layers.len(), |_| false)?;
    spec.ropes.clear();
    let mut places = [None; 2];
    for (slides, kind) in [(false, "full_attention"), (true, "sliding_attention")] {
        if !sliding.contains(&slides) {
            continue;
        }
        let own = match by_type.get(kind) {
            Some(Value::Null) => continue,
            Some(Value::Object(own)) => own,
            // As its class, which needs a word on every kind that is there.
            other => {
                let got = other.map_or_else(|| "missing".to_owned(), Value::to_string);
                return Err(wrong(&format!("rope_parameters.{kind}"), &got, "an object, or null for none"));
            }
        };
        places[usize::from(slides)] = Some(spec.ropes.len());
        let defaults = RopeDefaults {
            head_dim: spec.head_dim,
            max_positions: spec.max_positions,
            original_positions: spec.max_positions,
            theta: 10_000.0,
            partial: None,
        };
        spec.ropes.push(Rope::of(own, r.config, &defaults)?);
    }
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.rope = places[usize::from(slides)];
    }
    Ok(spec)
}

pub(super) fn glm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        max_positions: 131_072,
        norm_eps: 1.562_5e-7,
        pad_token: Some(151_329),
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::GLM;
    spec.qkv_bias = r.bool("attention_bias", true)?;
    spec.pairs = Pairs::Neighbours;
    Ok(spec)
}

pub(super) fn glm4(r: &Reader<'_>) -> Result<Spec, ModelError> {
    Ok(Spec { names: names::GLM4, layout: BlockLayout::Sandwich, ..glm(r)? })
}
