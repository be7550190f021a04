//! An interpreter of PTX: kernels as NVRTC compiles them run on the processor, block after block.
//!
//! A warp executes an instruction for all lanes that stand at it; of lanes that stand at several, the ones furthest
//! behind go first, so that they meet again. What `compute-sanitizer` would report ends a launch with a [`Fault`]: uses
//! of memory that is not there, unaligned ones, and two threads of a block that use the same byte of shared memory
//! without a barrier between them.
//!
//! Instructions whose result the ISA leaves to the hardware within a bound (`ex2.approx`, `tanh.approx`) are rounded from
//! f64. Fragments of `wmma` have an order of their own, which no program may depend on; those of `mma` have the ISA's.

mod arrival;
mod atomic;
mod bits;
mod block;
mod common_case;
mod convert;
mod fault;
mod float;
mod instruction;
mod launch;
mod matrix;
mod memory;
mod module;
mod order;
mod parse;
mod scalar;
mod shared;
mod space;
mod tensor_map;
mod warp;
mod warpgroup;

pub use fault::{Fault, ParseError, Wrong};
pub use launch::{Launch, Statistics};
pub use memory::{Allocation, GlobalMemory};
pub use module::{Global, Kernel, Module};
pub use space::Space;
pub use tensor_map::{TENSOR_MAP_BYTES, TensorMap};
