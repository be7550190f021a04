//! Families with Mamba's selective scans in some or all of their blocks.

use serde_json::json;

use super::mamba::{alone, convolves_with_silu, expanded, number, place};
use super::mixtures::{MIXTRAL, MixtureDefaults, mixture};
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, with_defaults};
use crate::ModelError;
use crate::spec::{SelectiveScanSpec, Spec, SsdSpec, names, wrong};

/// What families call the sizes of a selective scan.
struct Keys {
    state: &'static str,
    taps: &'static str,
    step_rank: &'static str,
    conv_bias: &'static str,
    bias: &'static str,
}

/// The scan of `width` channels.
fn scan(r: &Reader<'_>, keys: &Keys, width: usize) -> Result<SsdSpec, ModelError> {
    let auto = r.config.get(keys.step_rank).is_none_or(|value| value.as_str() == Some("auto"));
    let step_rank = match auto {
        true => r.positive("hidden_size")?.div_ceil(16),
        false => number(r, keys.step_rank, 1)?,
    };
    Ok(SsdSpec {
        heads: width,
        head_dim: 1,
        groups: 1,
        state: number(r, keys.state, 16)?,
        taps: number(r, keys.taps, 4)?,
        conv_bias: r.bool(keys.conv_bias, true)?,
        biases: [r.bool(keys.bias, false)?; 2],
        norm: false,
        norm_before_gate: false,
        scales: [1.0; 5],
        out_scales: [1.0; 2],
        selective: Some(SelectiveScanSpec { step_rank, norm_eps: None, norm_weights: false }),
    })
}

const MAMBA: Keys = Keys {
    state: "state_size",
    taps: "conv_kernel",
    step_rank: "time_step_rank",
    conv_bias: "use_conv_bias",
    bias: "use_bias",
};

/// Mamba: scans alone.
pub(super) fn mamba(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config =
        with_defaults(r.config, json!({ "vocab_size": 50_280, "hidden_size": 768, "num_hidden_layers": 32 }));
    let r = &Reader { config: &config, family: r.family };
    let width = match r.config.get("intermediate_size") {
        Some(_) => number(r, "intermediate_size", 1)?,
        None => expanded(r, "expand")?,
    };
    // Each channel is a head.
    let mut spec = alone(r, width.into(), true)?;
    spec.ssd = Some(scan(r, &MAMBA, width)?);
    Ok(spec)
}

/// Puts norms before steps and directions.
fn normed(spec: &mut Spec, eps: f32, weights: bool) {
    if let Some(own) = spec.ssd.as_mut().and_then(|sizes| sizes.selective.as_mut()) {
        (own.norm_eps, own.norm_weights) = (Some(eps), weights);
    }
}

/// Mamba with norms of steps and directions that have no weights.
pub(super) fn falcon_mamba(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = mamba(r)?;
    normed(&mut spec, r.f32("mixer_rms_eps", 1e-6)?, false);
    Ok(spec)
}

const JAMBA: Keys = Keys {
    state: "mamba_d_state",
    taps: "mamba_d_conv",
    step_rank: "mamba_dt_rank",
    conv_bias: "mamba_conv_bias",
    bias: "mamba_proj_bias",
};

/// Every `period`th block from `offset` on.
fn every(
    r: &Reader<'_>,
    [period, offset]: [(&str, usize); 2],
) -> Result<impl Fn(usize) -> bool + use<>, ModelError> {
    let (period_key, offset_key) = (period.0, offset.0);
    let period = r.positive_or(period_key, period.1)?;
    let offset = r.config.usize(offset_key)?.unwrap_or(offset.1);
    if offset >= period {
        let got = format!("{offset} of {period} ({period_key})");
        return Err(wrong(offset_key, &got, "less than the period"));
    }
    Ok(move |at: usize| at % period == offset)
}

/// Jamba: some blocks with attention that turns nothing, the others with scans; every second feed-forward a mixture.
pub(super) fn jamba(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(r.config, json!({ "intermediate_size": 14_336 }));
    let r = &Reader { config: &config, family: r.family };
    let defaults =
        Defaults { kv_heads: Some(8), max_positions: 262_144, pad_token: Some(0), ..LLAMA_DEFAULTS };
    let mut spec = Spec { names: names::JAMBA, ..r.spec(&defaults)? };
    spec.ropes = Vec::new();
    let own = MixtureDefaults {
        count: 16,
        renormalise: Some(false),
        width: spec.intermediate,
        balance: 0.001,
        ..MIXTRAL
    };
    mixture(r, &mut spec, &own)?;
    let several = spec.experts.is_some_and(|experts| experts.count > 1);
    let attends = every(r, [("attn_layer_period", 8), ("attn_layer_offset", 4)])?;
    let mixed = every(r, [("expert_layer_period", 2), ("expert_layer_offset", 1)])?;
    for (at, layer) in spec.layers.iter_mut().enumerate() {
        layer.rope = None;
        layer.experts = several && mixed(at);
        place(layer, if attends(at) { "full_attention" } else { "linear_attention" })?;
    }
    if !spec.layers.iter().any(|layer| layer.experts) {
        spec.experts = None;
    }
    convolves_with_silu(r, "hidden_act")?;
    spec.ssd = Some(scan(r, &JAMBA, expanded(r, "mamba_expand")?)?);
    let eps = spec.norm_eps;
    normed(&mut spec, eps, true);
    Ok(spec)
}
