//! GRPO and RLOO have TRL's names and defaults, and refuse what contradicts itself.

use burnish_config::{Command, GrpoOptions, RlooOptions};

use crate::preferences::same_defaults;

/// What TRL 1.16's `GRPOConfig` and `RLOOConfig` both have of their own, or with another default.
const BOTH: &str = r#"{"learning_rate": 1e-6, "model_init_kwargs": null, "trust_remote_code": false,
    "router_aux_loss_coef": null, "disable_dropout": false, "remove_unused_columns": false,
    "num_generations_eval": null, "max_completion_length": 512, "ds3_gather_for_generation": true,
    "shuffle_dataset": true, "pad_to_multiple_of": "auto", "generation_batch_size": null,
    "steps_per_generation": null, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": null,
    "generation_kwargs": null, "chat_template_kwargs": null, "repetition_penalty": 1.0,
    "cache_implementation": null, "use_vllm": false, "vllm_mode": "colocate", "vllm_model_impl": "vllm",
    "vllm_enable_sleep_mode": false, "vllm_structured_outputs_regex": null, "vllm_server_host": "0.0.0.0",
    "vllm_server_port": 8000, "rollout_url": null, "rollout_timeout": 240.0,
    "vllm_group_port": 51216, "vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": null,
    "vllm_tensor_parallel_size": 1, "num_iterations": 1, "epsilon": 0.2, "epsilon_high": null,
    "reward_weights": null, "mask_truncated_completions": false, "sync_ref_model": false,
    "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512, "log_completions": false,
    "log_multimodal": true, "num_completions_to_print": null, "log_unique_prompts": false,
    "use_transformers_continuous_batching": false, "transformers_continuous_batching_config": null,
    "use_transformers_paged": false}"#;

const GRPO: &str = r#"{"num_generations": 8, "cast_lm_head_to_fp32": false, "beta": 0.0, "delta": null,
    "sapo_temperature_neg": 1.05, "sapo_temperature_pos": 1.0, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "importance_sampling_level": "token",
    "multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group", "loss_type": "dapo",
    "top_entropy_quantile": 1.0, "entropy_coef": 0.0, "use_adaptive_entropy": false, "entropy_coef_min": 0.0,
    "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005, "entropy_target": 0.2,
    "max_tool_calling_iterations": null, "vllm_importance_sampling_correction": true,
    "vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": null, "off_policy_mask_threshold": null,
    "use_bias_correction_kl": true, "log_completions_hub_repo": null, "vllm_importance_sampling_cap": null}"#;

const RLOO: &str =
    r#"{"num_generations": 2, "beta": 0.05, "normalize_advantages": false, "reward_clip_range": null}"#;

#[test]
fn defaults_are_those_of_trl() {
    [BOTH, GRPO].into_iter().for_each(same_defaults::<GrpoOptions>);
    [BOTH, RLOO].into_iter().for_each(same_defaults::<RlooOptions>);
}

#[test]
fn contradictions() {
    fn check<C: Command>(words: &[&str], part: &str) {
        let all = ["--model_name_or_path=.", "--dataset_name=."].iter().chain(words);
        let Err(said) = C::parse(all.copied()) else { panic!("{words:?} is accepted") };
        let said = said.to_string();
        assert!(said.contains(part), "missing `{part}` in {said}");
    }
    check::<GrpoOptions>(&["--num_generations=1"], "at least 2");
    check::<GrpoOptions>(&["--num_generations_eval=1"], "at least 2");
    check::<GrpoOptions>(&["--temperature=0"], "above 0");
    check::<GrpoOptions>(&["--top_p=0"], "above 0 and at most 1");
    check::<GrpoOptions>(&["--min_p=2"], "from 0 to 1");
    check::<GrpoOptions>(&["--loss_type=ppo"], "grpo, bnpo, dr_grpo");
    check::<GrpoOptions>(&["--beta=-1"], "at least 0");
    check::<GrpoOptions>(&["--delta=0"], "above 0");
    check::<GrpoOptions>(&["--sync_ref_model"], "no reference without beta");
    check::<GrpoOptions>(&["--use_adaptive_entropy", "--entropy_coef_min=2"], "swap them");
    check::<GrpoOptions>(&["--vllm_importance_sampling_clip_min=4"], "swap them");
    check::<GrpoOptions>(&["--prompt=3"], "is an option of `burnish");
    check::<GrpoOptions>(&["--generation_kwargs", r#"{"num_beams": 2}"#], "repeat the prompt instead");
    check::<GrpoOptions>(
        &["--auto_find_batch_size"],
        "lower per_device_train_batch_size where memory is full",
    );
    check::<RlooOptions>(
        &["--auto_find_batch_size"],
        "lower per_device_train_batch_size where memory is full",
    );
    check::<RlooOptions>(&["--reward_clip_range=1,-1"], "the lesser first");
    check::<RlooOptions>(&["--loss_type=grpo"], "`loss_type` is an option of");
}
