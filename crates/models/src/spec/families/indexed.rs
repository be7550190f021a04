//! Latent attention over tokens that an indexer picks (DeepSeek sparse attention, arXiv:2512.02556).
//!
//! A token sees `index_topk` of those before it. Texts have no more tokens here, so that each sees all of them, as in the classes of
//! Transformers; nothing trains the indexer there, and files keep what they have of it.

use serde_json::{Value, json};

use super::mixtures::glm4_moe_lite;
use super::reader::{Reader, with_defaults};
use crate::ModelError;
use crate::spec::Spec;

fn indexed(r: &Reader<'_>, defaults: Value) -> Result<Spec, ModelError> {
    let shared = json!({"num_key_value_heads": null, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3});
    let mut config = with_defaults(&with_defaults(r.config, defaults), shared);
    // A key of GLM-4.7-Flash that neither class reads.
    config.json.insert("rope_interleave".to_owned(), Value::Bool(true));
    let r = &Reader { config: &config, family: r.family };
    let picked = r.positive_or("index_topk", 2048)?;
    let spec = glm4_moe_lite(r)?;
    let max_positions = spec.max_positions.min(picked);
    Ok(Spec { indexed: Some((picked, "index_topk")), max_positions, ..spec })
}

/// DeepSeek-V3.2.
pub(super) fn deepseek_v32(r: &Reader<'_>) -> Result<Spec, ModelError> {
    indexed(
        r,
        json!({"q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8, "topk_group": 4,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 163_840}),
    )
}

/// GLM-5.
pub(super) fn glm_moe_dsa(r: &Reader<'_>) -> Result<Spec, ModelError> {
    indexed(r, json!({"q_lora_rank": 2048, "max_position_embeddings": 202_752}))
}
