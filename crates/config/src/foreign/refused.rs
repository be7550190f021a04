//! Keys whose run would be another one without them: refused by name, with the mend.

use super::{Fate, Foreign};

const fn refused(names: &'static [&'static str], reason: &'static str) -> Foreign {
    refused_but(&[], names, reason)
}

/// Refused, unless it says one of `words`.
const fn refused_but(
    words: &'static [&'static str],
    names: &'static [&'static str],
    reason: &'static str,
) -> Foreign {
    Foreign { names, fate: Fate::RefusedBut(words), reason }
}

/// Keys that the run cannot do without.
#[rustfmt::skip]
pub const REFUSED: &[Foreign] = &[
    refused(&[
        "vllm_structured_outputs_regex", "vllm_guided_decoding_regex",
    ], "completions follow no grammar here; reward the format instead, with think_format_reward or a reward_command"),
    refused(&[
        "max_tool_calling_iterations", "tools", "environment_factory", "rollout_func",
    ], "tools and environments are not supported; a reward_command can run what a completion asks for"),
    refused_but(&["1"], &[
        "num_machines", "nnodes",
    ], "mpirun's host list says how many machines there are; take it out"),
    refused_but(&["1"], &[
        "parallelism_config_cp_size", "parallelism_config_sp_size", "cp_size", "sp_size",
    ], "sequences are not divided over ranks; use zero_stage or tp_size"),
    refused(&[
        "use_megatron_lm",
    ], "there is no Megatron here; use zero_stage and tp_size"),
    refused(&[
        "tpu", "tpu_cluster", "no_tpu_cluster", "tpu_num_cores",
    ], "there are no TPUs here; take it out"),
    refused(&[
        "split_batches",
    ], "per_device_train_batch_size is that of each rank; take it out, or set global_batch_size"),
    refused_but(&["CAUSAL_LM"], &[
        "lora_task_type", "task_type",
    ], "causal language models are trained, and by `burnish reward` models that score texts; take it out"),
    refused(&[
        "arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "use_qalora", "velora_config",
        "megatron_config",
    ], "this variant of LoRA is not supported; LoRA, rsLoRA, DoRA, aLoRA, PiSSA, OLoRA and LoftQ are"),
    refused(&[
        "fan_in_fan_out",
    ], "layers store their weights as [out, in]; take it out"),
    refused(&[
        "output_router_logits",
    ], "routers' auxiliary loss is on or off by router_aux_loss_coef; take it out"),
    refused(&[
        "sanity_check", "max_samples",
    ], "all rows train; name a part of a split instead, as in dataset_train_split: train[:1000]"),
    refused_but(&["1"], &[
        "num_labels",
    ], "a model that scores texts has one label; take it out"),
    refused(&[
        "is_encoder_decoder",
    ], "only decoders are trained; take it out"),
    refused(&[
        "reference_free", "reward_temperature",
    ], "TRL no longer has this loss; take it out"),
    refused(&[
        "response_template", "instruction_template", "train_on_responses_only",
    ], "what trains is told by columns and templates: set completion_only_loss or assistant_only_loss"),
    refused(&[
        "whiten_rewards", "token_level_kl", "cliprange_value", "vf_coef",
        "lam", "stop_token_id", "value_model_path",
    ], "rewards are not changed here and there is no value model; write what a completion is worth as a reward function"),
    refused_but(&["eos"], &[
        "stop_token",
    ], "completions end with the end-of-sequence tokens of the model's folder; take it out"),
    refused(&[
        "use_unsloth", "vision_model", "use_plw", "custom_optim",
    ], "a program of its own reads it, which trains in another way; take it out"),
    // GenerationConfig.
    refused_but(&["1"], &[
        "num_beams", "num_return_sequences", "num_beam_groups",
    ], "beam search and several sequences per prompt are not supported; repeat the prompt instead"),
    refused(&[
        "stop_strings", "penalty_alpha", "no_repeat_ngram_size", "typical_p", "epsilon_cutoff",
        "eta_cutoff", "guidance_scale", "bad_words_ids", "suppress_tokens", "constraints",
        "force_words_ids", "exponential_decay_length_penalty",
    ], "this way of choosing tokens is not supported; use temperature, top_k, top_p, min_p or repetition_penalty"),
    refused_but(&["1.0", "1"], &[
        "length_penalty", "encoder_repetition_penalty",
    ], "it has an effect only with beam search or an encoder; take it out"),
];
