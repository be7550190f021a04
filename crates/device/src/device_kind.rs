//! Kinds of devices.

use burnish_core::{UnknownWord, choices};

choices! {
    /// What a run may compute on.
    pub enum DeviceKind: "device", UnknownWord {
        /// The processor, by burnish's own kernels.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
        /// Any device of WebGPU (Vulkan, Metal, a software driver): to check the arithmetic of the CUDA path without an NVIDIA GPU.
        Wgpu = "wgpu",
    }
}

impl DeviceKind {
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
