//! Optimizer state as Burn records it: tensors by slot name, in their own dtypes.

use burn::tensor::Device;
use burn_optim::{StateSink, StateSource};
use burnish_ops::AnyTensor;

/// The scalar that counts a parameter's steps.
const STEP: &str = "step";

pub(super) fn put(out: &mut StateSink, prefix: &str, slot: &str, tensor: Option<&AnyTensor>) {
    if let Some(tensor) = tensor {
        out.push_tensor(prefix, slot, tensor.to_data());
    }
}

pub(super) fn take(source: &mut StateSource, prefix: &str, slot: &str, device: &Device) -> Option<AnyTensor> {
    Some(AnyTensor::from_data(source.take_tensor(prefix, slot)?, device))
}

pub(super) fn put_step(out: &mut StateSink, prefix: &str, step: u64) {
    out.push_scalar(prefix, STEP, step.into());
}

pub(super) fn take_step(source: &mut StateSource, prefix: &str) -> Option<u64> {
    source.take_scalar(prefix, STEP)?.try_into().ok()
}

/// A slot on another device.
pub(super) fn moved(slot: Option<AnyTensor>, device: &Device) -> Option<AnyTensor> {
    slot.map(|t| if t.device() == *device { t } else { AnyTensor::from_data(t.to_data(), device) })
}
