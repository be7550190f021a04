//! OLMo.

use super::reader::{Defaults, LLAMA_DEFAULTS, Reader};
use crate::ModelError;
use crate::spec::{BlockLayout, NormKind, QkNorm, Spec, names};

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
