//! Out of memory in a run: what holds memory by its plan, and which options would help.

use burnish_config::RunOptions;
use burnish_config::values::ModelDtype;
use burnish_core::Dtype;
use burnish_device::{Failure, memory};
use burnish_zero::Stage;

use crate::TrainError;
use crate::plan::RunPlan;
use crate::plan::step_passes::StepPasses;
use crate::setup::Setup;

/// The failure of a run.
pub(crate) fn explained(failure: Failure, setup: &Setup, step: &StepPasses) -> TrainError {
    match failure {
        Failure::OutOfMemory { bytes } => {
            let options = &setup.options;
            let table = match RunPlan::of_model(setup, step) {
                Ok(plan) => format!("what the plan of this run counts:\n{}", plan.held()),
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
        training.gradient_checkpointing && training.keep_attention,
        "--keep_attention false: attention is computed again".to_owned(),
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
    add(
        model.dtype == ModelDtype(Some(Dtype::F32)),
        "--dtype bfloat16: weights in half the memory".to_owned(),
    );
    add(
        ranks.nproc > 1 && ranks.zero_stage < Stage::Three,
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
    fn what_helps_is_what_is_not_used_yet() {
        let mut options = RunOptions::default();
        let all = mends(&options);
        assert!(all.iter().any(|mend| mend.starts_with("--use_peft")), "{all:?}");
        assert!(all.iter().any(|mend| mend.contains("--per_device_train_batch_size 4")), "{all:?}");
        options.lora.use_peft = true;
        options.training.per_device_train_batch_size = 1;
        options.model.dtype = ModelDtype(Some(Dtype::Bf16));
        let fewer = mends(&options);
        assert!(fewer.len() + 3 == all.len(), "{fewer:?}");
    }
}
