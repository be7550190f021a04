//! StarCoder 2, Phi and StableLM: blocks like Llama's behind LayerNorms.

use super::reader::{Defaults, LLAMA_DEFAULTS, Reader};
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
