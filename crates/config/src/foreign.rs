//! Options of TRL, Transformers and Accelerate that burnish does not have.
//!
//! A config written for TRL may name them. A value that changes no result is accepted; a value that asks for
//! something burnish does not do is refused with the reason.

use crate::raw::Raw;

/// Which values of a foreign option are accepted.
#[derive(Clone, Copy, Debug)]
pub enum Accepts {
    /// Any: the option changes no result.
    Any,
    /// Only "nothing": null, false, 0, empty, `none` or `no`.
    Nothing,
    /// Only this word, number or boolean, or null.
    Only(&'static str),
}

/// Options that burnish knows but does not have, for one reason.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// The names.
    pub names: &'static [&'static str],
    /// The values that are accepted.
    pub accepts: Accepts,
    /// Why other values are refused, or why any value is harmless.
    pub reason: &'static str,
}

impl Foreign {
    /// Whether this value is harmless.
    #[must_use]
    pub fn takes(&self, raw: &Raw) -> bool {
        match self.accepts {
            Accepts::Any => true,
            Accepts::Nothing => nothing(raw),
            Accepts::Only(word) => raw.is_nothing() || says(raw, word),
        }
    }
}

fn nothing(raw: &Raw) -> bool {
    raw.is_nothing()
        || match raw {
            Raw::Bool(value) => !value,
            Raw::Int(value) => *value == 0,
            Raw::Float(value) => *value == 0.0,
            Raw::Text(text) => {
                matches!(text.to_ascii_lowercase().as_str(), "false" | "no" | "0" | "0.0" | "{}" | "[]")
            }
            Raw::List(items) => items.iter().all(nothing),
            Raw::Null | Raw::Map(_) => false,
        }
}

fn says(raw: &Raw, word: &str) -> bool {
    match raw {
        Raw::Text(text) => text.eq_ignore_ascii_case(word),
        Raw::Float(value) => word.parse() == Ok(*value),
        Raw::Bool(_) | Raw::Int(_) => raw.to_string() == word,
        Raw::List(items) => matches!(items.as_slice(), [one] if says(one, word)),
        Raw::Null | Raw::Map(_) => false,
    }
}

/// Finds a foreign option by name.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static Foreign)> {
    FOREIGN.iter().find_map(|foreign| Some((*foreign.names.iter().find(|known| **known == name)?, foreign)))
}

/// Older or newer names of options that burnish has: (written, meant).
pub const ALIASES: &[(&str, &str)] = &[
    ("activation_checkpointing", "gradient_checkpointing"),
    ("adapter_path", "adapter_name_or_path"),
    ("eval_data", "eval_dataset_name"),
    ("evaluation_strategy", "eval_strategy"),
    ("max_seq_length", "max_length"),
    ("model", "model_name_or_path"),
    ("num_processes", "nproc"),
    ("torch_dtype", "dtype"),
    ("vllm_server_base_url", "rollout_url"),
    ("vllm_server_timeout", "rollout_timeout"),
];

