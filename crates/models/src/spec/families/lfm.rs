//! LFM2: attention in some blocks, short convolutions in the others.

use serde_json::Value;

use super::mixtures::lfm2_mixture;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed};
use crate::ModelError;
use crate::spec::{QkNorm, ShortConv, Spec, names, wrong};

pub(super) fn lfm2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config =
        renamed(r.config, &[("intermediate_size", "block_ff_dim"), ("tie_word_embeddings", "tie_embedding")]);
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        max_positions: 128_000,
        norm_eps: 1e-5,
        eps_key: "norm_eps",
        tied: true,
        pad_token: Some(0),
        rope_theta: 1_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::LFM2;
    spec.qk_norm = Some(QkNorm::PerHead);
    if r.bool("block_auto_adjust_ff_dim", true)? {
        let mut width = 2 * spec.intermediate / 3;
        if let Some(factor) = r.nullable("block_ffn_dim_multiplier", Some(1.0))? {
            width = (f64::from(factor) * width as f64) as usize;
        }
        let multiple = config.usize("block_multiple_of")?.unwrap_or(256).max(1);
        spec.intermediate = width.next_multiple_of(multiple);
    }
    let taps = config.usize("conv_L_cache")?.unwrap_or(3);
    if taps == 0 {
        return Err(wrong("conv_L_cache", "0", "a positive integer"));
    }
    let layers = spec.layers.len();
    let convolves: Vec<bool> = match (config.get("layer_types"), config.get("full_attn_idxs")) {
        (Some(types), _) => {
            let kinds = types.as_array().filter(|types| types.len() >= layers);
            let kinds = kinds.map(|types| types.iter().take(layers).map(Value::as_str).collect::<Vec<_>>());
            let known = |kinds: &Vec<Option<&str>>| {
                kinds.iter().all(|kind| matches!(kind, Some("conv" | "full_attention")))
            };
            let kinds = kinds.filter(known).ok_or_else(|| {
                wrong("layer_types", &types.to_string(), "`conv` or `full_attention` for each layer")
            })?;
            kinds.into_iter().map(|kind| kind == Some("conv")).collect()
        }
        (None, Some(attends)) => {
            let attends: Vec<u64> =
                attends.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
            (0..layers as u64).map(|layer| !attends.contains(&layer)).collect()
        }
        (None, None) => vec![false; layers],
    };
    for (layer, conv) in spec.layers.iter_mut().zip(convolves) {
        layer.conv = conv;
    }
    spec.conv = Some(ShortConv { taps, bias: r.bool("conv_bias", false)? });
    Ok(spec)
}

/// LFM2 with mixtures of experts, whose widths are as they are said.
pub(super) fn lfm2_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    config.json.insert("block_auto_adjust_ff_dim".to_owned(), Value::from(false));
    let r = Reader { config: &config, family: r.family };
    let mut spec = Spec { names: names::LFM2_MOE, ..lfm2(&r)? };
    lfm2_mixture(&r, &mut spec)?;
    Ok(spec)
}
