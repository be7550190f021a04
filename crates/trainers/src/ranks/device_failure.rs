//! Device failures as errors of a run: what holds memory, and which options would help.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::Device;
use burnish_device::{Failure, memory};

use crate::TrainError;

/// Runs `program`. A panic that comes from the device is its failure; any other goes on.
pub(crate) fn guarded<T>(program: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(program)).map_err(|panic| match Failure::of(text(&*panic)) {
        Some(failure) => failure,
        None => resume_unwind(panic),
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}

/// The failure of a model that is used and not trained.
pub(crate) fn failed_in_use(failure: Failure, device: &Device) -> TrainError {
    match failure {
        Failure::OutOfMemory { bytes } => TrainError::OutOfMemory {
            bytes,
            held: memory(device),
            table: "a model in use holds its weights, and keys and values of every token that is generated or read"
                .to_owned(),
            mends: vec![
                "--dtype bfloat16: weights in half the memory".to_owned(),
                "a smaller per_device_eval_batch_size, or fewer max_new_tokens: fewer keys and values".to_owned(),
                "--tp_size 2 over two devices: each holds half of every layer".to_owned(),
            ],
        },
        Failure::Broken { text } => TrainError::DeviceBroken { text },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_s_panic_is_caught_and_any_other_goes_on() {
        let caught = guarded(|| panic!("An io error: out of device memory allocating 1024 bytes"));
        assert_eq!(caught, Err::<(), _>(Failure::OutOfMemory { bytes: 1024 }));
        assert_eq!(guarded(|| 3), Ok(3));
        let other = catch_unwind(|| guarded(|| panic!("index out of bounds")));
        assert!(other.is_err());
    }
}
