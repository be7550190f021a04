//! Granite with windows and sinks.

use serde_json::{Value, json};

use super::llamas::granite;
use super::mixtures::granitemoeshared;
use super::reader::Reader;
use crate::ModelError;
use crate::spec::rope::{Rope, RopeDefaults};
use crate::spec::{Spec, wrong};

/// What both kinds have: sinks in every block, windows in three of four, rotations of each block's own base.
fn with_windows(r: &Reader<'_>, mut spec: Spec) -> Result<Spec, ModelError> {
    spec.sinks = true;
    let window = r.window(Some(128))?;
    r.windows(&mut spec, window, |layer| layer % 4 != 0)?;
    let Some(given) = r.config.get("layer_rope_theta") else { return Ok(spec) };
    let bases: Option<Vec<f64>> = given.as_array().and_then(|all| all.iter().map(Value::as_f64).collect());
    let bases =
        bases.filter(|bases| bases.len() >= spec.layers.len() && bases.iter().all(|base| *base >= 0.0));
    let bases = bases.ok_or_else(|| {
        wrong("layer_rope_theta", &given.to_string(), "one number per layer, 0 where it does not turn")
    })?;
    let rope = r.config.get("rope_parameters").or_else(|| r.config.get("rope_scaling"));
    let rope = rope.and_then(Value::as_object).cloned().unwrap_or_default();
    let defaults = RopeDefaults {
        head_dim: spec.head_dim,
        max_positions: spec.max_positions,
        original_positions: spec.max_positions,
        theta: 10_000.0,
        partial: None,
    };
    let mut known: Vec<f64> = Vec::new();
    spec.ropes.clear();
    for (layer, base) in spec.layers.iter_mut().zip(bases) {
        layer.rope = None;
        if base == 0.0 {
            continue;
        }
        if !known.contains(&base) {
            known.push(base);
            let mut own = rope.clone();
            own.insert("rope_theta".to_owned(), json!(base));
            spec.ropes.push(Rope::of(&own, r.config, &defaults)?);
        }
        layer.rope = known.iter().position(|other| *other == base);
    }
    Ok(spec)
}

pub(super) fn granite_swa(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    for (key, value) in [
        ("num_key_value_heads", json!(4)),
        ("max_position_embeddings", json!(8192)),
        ("rms_norm_eps", json!(1e-5)),
        ("tie_word_embeddings", json!(true)),
    ] {
        config.json.entry(key).or_insert(value);
    }
    let r = &Reader { config: &config, family: r.family };
    with_windows(r, granite(r)?)
}

pub(super) fn granitemoe_swa(r: &Reader<'_>) -> Result<Spec, ModelError> {
    with_windows(r, granitemoeshared(r)?)
}
