//! Kernels on a device against f64 on the host.
#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init, reason = "tests")]

mod adamw;
mod cast;
mod conv_heads;
mod draw;
mod dropout;
mod expert_gate;
mod expert_rows;
mod few_places;
mod flash;
mod gate;
mod gated_norm;
mod gemm;
mod head_weights;
mod heads;
mod linear_attention;
mod logits;
mod norm;
mod on_device;
mod packed;
mod router;
mod rows;
mod selective_scan;
mod sums;
