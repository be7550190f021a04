//! The CPU path: tensors on Burn's flex backend, computed by `burnish-kernels`.

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod embedding;
pub(crate) mod head;
pub(crate) mod host;
pub(crate) mod linear;
pub(crate) mod muon;
pub(crate) mod norm;
pub(crate) mod orthogonal;
pub(crate) mod update;

use burnish_core::Dtype;

use crate::AnyTensor;

/// Whether a tensor is computed here: on the CPU and not f64 (which the reference bodies compute, for tests).
pub(crate) fn holds(tensor: &AnyTensor) -> bool {
    tensor.dtype() != Some(Dtype::F64) && tensor.is_on_host()
}
