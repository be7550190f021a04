//! [`crate::KvCache`] on CPU kernels.

use std::ops::Range;

use burnish_cpu_kernels as kernels;

use super::attention::{kernel_rotary, kernel_shape};
use super::host::{Host, tensor};
use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::{AnyTensor, OpsError};

const OP: &str = "cached attention";

/// Adds the new rows of every sequence to `cache` and attends to it. Not recorded.
pub(crate) fn attend(
    cache: &mut kernels::KvCache,
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &[Range<usize>],
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    let rows = qkv.shape()[0];
    let qkv = Host::f32_of(OP, "qkv", qkv)?;
    let norm = match norm {
        Some(n) => Some((Host::f32_of(OP, "q_norm", &n.q)?, Host::f32_of(OP, "k_norm", &n.k)?, n.eps)),
        None => None,
    };
    let norm = norm.as_ref().map(|(q, k, eps)| kernels::HeadNorm { q: q.f32(), k: k.f32(), eps: *eps });
    let sinks = sinks.map(|sinks| Host::f32_of(OP, "sinks", sinks)).transpose()?;
    let kernel = kernel_shape(shape, documents, sinks.as_ref());
    let rotary = rotary.map(kernel_rotary);
    kernels::append_kv(qkv.f32(), &kernel, rotary.as_ref(), norm.as_ref(), cache);
    let out = kernels::attention_cached(qkv.f32(), &kernel, rotary.as_ref(), norm.as_ref(), cache);
    Ok(tensor(out, &[rows, shape.heads * shape.head_dim]))
}