/// Every foreign option.
#[rustfmt::skip]
pub const FOREIGN: &[Foreign] = &[
    // No influence on any result.
    Foreign { accepts: Accepts::Any, names: &[
        "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
        "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order",
        "dataset_num_proc", "dataset_streaming", "streaming",
    ], reason: "rows are streamed and prepared by burnish's own threads" },
    Foreign { accepts: Accepts::Any, names: &[
        "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph",
        "ddp_backend", "local_rank", "log_on_each_node", "save_on_each_node", "env",
    ], reason: "it configures PyTorch's launcher" },
    Foreign { accepts: Accepts::Any, names: &[
        "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "attn_implementation",
        "use_cpu", "no_cuda", "full_determinism", "torch_empty_cache_steps", "use_cache",
        "liger_kernel_config",
    ], reason: "burnish has one set of kernels, and runs repeat bit for bit" },
    Foreign { accepts: Accepts::Any, names: &[
        "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs",
    ], reason: "recompute has one form here, with the same gradients" },
    Foreign { accepts: Accepts::Any, names: &[
        "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id",
        "log_level", "log_level_replica", "logging_nan_inf_filter", "skip_memory_metrics", "debug",
        "include_num_input_tokens_seen", "include_tokens_per_second",
    ], reason: "it configures other loggers; burnish always logs num_tokens, speed and memory, and stops at a loss that is not a number" },
    Foreign { accepts: Accepts::Any, names: &[
        "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision",
    ], reason: "it has an effect only with push_to_hub" },
    Foreign { accepts: Accepts::Any, names: &[
        "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage",
    ], reason: "it has an effect only with load_in_4bit" },
    Foreign { accepts: Accepts::Any, names: &[
        "do_train", "do_eval", "do_predict", "remove_unused_columns", "label_names", "length_column_name",
        "prediction_loss_only", "eval_accumulation_steps", "eval_do_concat_batches",
        "eval_use_gather_object", "batch_eval_metrics", "include_for_metrics", "enable_jit_checkpoint",
        "restore_callback_states_from_checkpoint", "ignore_bias_buffers", "trust_remote_code", "ray_scope",
        "save_safetensors",
    ], reason: "it has no effect on this command" },
    Foreign { accepts: Accepts::Any, names: &[
        "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_host", "vllm_server_port",
        "vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size",
        "use_transformers_continuous_batching", "transformers_continuous_batching_config",
        "use_transformers_paged", "cache_implementation", "cast_lm_head_to_fp32", "log_multimodal",
    ], reason: "completions are sampled by burnish's own engine, always with continuous batching, or by the server that rollout_url names" },
    // Refused unless they ask for nothing.
    Foreign { accepts: Accepts::Nothing, names: &[
        "use_vllm",
    ], reason: "name the server in rollout_url; without, burnish samples itself" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "vllm_structured_outputs_regex", "generation_kwargs", "vllm_importance_sampling_cap",
    ], reason: "write the option itself: temperature, top_p, top_k, min_p, repetition_penalty, vllm_importance_sampling_clip_max" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "chat_template_kwargs",
    ], reason: "give rows a chat_template_kwargs column" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "max_tool_calling_iterations", "tools", "environment_factory", "rollout_func",
    ], reason: "tools and environments are not supported; a reward_command can run what a completion asks for" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "log_completions_hub_repo",
    ], reason: "burnish does not upload; log_completions writes completions.jsonl to output_dir" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "deepspeed", "fsdp", "fsdp_config", "parallelism_config", "accelerator_config",
    ], reason: "sharding is an option here: set zero_stage (2 as FSDP's SHARD_GRAD_OP, 3 as FULL_SHARD) and nproc" },
    Foreign { accepts: Accepts::Only("single_gpu"), names: &[
        "accelerate_config",
    ], reason: "burnish is not launched by Accelerate; take it out" },
    Foreign { accepts: Accepts::Only("1"), names: &[
        "num_machines",
    ], reason: "mpirun's host list says how many machines there are; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "push_to_hub",
    ], reason: "burnish does not upload; push output_dir with `hf upload` when the run is done" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "load_in_8bit", "load_in_4bit", "quantization_config",
    ], reason: "quantised bases are not supported; train over a bfloat16 base" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "fp16_full_eval", "bf16_full_eval",
    ], reason: "arithmetic in half precision is not supported; use bf16, or leave it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "use_liger_kernel",
    ], reason: "burnish's own kernels are always fused; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "activation_offloading",
    ], reason: "there is no second memory to move activations to; gradient_checkpointing saves the memory" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "neftune_noise_alpha",
    ], reason: "noisy embeddings are not supported; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "lora_target_parameters",
    ], reason: "adapters on bare parameters are not supported; name modules in lora_target_modules" },
    Foreign { accepts: Accepts::Only("CAUSAL_LM"), names: &[
        "lora_task_type",
    ], reason: "only causal language models are trained; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "lora_bias",
    ], reason: "a bias inside the adapter is not supported; for PEFT's `bias` set bias: none, all or lora_only" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "optim_args", "optim_target_modules", "lr_scheduler_kwargs",
    ], reason: "optimizers and schedules take their options from adam_beta1, adam_beta2, adam_epsilon and warmup_steps" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "label_smoothing_factor",
    ], reason: "label smoothing is not supported; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "auto_find_batch_size",
    ], reason: "the batch size is never changed behind your back; set per_device_train_batch_size" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "group_by_length",
    ], reason: "grouping by length is not supported; packing wastes less padding" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "eval_delay", "eval_on_start",
    ], reason: "evaluation happens as eval_strategy says; use `burnish eval` for an evaluation before training" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "ignore_data_skip",
    ], reason: "a resumed run goes on with the next row; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "router_aux_loss_coef",
    ], reason: "mixtures of experts are not supported in this version; take it out" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "model_init_kwargs", "dataset_kwargs",
    ], reason: "write the option itself: dtype, max_length and so on are options of their own" },
    Foreign { accepts: Accepts::Only("main"), names: &[
        "model_revision",
    ], reason: "model_name_or_path is a folder, which has one revision; download the one you want" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "dataset_config", "datasets",
    ], reason: "dataset_name is a file, a folder or a glob; name the files there, and those to evaluate on in eval_dataset_name" },
    // GenerationConfig.
    Foreign { accepts: Accepts::Only("1"), names: &[
        "num_beams", "num_return_sequences", "num_beam_groups",
    ], reason: "beam search and several sequences per prompt are not supported; repeat the prompt instead" },
    Foreign { accepts: Accepts::Nothing, names: &[
        "stop_strings", "penalty_alpha", "no_repeat_ngram_size", "typical_p", "epsilon_cutoff",
        "eta_cutoff", "guidance_scale", "bad_words_ids", "suppress_tokens", "constraints",
        "force_words_ids",
    ], reason: "this way of choosing tokens is not supported; use temperature, top_k, top_p, min_p or repetition_penalty" },
    Foreign { accepts: Accepts::Only("1.0"), names: &[
        "length_penalty", "encoder_repetition_penalty",
    ], reason: "it has an effect only with beam search or an encoder; take it out" },
];
