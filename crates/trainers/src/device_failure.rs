//! What a device's failure means for a run: an error that says what holds memory and what would help.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::Device;
use burnish_config::{ModelDtype, RunOptions};
use burnish_device::{Failure, memory};

use crate::TrainError;
use crate::planned_step::PlannedStep;
use crate::run_plan::RunPlan;
use crate::setup::Setup;

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

/// The failure of a run.
pub(crate) fn explained(failure: Failure, setup: &Setup) -> TrainError {
    match failure {
        Failure::OutOfMemory { bytes } => {
            let options = &setup.options;
            let plan = RunPlan::of_step(&PlannedStep::supervised(options.clone()));
            let table = match plan {
                Ok(plan) => format!("what the plan of a run like this counts:\n{}", plan.held()),
                Err(error) => format!("(there is no plan of this run: {error})"),
            };
            TrainError::OutOfMemory {
                bytes,
                held: memory(setup.devices.of(0).1),
                table,
                mends: mends(options),
            }
        }
        Failure::Broken { text } => TrainError::DeviceBroken { text },
    }
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

/// Options that this run does not use yet and that make it hold less, by what they usually save.
fn mends(options: &RunOptions) -> Vec<String> {
    let RunOptions { model, preparation, lora, training, ranks, .. } = options;
    let mut all = Vec::new();
    let mut add = |wanted: bool, text: String| all.extend(wanted.then_some(text));
    let rows = training.per_device_train_batch_size;
    let steps = training.gradient_accumulation_steps;
    add(
        !training.gradient_checkpointing,
        "--gradient_checkpointing true: activations of one block at a time".to_owned(),
    );
    add(
        rows > 1,
        format!(
            "--per_device_train_batch_size {} --gradient_accumulation_steps {}: the same step in smaller parts",
            rows.div_ceil(2),
            steps * rows / rows.div_ceil(2).max(1)
        ),
    );
    let adapts = lora.use_peft || model.adapter_name_or_path.is_some();
    add(!adapts, "--use_peft true: gradients and optimizer state of adapters only".to_owned());
    add(model.dtype == ModelDtype::Float32, "--dtype bfloat16: weights in half the memory".to_owned());
    add(
        ranks.nproc > 1 && ranks.zero_stage.0 < 3,
        "--zero_stage 3: weights, gradients and optimizer state shared out over the ranks".to_owned(),
    );
    let length = preparation.max_length;
    add(
        length.is_none_or(|length| length > 512),
        "--max_length: shorter rows (now the longest decide)".to_owned(),
    );
    add(ranks.nproc == 1, "more devices with --nproc and --zero_stage 3, or --tp_size".to_owned());
    all
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

    #[test]
    fn what_helps_is_what_is_not_used_yet() {
        let mut options = RunOptions::default();
        let all = mends(&options);
        assert!(all.iter().any(|mend| mend.starts_with("--use_peft")), "{all:?}");
        assert!(all.iter().any(|mend| mend.contains("--per_device_train_batch_size 4")), "{all:?}");
        options.lora.use_peft = true;
        options.training.per_device_train_batch_size = 1;
        options.model.dtype = ModelDtype::Bfloat16;
        let fewer = mends(&options);
        assert!(fewer.len() + 3 == all.len(), "{fewer:?}");
    }
}
