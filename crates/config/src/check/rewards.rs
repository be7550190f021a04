//! What scores completions, and what compares two models by it.

use super::{AT_LEAST_1, Checks};
use crate::command::WinRateOptions;
use crate::fault::Fault;
use crate::groups::RewardFunctionOptions;

impl RewardFunctionOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        for path in &self.reward_model_name_or_path.0 {
            checks.folder("reward_model_name_or_path", path, "");
        }
        let timeout = self.reward_command_timeout;
        checks.range(
            "reward_command_timeout",
            timeout > 0.0 && timeout <= 1e9,
            "a number of seconds above 0",
        );
        let functions =
            self.reward_model_name_or_path.0.len() + self.reward_funcs.len() + self.reward_command.0.len();
        if self.reward_weights.as_ref().is_some_and(|weights| weights.len() != functions) {
            checks.conflict("reward_weights", format!("{functions} reward functions"), "give one for each");
        }
    }
}

impl WinRateOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        self.model.ranges(checks);
        let target = &self.target;
        checks.rows("dataset_name", &target.dataset_name);
        for (name, path) in [
            ("reference_model_name_or_path", &target.reference_model_name_or_path),
            ("reference_adapter_name_or_path", &target.reference_adapter_name_or_path),
        ] {
            if let Some(path) = path {
                checks.folder(name, path, "");
            }
        }
        let other = target.reference_model_name_or_path.is_some()
            || target.reference_adapter_name_or_path.is_some()
            || self.model.adapter_name_or_path.is_some();
        if !other {
            checks.faults.push(Fault::Required {
                name: "reference_model_name_or_path",
                doc: "the model to win over, or --adapter_name_or_path to compare an adapter with its base"
                    .into(),
            });
        }
        let rewards = &self.rewards;
        if rewards.reward_model_name_or_path.0.is_empty()
            && rewards.reward_funcs.is_empty()
            && rewards.reward_command.0.is_empty()
        {
            checks.faults.push(Fault::Required {
                name: "reward_model_name_or_path",
                doc: "what scores completions, or --reward_funcs or --reward_command".into(),
            });
        }
        rewards.conflicts(checks);
        checks.range("per_device_eval_batch_size", target.per_device_eval_batch_size >= 1, AT_LEAST_1);
        self.generation.conflicts(checks);
        self.ranks.ranges(checks);
    }
}
