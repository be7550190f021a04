//! Keys that change no result here, or have an equivalent: said once at the start.

use super::{Fate, Foreign};

const fn noted(names: &'static [&'static str], reason: &'static str) -> Foreign {
    Foreign { names, fate: Fate::Noted, reason }
}

/// Keys that the run goes on without.
#[rustfmt::skip]
pub const NOTED: &[Foreign] = &[
    noted(&[
        "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
        "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order",
        "dataset_num_proc", "dataset_batch_size", "dataset_streaming", "streaming", "preprocessing_num_workers",
        "overwrite_cache", "num_of_sequences", "dataset_format", "chars_per_token", "num_proc", "num_workers", "accelerator_config",
        "dispatch_batches",
    ], "rows are read and prepared by burnish's own threads"),
    noted(&[
        "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph",
        "ddp_backend", "local_rank", "log_on_each_node", "save_on_each_node", "env", "multi_gpu", "cpu", "gpu_ids",
        "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "main_process_host",
        "max_restarts", "module", "monitor_interval", "mpirun_hostfile", "no_python", "num_cpu_threads_per_process",
        "quiet", "rdzv_backend", "rdzv_conf", "rdzv_id", "rdzv_endpoint", "role", "same_network", "tee", "log_dir",
        "enable_cpu_affinity", "compute_environment", "debug", "standalone", "master_addr", "master_port", "node_rank",
        "deepspeed_exclusion_filter", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_multinode_launcher",
        "zero3_init_flag", "zero3_save_16bit_model", "use_deepspeed", "use_fsdp", "use_parallelism_config",
        "single_gpu", "aws_access_key_id", "aws_secret_access_key", "tpu_use_sudo", "vm", "ray_scope", "tpu_metrics_debug",
    ], "burnish starts its own ranks: nproc, mpirun or torchrun's variables say how many"),
    noted(&[
        "fsdp_activation_checkpointing_offload", "fsdp_auto_wrap_policy", "fsdp_backward_prefetch",
        "fsdp_cpu_ram_efficient_loading", "fsdp_forward_prefetch", "fsdp_min_num_params", "fsdp_offload_params",
        "fsdp_state_dict_type", "fsdp_sync_module_states", "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_use_orig_params", "fsdp_version", "deepspeed_moe_layer_cls_names",
        "offload_optimizer_device", "offload_optimizer_nvme_path", "offload_param_device", "offload_param_nvme_path",
        "gradient_clipping", "parallelism_config_cp_backend", "parallelism_config_cp_comm_strategy",
        "parallelism_config_sp_attn_implementation", "parallelism_config_sp_backend",
        "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
        "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size",
    ], "how weights are wrapped, moved and saved follows from zero_stage; nothing is offloaded, max_grad_norm clips"),
    noted(&[
        "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "attn_implementation",
        "use_cpu", "no_cuda", "use_mps_device", "use_ipex", "jit_mode_eval", "full_determinism", "deterministic",
        "torch_empty_cache_steps", "use_cache", "use_flash_attention_2", "use_flash_attention", "use_flash_attn",
        "flash_attention", "torchdynamo", "half_precision_backend", "fp16_opt_level", "fp16_backend", "dynamo_*",
        "bf16_full_eval", "fp16_full_eval", "cast_lm_head_to_fp32", "mixed_precision", "downcast_bf16", "fp8_*",
    ], "burnish has one set of kernels: dtype says what weights are held in, bf16 what products multiply"),
    noted(&[
        "use_liger_kernel", "use_liger", "liger_kernel_config", "use_liger_loss",
    ], "burnish's own kernels are always fused, with the same results"),
    noted(&[
        "device_map", "low_cpu_mem_usage", "max_memory", "offload_folder", "ref_model_init_kwargs", "config_name",
        "use_fast_tokenizer", "use_fast", "trust_remote_code", "tokenizer_revision", "model_code_revision",
    ], "a model is read from its folder straight to where it is held, without running code of that folder"),
    noted(&[
        "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_use_reentrant", "use_reentrant",
        "activation_offloading", "use_logits_to_keep", "use_num_logits_to_keep",
    ], "recompute has one form here, no logits are kept whole, and activations stay where they are: same gradients"),
    noted(&[
        "run_prefix", "project", "exp_name", "experiment_name", "workspace", "swanlab", "trackio_*", "wandb_*",
        "mlflow_*", "neptune_*", "swanlab_*", "comet_*",
        "log_level", "log_level_replica", "logging_nan_inf_filter", "skip_memory_metrics",
        "include_num_input_tokens_seen", "include_tokens_per_second", "benchmarks", "callbacks",
        "log_multimodal", "num_sample_generations", "tracker_project_name", "tracker_kwargs",
    ], "it configures other programs' logs; metrics.jsonl always has losses, num_tokens, speed and memory"),
    noted(&[
        "hub_organization", "push_to_hub_organization", "overwrite_hub_revision",
        "log_completions_hub_repo",
    ], "push_to_hub uploads to hub_model_id, with the owner in that name"),
    noted(&[
        "hub_token", "push_to_hub_token", "use_auth_token", "token", "hf_token", "cache_dir", "hf_cache_dir",
        "use_persistent_hf_cache", "base_model_revision",
    ], "the Hub's own variables say it: HF_TOKEN, HF_HOME"),
    noted(&[
        "do_train", "do_eval", "do_predict", "remove_unused_columns", "label_names", "length_column_name",
        "prediction_loss_only", "eval_accumulation_steps", "eval_do_concat_batches",
        "eval_use_gather_object", "batch_eval_metrics", "include_for_metrics", "include_inputs_for_metrics",
        "enable_jit_checkpoint", "restore_callback_states_from_checkpoint", "ignore_bias_buffers",
        "save_safetensors", "use_legacy_prediction_loop", "past_index",
        "label_pad_token_id", "padding_value", "padding_side", "force_use_ref_model", "reference_free_logging", "model_adapter_name",
        "ref_adapter_name", "generate_during_eval", "tp_enabled",
    ], "burnish does this in its one way: it evaluates as eval_strategy says, and pads nothing"),
    noted(&[
        "optim_target_modules",
    ], "only optimizers of projected gradients read it (GaLore, APOLLO), which are refused"),
    noted(&[
        "max_prompt_length", "max_target_length",
    ], "TRL no longer has it: prompts are not cut by themselves; max_length cuts prompt and completion together"),
    noted(&[
        "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype", "llm_int8_*", "quant_method",
    ], "weights in four or eight bits rest as bytes, are read in dtype, and multiply as bf16 says"),
    noted(&[
        "megatron_core", "qalora_group_size", "peft_version", "auto_mapping", "base_model_name_or_path",
        "inference_mode", "revision", "runtime_config", "megatron_lm_*",
    ], "it has an effect only with parts of PEFT and Accelerate that are refused where they are asked for"),
    noted(&[
        "use_vllm", "use_vllm_server", "vllm_config", "vllm_sync_*", "remote_gen_model_url", "remote_gen_model_port", "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_host", "vllm_server_port",
        "vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_max_model_len",
        "vllm_tensor_parallel_size", "vllm_device", "vllm_dtype", "vllm_enable_prefix_caching", "vllm_enforce_eager",
        "use_transformers_continuous_batching", "transformers_continuous_batching_config",
        "use_transformers_paged", "cache_implementation", "local_rollout_forward_batch_size",
    ], "completions are sampled by burnish's own engine, with continuous batching; rollout_url names a server instead"),
    noted(&[
        "code_eval_test_batch_size", "code_eval_scoring_mode", "code_eval_partial_grading", "parallel_code_exec_per_proc",
        "code_provider", "ioi_provider", "e2b_router_url", "morph_router_url",
    ], "it configures rewards for code, which are refused where reward_funcs asks for them"),
];

/// Options of other commands that change nothing where they stand.
#[rustfmt::skip]
pub const UNUSED: &[Foreign] = &[
    noted(&[
        "packing", "packing_strategy", "eval_packing", "padding_free", "pad_to_multiple_of",
    ], "batches never have padding here, so there is nothing to fill"),
    noted(&[
        "dataset_text_field",
    ], "rows of this trainer are told by their columns"),
    noted(&[
        "max_length", "truncation_mode", "max_completion_length",
    ], "TRL's trainer of this name has no such option either"),
    noted(&["label_smoothing_factor"], "TRL computes the loss of this trainer without it too"),
    noted(&[
        "max_new_tokens", "log_completions", "num_completions_to_print",
    ], "nothing is generated while this trains"),
];
