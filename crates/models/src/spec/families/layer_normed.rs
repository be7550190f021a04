//! StarCoder 2, Phi, StableLM and ModernBERT's decoders: blocks like Llama's behind LayerNorms.

use serde_json::json;

use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed, with_defaults};
use crate::ModelError;
use crate::spec::{BlockLayout, NormKind, Output, QkNorm, Spec, names};

pub(super) fn starcoder2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        max_positions: 4096,
        norm_eps: 1e-5,
        eps_key: "norm_epsilon",
        tied: true,
        activation: "gelu_pytorch_tanh",
        initializer_range: 0.018_042,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::STARCODER2;
    spec.norm = NormKind::Layer { bias: true };
    let bias = r.bool("use_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, bias);
    let window = r.window(None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

/// ModernBERT's decoders (Ettin): windows in two of three blocks, a layer before the head.
pub(super) fn modernbert_decoder(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let keys = [("rope_theta", "global_rope_theta"), ("rope_local_base_freq", "local_rope_theta")];
    let mut config = with_defaults(
        &renamed(r.config, &keys),
        json!({"vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
            "num_attention_heads": 12}),
    );
    // Its ropes are by kinds of blocks, and read below.
    let ropes = config.json.remove("rope_parameters");
    let defaults = Defaults {
        max_positions: 8192,
        norm_eps: 1e-5,
        eps_key: "norm_eps",
        tied: true,
        pad_token: Some(50_283),
        activation: "gelu",
        activation_key: "hidden_activation",
        reads_head_dim: false,
        ..LLAMA_DEFAULTS
    };
    let mut spec = Reader { config: &config, family: r.family }.spec(&defaults)?;
    config.json.extend(ropes.map(|ropes| ("rope_parameters".to_owned(), ropes)));
    let r = &Reader { config: &config, family: r.family };
    if spec.output == Output::Score {
        return Err(ModelError::Unsupported {
            key: "architectures".to_owned(),
            got: "a model of scores".to_owned(),
            supported: "ModernBertDecoderForCausalLM",
        });
    }
    r.only_word("classifier_activation", "gelu")?;
    spec.names = names::MODERNBERT_DECODER;
    spec.norm = NormKind::Layer { bias: r.bool("norm_bias", false)? };
    spec.embedding_norm = true;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (bias, bias, r.bool("mlp_bias", false)?);
    spec.head_bias = r.bool("decoder_bias", true)?;
    spec.dense_head = Some(r.bool("classifier_bias", false)?);
    // Of both sides in the encoder; a decoder sees one, or what a key of its own says.
    let window = r.window(Some(r.positive_or("local_attention", 128)? / 2))?;
    let each = r.config.usize("global_attn_every_n_layers")?.unwrap_or(3).max(1);
    let sliding = r.sliding(spec.layers.len(), |layer| layer % each != 0)?;
    r.ropes_by_type(&mut spec, [10_000.0, 160_000.0], None)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        (layer.window, layer.rope) = (window.filter(|_| slides), Some(usize::from(slides)));
    }
    if let Some(first) = spec.layers.first_mut() {
        first.no_attention_norm = true;
    }
    Ok(spec)
}

pub(super) fn phi(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        activation: "gelu_new",
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::PHI;
    spec.qk_norm = r.bool("qk_layernorm", false)?.then_some(QkNorm::PerHeadLayer { own: false });
    spec.norm = NormKind::Layer { bias: true };
    spec.layout = BlockLayout::ParallelShared;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, true, true);
    spec.head_bias = spec.output == Output::Vocabulary;
    Ok(spec)
}

pub(super) fn stablelm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(32),
        reads_head_dim: false,
        max_positions: 4096,
        norm_eps: 1e-5,
        eps_key: "layer_norm_eps",
        partial_rotary: Some(0.25),
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::STABLELM;
    spec.qk_norm = r.bool("qk_layernorm", false)?.then_some(QkNorm::PerHeadLayer { own: true });
    spec.norm = NormKind::Layer { bias: true };
    spec.qkv_bias = r.bool("use_qkv_bias", false)?;
    if r.bool("use_parallel_residual", false)? {
        spec.layout = BlockLayout::ParallelShared;
    }
    Ok(spec)
}
