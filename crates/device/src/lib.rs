//! Which device a run computes on, what it needs, and what its memory holds.
//!
//! The program asks [`open`] once; everything above works with Burn's [`Device`](burn::tensor::Device). Feature `flex`
//! (default) is the processor, `cuda` adds NVIDIA GPUs: kernels are CUDA C++ that NVRTC compiles when they are first
//! used, so neither a CUDA toolkit nor LLVM is needed to build, and a build with `cuda` runs on machines without a GPU.
//!
//! ```
//! use burnish_device::{Kind, open};
//! let device = open(Kind::Cpu, 0)?;
//! # let _ = device;
//! # Ok::<(), burnish_device::DeviceError>(())
//! ```

#[cfg(feature = "cuda")]
pub mod cuda;
mod doctor;
mod error;
mod failure;
mod kind;
mod memory;
mod open;

pub use doctor::{Finding, findings};
pub use error::DeviceError;
pub use failure::{Failure, quiet};
pub use kind::Kind;
pub use memory::{Memory, memory, release};
pub use open::{best, count, open, prepare};
