//! Devices: opening the CPU, an NVIDIA GPU or WebGPU, what each needs, and its memory use.
//!
//! The program asks [`open`] once; everything above works with Burn's [`Device`](burn::tensor::Device). Feature `flex`
//! (default) is the processor, `cuda` adds NVIDIA GPUs: kernels are CUDA C++ that NVRTC compiles when they are first
//! used, so neither a CUDA toolkit nor LLVM is needed to build, and a build with `cuda` runs on machines without a GPU.
//!
//! ```
//! use burnish_device::{DeviceKind, open};
//! let device = open(DeviceKind::Cpu, 0)?;
//! # let _ = device;
//! # Ok::<(), burnish_device::DeviceError>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod cores;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device_kind;
mod doctor;
mod error;
mod failure;
mod gpu;
mod heap;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "what only devices ask for is tested without one")
)]
mod kernel_cache;
mod memory;
mod open;
mod room;

pub use burnish_cpu_kernels::{amx_fault, forgo_amx};
pub use cores::Cores;
pub use device_kind::DeviceKind;
pub use doctor::{Finding, findings, multiplies_bf16};
pub use error::DeviceError;
pub use failure::{Failure, quiet};
pub use gpu::{Gpu, GpuFigures};
pub use heap::{give_back_freed_memory, keep_freed_memory, keep_large_freed_memory};
pub use memory::{Memory, memory, release};
pub use open::{best, count, files_too_large_are_errors, open, prepare, settle, stack_limit};
pub use room::room;
