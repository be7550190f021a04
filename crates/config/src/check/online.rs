//! Trainers that sample completions.

use super::{AT_LEAST_1, Checks, divides_by_rows, trains};
use crate::command::{GrpoOptions, RlooOptions};
use crate::groups::{
    GrpoLossOptions, RankOptions, ReferenceOptions, RewardFunctionOptions, RlooLossOptions, RolloutOptions,
};
use crate::trainer::TrainerOptions;

const AT_LEAST_0: &str = "a number that is at least 0";
const ABOVE_0: &str = "a number above 0";

impl RolloutOptions {
    fn conflicts(&self, ranks: &RankOptions, checks: &mut Checks<'_>) {
        let group = "at least 2: an advantage compares completions of one prompt";
        checks.range("num_generations", self.num_generations >= 2, group);
        checks.range("num_generations_eval", self.num_generations_eval.is_none_or(|n| n >= 2), group);
        checks.range("max_completion_length", self.max_completion_length >= 1, AT_LEAST_1);
        checks.range("num_iterations", self.num_iterations >= 1, AT_LEAST_1);
        checks.range("steps_per_generation", self.steps_per_generation != Some(0), AT_LEAST_1);
        checks.range("generation_batch_size", self.generation_batch_size != Some(0), AT_LEAST_1);
        checks.range("generation_max_sequences", self.generation_max_sequences >= 1, AT_LEAST_1);
        checks.range("num_completions_to_print", self.num_completions_to_print != Some(0), AT_LEAST_1);
        checks.range("rollout_timeout", self.rollout_timeout > 0.0, ABOVE_0);
        if let Some(url) = &self.rollout_url
            && !url.starts_with("http://")
        {
            let url = "null or an address that begins with http:// (a proxy on this machine can speak https)";
            checks.range("rollout_url", false, url);
        }
        if self.generation_batch_size.is_some() && self.steps_per_generation.is_some() {
            let mend = "keep one of the two: each says how much is sampled at once";
            checks.conflict("generation_batch_size", "steps_per_generation", mend);
        }
        let temperature = self.temperature > 0.0 && self.temperature.is_finite();
        checks.range("temperature", temperature, ABOVE_0);
        checks.range("top_p", self.top_p > 0.0 && self.top_p <= 1.0, "a number above 0 and at most 1");
        checks.range(
            "min_p",
            self.min_p.is_none_or(|p| (0.0..=1.0).contains(&p)),
            "null or a number from 0 to 1",
        );
        let penalty = self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite();
        checks.range("repetition_penalty", penalty, ABOVE_0);
        if !self.ds3_gather_for_generation && ranks.zero_stage.0 == 3 {
            let mend = "leave it on: sampling from a part of the weights would send all of them for every token; use \
                        tp_size where the whole model does not fit";
            checks.conflict("ds3_gather_for_generation", "zero_stage: 3", mend);
        }
    }
}

impl GrpoOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        samples(self, &self.rollouts, &self.rewards, checks);
        self.loss.conflicts(checks);
        compares(self, &self.reference, self.loss.beta, checks);
    }
}

impl RlooOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        samples(self, &self.rollouts, &self.rewards, checks);
        self.loss.conflicts(checks);
        compares(self, &self.reference, self.loss.beta, checks);
    }
}

fn samples(
    options: &impl TrainerOptions,
    rollouts: &RolloutOptions,
    rewards: &RewardFunctionOptions,
    checks: &mut Checks<'_>,
) {
    let run = options.run_options();
    trains(&run, checks);
    divides_by_rows(&run.training, checks);
    rollouts.conflicts(&run.ranks, checks);
    rewards.conflicts(checks);
}

fn compares(options: &impl TrainerOptions, reference: &ReferenceOptions, beta: f64, checks: &mut Checks<'_>) {
    let run = options.run_options();
    reference.conflicts(run.lora.use_peft || run.model.adapter_name_or_path.is_some(), checks);
    if reference.ref_model_name_or_path.is_some() && beta == 0.0 {
        checks.conflict("ref_model_name_or_path", "beta: 0", "set beta, or take the reference out");
    }
    if reference.sync_ref_model && beta == 0.0 {
        checks.conflict(
            "sync_ref_model",
            "beta: 0",
            "there is no reference without beta: set it, or take this out",
        );
    }
}

impl GrpoLossOptions {
    fn conflicts(&self, checks: &mut Checks<'_>) {
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        checks.range("beta", not_negative(self.beta), AT_LEAST_0);
        checks.range("epsilon", not_negative(self.epsilon), AT_LEAST_0);
        checks.range("epsilon_high", self.epsilon_high.is_none_or(not_negative), AT_LEAST_0);
        checks.range("delta", self.delta.is_none_or(|d| d > 0.0), "null or a number above 0");
        let quantile = (0.0..=1.0).contains(&self.top_entropy_quantile);
        checks.range("top_entropy_quantile", quantile, "a number from 0 to 1");
        for (name, temperature) in [
            ("sapo_temperature_pos", self.sapo_temperature_pos),
            ("sapo_temperature_neg", self.sapo_temperature_neg),
        ] {
            checks.range(name, temperature > 0.0, ABOVE_0);
        }
        checks.range("entropy_coef", self.entropy_coef.is_finite(), "a number");
        if self.use_adaptive_entropy && self.entropy_coef_min > self.entropy_coef_max {
            let with = format!("entropy_coef_max: {}", self.entropy_coef_max);
            checks.conflict("entropy_coef_min", with, "swap them");
        }
        checks.range("entropy_coef_delta", not_negative(self.entropy_coef_delta), AT_LEAST_0);
        if let (Some(least), Some(greatest)) =
            (self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max)
            && least >= greatest
        {
            let with = format!("vllm_importance_sampling_clip_max: {greatest}");
            checks.conflict("vllm_importance_sampling_clip_min", with, "swap them or leave one out");
        }
    }
}

impl RlooLossOptions {
    fn conflicts(&self, checks: &mut Checks<'_>) {
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        checks.range("beta", not_negative(self.beta), AT_LEAST_0);
        checks.range("epsilon", not_negative(self.epsilon), AT_LEAST_0);
        checks.range("epsilon_high", self.epsilon_high.is_none_or(not_negative), AT_LEAST_0);
        let ordered = |range: &Vec<f64>| matches!(range[..], [low, high] if low <= high);
        let two = "null or two numbers, the lesser first";
        checks.range("reward_clip_range", self.reward_clip_range.as_ref().is_none_or(ordered), two);
    }
}
