//! OLMo.

use serde_json::Value;

use super::qwen::delta_blocks;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader};
use crate::ModelError;
use crate::spec::{BlockLayout, GatedDelta, NormKind, QkNorm, Spec, names, wrong};

/// What the three OLMos share.
pub(super) const OLMO: Defaults = Defaults { pad_token: Some(1), norm_eps: 1e-5, ..LLAMA_DEFAULTS };

pub(super) fn olmo_spec(r: &Reader<'_>, defaults: &Defaults) -> Result<Spec, ModelError> {
    let mut spec = r.spec(defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    Ok(spec)
}

pub(super) fn olmo(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = olmo_spec(r, &OLMO)?;
    (spec.norm, spec.norm_eps) = (NormKind::LayerBare, 1e-5);
    spec.clip_qkv = r.clip_qkv()?;
    Ok(spec)
}

pub(super) fn olmo2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = olmo_spec(r, &OLMO)?;
    spec.names = names::GEMMA2;
    spec.layout = BlockLayout::Post;
    spec.qk_norm = Some(QkNorm::WholeWidth);
    Ok(spec)
}

pub(super) fn olmo3(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut spec = olmo2(r)?;
    let window = r.window(Some(4096))?;
    r.windows(&mut spec, window, |layer| (layer + 1) % 4 != 0)?;
    r.ropes_by_type(&mut spec, [500_000.0, 500_000.0], None)?;
    // As in Transformers `rope_theta` is that of the layers that see everything.
    let sliding = r.sliding(spec.layers.len(), |layer| (layer + 1) % 4 != 0)?;
    for (layer, slides) in spec.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    Ok(spec)
}

/// OLMo Hybrid: gated delta rules behind norms in most blocks, OLMo 3's attention before norms in the others, which turns
/// nothing where the configuration says so.
pub(super) fn olmo_hybrid(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let still =
        r.config.get("rope_parameters").and_then(|rope| rope.get("rope_theta")).is_some_and(Value::is_null);
    let defaults = Defaults {
        reads_head_dim: false,
        max_positions: 65_536,
        norm_eps: 1e-6,
        pad_token: Some(100_277),
        ..OLMO
    };
    let mut spec = Spec { names: names::OLMO_HYBRID, ..olmo_spec(r, &defaults)? };
    spec.layout = BlockLayout::Post;
    spec.qk_norm = Some(QkNorm::WholeWidth);
    if still {
        spec.ropes.clear();
        spec.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    let heads = |key: &str| -> Result<usize, ModelError> { Ok(r.config.usize(key)?.unwrap_or(spec.heads)) };
    let (key_heads, value_heads) = (heads("linear_num_key_heads")?, heads("linear_num_value_heads")?);
    let key_dim = match r.config.usize("linear_key_head_dim")? {
        Some(dim) => dim,
        None => spec.hidden.saturating_mul(3) / 4 / key_heads.max(1),
    };
    if key_dim == 0 {
        return Err(wrong("linear_key_head_dim", "0", "a positive integer"));
    }
    let sizes = GatedDelta {
        key_heads,
        value_heads,
        key_dim,
        value_dim: key_dim.saturating_mul(2),
        taps: 4,
        doubled: r.bool("linear_allow_neg_eigval", true)?,
        by_channel: None,
        norm_eps: Some(1e-5),
    };
    let last = spec.layers.len() - 1;
    delta_blocks(r, &mut spec, sizes, |at| at % 4 == 3 || last < 3 && at == last)?;
    for layer in spec.layers.iter_mut().filter(|layer| layer.delta) {
        layer.layout = Some(BlockLayout::Pre);
    }
    Ok(spec)
}
