//! The tape: segments and custom operations. The operations: kernels against reference bodies, reference bodies against
//! finite differences.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init, reason = "tests")]

mod apply;
mod attention;
mod case;
mod channel_linear_attention;
mod dora;
mod embedding;
mod errors;
mod experts;
mod gpu;
mod head;
mod linear_attention;
mod linears;
#[cfg(target_os = "linux")]
mod memory;
mod muon;
mod norm;
mod orthogonal;
mod packed;
mod segment;
mod selective_scan;
mod small;
mod split_head;
mod update;
