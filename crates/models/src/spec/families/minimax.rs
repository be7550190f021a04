//! MiniMax-M3: its gates are clamped, and of the blocks of keys before a token an indexer picks those that it sees.
//!
//! Texts have no more blocks of keys here than are picked, so that each token sees all before it.

use burnish_core::{ExpertGate, RouterScores};
use serde_json::{Value, json};

use super::mixtures::{MIXTRAL, MixtureDefaults, mixture, typed_blocks};
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, with_defaults};
use crate::ModelError;
use crate::spec::{NormKind, QkNorm, SharedExpert, Spec, names, wrong};

/// One number of a list for each block, where there is a list.
fn flags(given: Option<&Value>, key: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
    let Some(given) = given else { return Ok(None) };
    let list = given.as_array().filter(|list| list.len() >= layers);
    let list = list.and_then(|list| {
        list.iter().take(layers).map(|flag| flag.as_u64().map(|n| n != 0).or(flag.as_bool())).collect()
    });
    list.map(Some).ok_or_else(|| wrong(key, &given.to_string(), "0 or 1 for each layer"))
}

/// The decoder of MiniMax-M3.
pub(super) fn minimax_m3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = with_defaults(
        r.config,
        json!({"vocab_size": 200_064, "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64,
            "intermediate_size": 3072, "dense_intermediate_size": 12_288}),
    );
    // The same keys as files of before have them.
    let sparse = config.get("sparse_attention_config").cloned().unwrap_or_default();
    for (key, former) in
        [("index_block_size", "sparse_block_size"), ("index_topk_blocks", "sparse_topk_blocks")]
    {
        if let Some(value) = sparse.get(former) {
            config.json.insert(key.to_owned(), value.clone());
        }
    }
    for (key, of) in
        [("moe_intermediate_size", "intermediate_size"), ("intermediate_size", "dense_intermediate_size")]
    {
        let width = config.json.get(of).cloned().unwrap_or_default();
        config.json.insert(key.to_owned(), width);
    }
    // Whatever is said, gates are clamped.
    config.json.remove("hidden_act");
    let r = &Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(4),
        head_dim: Some(128),
        max_positions: 524_288,
        rope_theta: 5_000_000.0,
        partial_rotary: Some(1.0),
        ..LLAMA_DEFAULTS
    };
    let mut spec = Spec { names: names::MINIMAX_M3, ..r.spec(&defaults)? };
    (spec.norm, spec.qk_norm) = (NormKind::RmsPlusOne, Some(QkNorm::PerHead));
    let layers = spec.layers.len();
    let own = MixtureDefaults {
        count: 128,
        per_token: 4,
        width_key: "moe_intermediate_size",
        width: 3072,
        ..MIXTRAL
    };
    mixture(r, &mut spec, &own)?;
    typed_blocks(r, &mut spec, 0)?;
    if r.config.get("mlp_layer_types").is_none()
        && let Some(mixed) = flags(r.config.get("moe_layer_freq"), "moe_layer_freq", layers)?
    {
        spec.layers.iter_mut().zip(mixed).for_each(|(layer, mixed)| layer.experts = mixed);
    }
    let (alpha, limit) = (r.f32("swiglu_alpha", 1.702)?, r.f32("swiglu_limit", 7.0)?);
    if limit < 0.0 {
        return Err(wrong("swiglu_limit", &limit.to_string(), "a number that is not negative"));
    }
    spec.clamped_gates = Some((alpha, limit));
    let intermediate = r.positive_or("shared_intermediate_size", 3072)?;
    if let Some(experts) = &mut spec.experts {
        experts.gate = ExpertGate::ClampedHalves { alpha, limit };
        (experts.rule.scores, experts.corrected) = (RouterScores::Sigmoid, true);
        experts.rule.scale = r.f32("routed_scaling_factor", 2.0)?;
        experts.shared = Some(SharedExpert { intermediate, gated: false });
    }
    let picks = match r.config.get("layer_types") {
        None => {
            flags(sparse.get("sparse_attention_freq"), "sparse_attention_freq", layers)?.unwrap_or_default()
        }
        Some(types) => {
            let list = types.as_array().filter(|list| list.len() >= layers);
            let list = list.ok_or_else(|| wrong("layer_types", &types.to_string(), "one entry per layer"))?;
            let picks = |kind: &Value| match kind.as_str() {
                Some("minimax_m3_sparse") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(ModelError::Unsupported {
                    key: "layer_types".to_owned(),
                    got: kind.to_string(),
                    supported: "full_attention, minimax_m3_sparse",
                }),
            };
            list.iter().take(layers).map(picks).collect::<Result<_, _>>()?
        }
    };
    if picks.contains(&true) {
        let (blocks, size) =
            (r.positive_or("index_topk_blocks", 16)?, r.positive_or("index_block_size", 128)?);
        let picked = blocks.saturating_mul(size);
        (spec.indexed, spec.max_positions) =
            (Some((picked, "index_topk_blocks")), spec.max_positions.min(picked));
    }
    Ok(spec)
}

/// The same alone, under the names of its class.
pub(super) fn minimax_m3_text(r: &Reader<'_>) -> Result<Spec, ModelError> {
    Ok(Spec { names: names::MINIMAX_M3_TEXT, ..minimax_m3(r)? })
}
