//! Sharding as Accelerate, DeepSpeed and PyTorch's FSDP write it, in terms of `zero_stage`, `nproc` and `tp_size`.

use std::path::Path;

use super::{Key, Translation};
use crate::fault::Fault;
use crate::foreign;
use crate::raw::Raw;
use crate::source::mapping;
use crate::value::OptionValue;

/// TRL's own files by name: the stage, and whether they start eight processes.
const NAMED: &[(&str, Option<i64>, bool)] = &[
    ("single_gpu", None, false),
    ("multi_gpu", None, true),
    ("zero1", Some(1), true),
    ("zero2", Some(2), true),
    ("zero3", Some(3), true),
    ("fsdp1", Some(3), true),
    ("fsdp2", Some(3), true),
];

/// The processes that TRL's files start.
const PROCESSES: i64 = 8;

/// Keys of an Accelerate file that need nothing here.
const ACCELERATE: &[&str] = &[
    "compute_environment",
    "debug",
    "downcast_bf16",
    "dynamo_config",
    "enable_cpu_affinity",
    "fp8_config",
    "gpu_ids",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "mixed_precision",
    "rdzv_backend",
    "same_network",
    "tpu_env",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_name",
    "tpu_zone",
    "commands",
    "command_file",
    "ipex_config",
    "mpirun_config",
    "deepspeed_hostfile",
];

/// Keys of a DeepSpeed file that change no result here.
const DEEPSPEED: &[&str] = &[
    "_comment",
    "activation_checkpointing",
    "aio",
    "checkpoint",
    "comms_logger",
    "communication_data_type",
    "csv_monitor",
    "data_types",
    "dump_state",
    "flops_profiler",
    "memory_breakdown",
    "monitor_config",
    "prescale_gradients",
    "steps_per_print",
    "tensorboard",
    "torch_autocast",
    "train_batch_size",
    "wall_clock_breakdown",
    "wandb",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
];

const OWN_OPTION: &str = "write it as an option: see docs/options.md";

