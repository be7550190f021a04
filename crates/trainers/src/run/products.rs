//! The default of `bf16`: what products multiply where options leave it open.

use burnish_config::groups::{ModelOptions, TrainingOptions};
use burnish_device::{DeviceKind, multiplies_bf16};

use crate::TrainError;
use crate::rank::resumed::resumed_state;

/// Whether a run that leaves `bf16` open multiplies bfloat16 on a device of `kind`; `None` where its options say which, or it
/// goes on from a checkpoint that says nothing: then float32.
///
/// TRL's default is bfloat16 unless `fp16` is on. Here it is that on CUDA, and where the processor has such products:
/// elsewhere they are float32's whatever is asked. A run that goes on multiplies what it began with, on whatever machine; before the processor is
/// asked, `launched` may say it: `no` or `bf16`, as `ACCELERATE_MIXED_PRECISION` does.
///
/// # Errors
/// If the checkpoint to go on from cannot be read.
pub fn default_bf16(
    model: &ModelOptions,
    training: &TrainingOptions,
    kind: DeviceKind,
    launched: Option<&str>,
) -> Result<Option<bool>, TrainError> {
    if model.bf16.is_some() {
        return Ok(None);
    }
    if let Some(state) = resumed_state(training)? {
        return Ok(state.burnish()["facts"]["options"]["bf16"].as_str().map(|then| then == "true"));
    }
    Ok(Some(match launched {
        _ if training.fp16 => false,
        Some("no") => false,
        Some("bf16") => true,
        _ => match kind {
            DeviceKind::Cpu => multiplies_bf16(),
            DeviceKind::Cuda => true,
            DeviceKind::Wgpu => false,
        },
    }))
}
