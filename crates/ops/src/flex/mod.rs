//! The CPU path: tensors on Burn's flex backend, computed by `burnish-cpu-kernels`.

pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod columns;
pub(crate) mod conv_heads;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod experts;
pub(crate) mod gated_norm;
pub(crate) mod head;
pub(crate) mod head_weights;
pub(crate) mod host;
pub(crate) mod linear;
pub(crate) mod linear_attention;
pub(crate) mod magnitude;
pub(crate) mod muon;
pub(crate) mod norm;
pub(crate) mod orthogonal;
pub(crate) mod selective_scan;
pub(crate) mod short_conv;

use burnish_core::Dtype;

use crate::AnyTensor;

/// Whether kernels compute on these tensors: on the CPU and not f64.
pub(crate) fn holds<'a>(tensors: impl IntoIterator<Item = &'a AnyTensor>) -> bool {
    tensors.into_iter().all(|tensor| tensor.dtype() != Some(Dtype::F64) && tensor.is_on_host())
}