impl Translation<'_> {
    /// TRL's name of an Accelerate file, or the file.
    pub(super) fn accelerate(&mut self, key: &Key, raw: &Raw) {
        let Raw::Text(name) = raw else { return self.expect(key, "a name or a path", raw) };
        let path = Path::new(name);
        let named = NAMED.iter().find(|(known, ..)| known == name || is_named(path, known));
        if let (Some((known, stage, several)), false) = (named, path.is_file()) {
            if known != name {
                self.note(key.name, &format!("{name} is not there, and read as TRL's own {known}"));
            }
            if let Some(stage) = stage {
                self.say_launched(key, "zero_stage", Raw::Int(*stage));
            }
            if *several {
                self.say_launched(key, "nproc", Raw::Int(PROCESSES));
            }
            return;
        }
        if let Some(entries) = self.entries_of(key, path) {
            self.accelerate_file(key, &entries);
        }
    }

    /// What the file that an option names says; a file that is not there is a fault of the option.
    fn entries_of(&mut self, key: &Key, path: &Path) -> Option<Vec<(String, Raw)>> {
        let fault = match mapping(path) {
            Ok(read) => return Some(read.entries),
            Err(Fault::Unreadable { path, .. } | Fault::Format { path }) if !path.exists() => {
                let hint = "; give its path, or say it here: zero_stage, nproc, tp_size";
                Fault::NotFound { origin: key.origin.clone(), name: key.name, what: "file", path, hint }
            }
            Err(fault) => fault,
        };
        self.faults.push(fault);
        None
    }

    fn accelerate_file(&mut self, key: &Key, entries: &[(String, Raw)]) {
        let find = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, raw)| raw);
        let distributed = find("distributed_type").map(Raw::plain).unwrap_or_default();
        if distributed == "FSDP" {
            self.say_launched(key, "zero_stage", Raw::Int(3));
        }
        for (name, raw) in entries {
            match (name.as_str(), raw) {
                ("distributed_type", raw) => {
                    let known = ["NO", "MULTI_GPU", "MULTI_CPU", "DEEPSPEED", "FSDP", "false"];
                    if !known.contains(&raw.plain().as_str()) {
                        self.refuse(
                            key,
                            format!("{name}: {raw}"),
                            "ranks are threads, MPI or TCP processes here",
                        );
                    }
                }
                ("num_processes", raw) => self.say_launched(key, "nproc", raw.clone()),
                ("num_machines", raw) => {
                    if !foreign::says(raw, "1") {
                        let mend = "mpirun's host list says how many machines there are";
                        self.refuse(key, format!("{name}: {raw}"), mend);
                    }
                }
                ("use_cpu", raw) => {
                    if !foreign::nothing(raw) {
                        self.say_launched(key, "device", Raw::Text("cpu".into()));
                    }
                }
                ("deepspeed_config", Raw::Map(inner)) => {
                    for (name, raw) in inner {
                        match name.as_str() {
                            "zero_stage" => self.say_launched(key, "zero_stage", raw.clone()),
                            "deepspeed_config_file" => self.deepspeed(key, raw),
                            _ => {}
                        }
                    }
                }
                ("fsdp_config", Raw::Map(_)) => {
                    if distributed == "FSDP" {
                        self.fsdp_config(key, raw);
                    }
                }
                ("parallelism_config", Raw::Map(_)) => self.parallelism(key, raw),
                (name, raw) if ACCELERATE.contains(&name) || foreign::nothing(raw) => {}
                (name, raw) => self.refuse(key, format!("{name}: {raw}"), OWN_OPTION),
            }
        }
    }

    /// DeepSpeed's file, or its contents.
    pub(super) fn deepspeed(&mut self, key: &Key, raw: &Raw) {
        match raw {
            Raw::Map(entries) => self.deepspeed_entries(key, entries),
            Raw::Text(path) => {
                if let Some(entries) = self.entries_of(key, Path::new(path)) {
                    self.deepspeed_entries(key, &entries);
                }
            }
            other => self.expect(key, "a path or a mapping", other),
        }
    }

    fn deepspeed_entries(&mut self, key: &Key, entries: &[(String, Raw)]) {
        for (name, raw) in entries {
            if is_auto(raw) {
                continue;
            }
            match (name.as_str(), raw) {
                ("zero_optimization", Raw::Map(zero)) => self.zero_optimization(key, zero),
                ("gradient_accumulation_steps", raw) => self.say_launched(key, name, raw.clone()),
                ("train_micro_batch_size_per_gpu", raw) => {
                    self.say_launched(key, "per_device_train_batch_size", raw.clone());
                }
                ("gradient_clipping", raw) => self.say_launched(key, "max_grad_norm", raw.clone()),
                ("bf16" | "fp16", Raw::Map(inner)) => {
                    if inner.iter().any(|(name, raw)| name == "enabled" && *raw == Raw::Bool(true)) {
                        self.say_launched(key, name, Raw::Bool(true));
                    }
                }
                ("optimizer", Raw::Map(inner)) => {
                    if self.deepspeed_optimizer(key, inner).is_none() {
                        self.refuse(
                            key,
                            format!("{name}: {raw}"),
                            "name it in optim, with learning_rate, weight_decay, adam_beta1 and so on",
                        );
                    }
                }
                ("scheduler", Raw::Map(inner)) => self.deepspeed_scheduler(key, raw, inner),
                (name, raw) if DEEPSPEED.contains(&name) || foreign::nothing(raw) => {}
                (name, raw) => self.refuse(key, format!("{name}: {raw}"), OWN_OPTION),
            }
        }
    }

    fn zero_optimization(&mut self, key: &Key, entries: &[(String, Raw)]) {
        for (name, raw) in entries {
            match name.as_str() {
                _ if is_auto(raw) => {}
                "stage" => self.say_launched(key, "zero_stage", raw.clone()),
                "reduce_bucket_size" | "stage3_param_persistence_threshold" => {
                    self.say_launched(key, name, raw.clone());
                }
                "zero_quantized_weights"
                | "zero_quantized_gradients"
                | "zero_quantized_nontrainable_weights"
                    if !foreign::nothing(raw) =>
                {
                    let mend = "collectives send what is there, in its own dtype: take it out";
                    self.refuse(key, format!("{name}: {raw}"), mend);
                }
                // Buckets, overlap and offload change no result.
                _ => {}
            }
        }
    }

    /// Transformers' `fsdp`: words.
    pub(super) fn fsdp(&mut self, key: &Key, raw: &Raw) {
        if matches!(raw, Raw::Bool(true)) || foreign::says(raw, "true") {
            return self.say_launched(key, "zero_stage", Raw::Int(3));
        }
        let Some(words) = Vec::<String>::read(raw) else { return self.expect(key, "FSDP's words", raw) };
        for word in words {
            match (stage(&Raw::Text(word.clone())), word.as_str()) {
                (Some(stage), _) => self.say_launched(key, "zero_stage", Raw::Int(stage)),
                (None, "auto_wrap" | "offload") => {}
                (None, _) => self.refuse(
                    key,
                    word.clone(),
                    "known are full_shard, shard_grad_op, no_shard, hybrid_shard, auto_wrap and offload",
                ),
            }
        }
    }

    /// Its entries, in a file or a mapping.
    pub(super) fn fsdp_config(&mut self, key: &Key, raw: &Raw) {
        match raw {
            Raw::Map(entries) => {
                for (name, raw) in entries {
                    self.fsdp_entry(key, name, raw);
                }
            }
            Raw::Text(path) => {
                if let Some(entries) = self.entries_of(key, Path::new(path)) {
                    self.fsdp_config(key, &Raw::Map(entries));
                }
            }
            other => self.expect(key, "a path or a mapping", other),
        }
    }

    /// One of them; others than these change no result.
    pub(super) fn fsdp_entry(&mut self, key: &Key, name: &str, raw: &Raw) {
        match name.strip_prefix("fsdp_").unwrap_or(name) {
            "sharding_strategy" | "reshard_after_forward" => match (stage(raw), bool::read(raw)) {
                (Some(stage), _) => self.say_launched(key, "zero_stage", Raw::Int(stage)),
                (None, Some(reshards)) => {
                    let stage = if reshards { 3 } else { 2 };
                    self.say_launched(key, "zero_stage", Raw::Int(stage));
                }
                (None, None) => self.expect(key, "true, false or a sharding strategy", raw),
            },
            "activation_checkpointing" if bool::read(raw) == Some(true) => {
                self.say_launched(key, "gradient_checkpointing", Raw::Bool(true));
            }
            "xla" if !foreign::nothing(raw) => {
                self.refuse(key, format!("{name}: {raw}"), "there are no TPUs here; take it out");
            }
            _ => {}
        }
    }

    /// Accelerate's axes of ranks: that of tensor parallelism is here.
    pub(super) fn parallelism(&mut self, key: &Key, raw: &Raw) {
        let Raw::Map(entries) = raw else { return self.expect(key, "a mapping", raw) };
        for (name, raw) in entries {
            match name.strip_prefix("parallelism_config_").unwrap_or(name) {
                "tp_size" => self.say_launched(key, "tp_size", raw.clone()),
                "cp_size" | "sp_size" if !foreign::says(raw, "1") => {
                    let mend = "sequences are not divided over ranks; use zero_stage or tp_size";
                    self.refuse(key, format!("{name}: {raw}"), mend);
                }
                _ => {}
            }
        }
    }
}

/// Whether a file has the name of one of TRL's, as its repository and recipes write it: `deepspeed_zero3.yaml`, `fsdp.yaml`.
fn is_named(path: &Path, known: &str) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let stem = stem.strip_prefix("deepspeed_").unwrap_or(stem);
    stem == known || matches!((stem, known), ("fsdp", "fsdp1") | ("ddp", "multi_gpu"))
}

/// DeepSpeed's word for what the trainer's options say.
pub(super) fn is_auto(raw: &Raw) -> bool {
    foreign::says(raw, "auto")
}

/// The ZeRO stage of a sharding strategy: hybrid ones divide over some of the ranks, with the same results.
fn stage(raw: &Raw) -> Option<i64> {
    let Raw::Text(word) = raw else {
        return match i64::read(raw).filter(|_| matches!(raw, Raw::Int(_)))? {
            1 | 4 => Some(3),
            2 | 5 => Some(2),
            3 => Some(0),
            _ => None,
        };
    };
    match word.to_ascii_lowercase().as_str() {
        "full_shard" | "hybrid_shard" => Some(3),
        "shard_grad_op" | "hybrid_shard_zero2" => Some(2),
        "no_shard" => Some(0),
        _ => None,
    }
}
