//! Models against recordings made with Transformers and PEFT.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod adapter_sums;
mod adapters;
mod bf16;
mod collectives;
mod dora;
mod experts;
mod families;
mod follows_transformers;
mod fp8;
mod frozen_below;
mod generation;
mod gguf_files;
mod int8_generation;
mod invocation;
mod loftq;
mod part;
mod prompt_encoders;
mod qk_clip;
mod quantized;
mod quantized_experts;
mod reading;
mod recordings;
mod refused;
mod regressions;
mod regressions_tp;
mod replication;
mod round_trips;
mod same_files;
mod scores;
mod several_parts;
mod shared_prompts;
mod split_gradients;
mod tensor_parallel;
mod tensor_parallel_golden;
mod tying;
