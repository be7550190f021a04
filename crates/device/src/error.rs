//! Why a device cannot be used.

use burnish_core::{Coded, ErrorCode};
use thiserror::Error;

use crate::DeviceKind;

/// What a device lacks, or ran out of.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The build leaves this kind out.
    #[error("device {kind}: this build has none; build with `--features {kind}`, or use `--device cpu`")]
    NotBuilt {
        /// The kind.
        kind: DeviceKind,
    },
    /// The driver's library cannot be loaded.
    #[error(
        "device cuda: the NVIDIA driver's library libcuda.so.1 cannot be loaded; install NVIDIA's driver (in a container: start it with the GPU), or use `--device cpu`"
    )]
    NoDriver,
    /// The driver is older than the interface that this build speaks.
    #[error(
        "device cuda: the NVIDIA driver serves CUDA {}, this build needs {} or newer; update the driver, or use `--device cpu`", version(*.got), version(*.least)
    )]
    OldDriver {
        /// CUDA's version that the driver serves, as 1000 × major + 10 × minor.
        got: i32,
        /// The least that is needed.
        least: i32,
    },
    /// The driver answers with an error.
    #[error(
        "device cuda: {what} failed with {code}: {text}; see `nvidia-smi` and the kernel's log, or use `--device cpu`"
    )]
    Driver {
        /// What was tried.
        what: &'static str,
        /// The driver's name of the error.
        code: String,
        /// What the driver says of it.
        text: String,
    },
    /// There is no such device.
    #[error(
        "device {kind}:{ordinal} is not there: {count} found; choose another, or set CUDA_VISIBLE_DEVICES (now {visible})"
    )]
    NoDevice {
        /// The kind.
        kind: DeviceKind,
        /// Its number.
        ordinal: usize,
        /// How many there are.
        count: usize,
        /// The variable's value.
        visible: String,
    },
    /// The compiler of kernels cannot be loaded.
    #[error(
        "device cuda: NVRTC (libnvrtc.so.13 or .12), which compiles the kernels, is neither in the loader's path nor in {searched}; install the CUDA toolkit or `pip install nvidia-cuda-nvrtc` and name its folder in LD_LIBRARY_PATH, or use `--device cpu`"
    )]
    NoCompiler {
        /// The folders that were searched.
        searched: String,
    },
    /// The compiler of kernels that is there cannot be used.
    #[error(
        "device cuda: NVRTC {} {why}; `pip install nvidia-cuda-nvrtc-cu12==12.8.93` (or a version of the driver's own) and name its folder first in LD_LIBRARY_PATH, or use `--device cpu`", version(*.got)
    )]
    UnusableCompiler {
        /// Its version, as 1000 × major + 10 × minor.
        got: i32,
        /// What it does.
        why: String,
    },
    /// CUDA's headers, which kernels include, are not there.
    #[error(
        "device cuda: not all of CUDA's headers that the kernels include ({missing}) are in the `include` of one of {searched}; install the CUDA toolkit or `pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl` and set CUDA_PATH to the folder that holds `include`, or use `--device cpu`"
    )]
    NoHeaders {
        /// What is missing.
        missing: String,
        /// The folders that were searched.
        searched: String,
    },
    /// The folder for compiled kernels cannot be used.
    #[error(
        "device cuda: BURNISH_KERNEL_CACHE names {}, in which compiled kernels cannot be kept: {why}; name a folder of this user's own (mode 700), or 0 to keep none", folder.display()
    )]
    KernelCache {
        /// The folder.
        folder: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A list of cores that cannot be kept to.
    #[error(
        "bind_core_list `{list}`: {why}; expected numbers and ranges of cores of this machine, such as `0-27,32-59` (`lscpu -e` lists them)"
    )]
    CoreList {
        /// What was given.
        list: String,
        /// What is wrong with it.
        why: String,
    },
    /// Fewer cores than ranks.
    #[error(
        "bind_cores_to_rank: {ranks} ranks on this machine, and {cores} cores that this process may run on; start fewer ranks, or leave it out where a launcher binds by itself (mpirun, srun)"
    )]
    TooFewCores {
        /// Cores.
        cores: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Threads cannot be kept to cores.
    #[error("bind_cores_to_rank: threads cannot be kept to cores: {text}; leave it out")]
    CannotBind {
        /// What the system says.
        text: String,
    },
    /// No graphics driver is there.
    #[error("device wgpu: no graphics driver was found; install one (a software one: mesa-vulkan-drivers)")]
    NoAdapter,
}

/// CUDA's version number as people write it.
pub(crate) fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

impl Coded for DeviceError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NotBuilt { .. } => ErrorCode::NotBuilt,
            Self::NoDriver
            | Self::OldDriver { .. }
            | Self::NoDevice { .. }
            | Self::NoCompiler { .. }
            | Self::UnusableCompiler { .. }
            | Self::NoHeaders { .. }
            | Self::NoAdapter => ErrorCode::NoDevice,
            Self::Driver { .. } => ErrorCode::DeviceFailed,
            Self::CoreList { .. } => ErrorCode::BadValue,
            Self::TooFewCores { .. } | Self::CannotBind { .. } | Self::KernelCache { .. } => {
                ErrorCode::BadEnvironment
            }
        }
    }
}
