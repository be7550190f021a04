//! Kinds of devices.

use std::fmt;

/// What a run may compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The processor, by burnish's own kernels.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// Any device of WebGPU (Vulkan, Metal, a software driver): to check the arithmetic of the CUDA path without an NVIDIA GPU.
    Wgpu,
}

impl Kind {
    /// Whether this build has it.
    #[must_use]
    pub const fn built(self) -> bool {
        match self {
            Self::Cpu => cfg!(feature = "flex"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Wgpu => cfg!(feature = "wgpu"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        })
    }
}
