//! Stands in for `cubecl-llvm` 0.11.3, whose build downloads LLVM.
//!
//! CubeCL's CUDA backend has two compilers: LLVM, and NVRTC on generated CUDA C++ (its feature `cpp`, which burnish
//! turns on and which then is the default). The types of the first are part of the second's signatures, so they are
//! here; the compiler itself refuses.

use std::ffi::c_char;

use cubecl_core::ir::nvidia::SmArch;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::compiler::CompilationError;
use cubecl_runtime::kernel::BufferIOAttr;

/// What LLVM compiles for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    #[default]
    Nvptx,
}

pub mod nvptx {
    pub mod ptx_version {
        use std::fmt;

        /// A version of PTX.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion(u32);

        impl PtxVersion {
            /// None: no PTX is written here.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "ptx{}", self.0)
            }
        }
    }
}

pub mod shared {
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// Whose features are restricted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            Nvptx,
        }

        /// NVRTC has all that CubeCL advertises.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    pub ptx: Vec<c_char>,
    pub entrypoint: String,
    pub ir: String,
    pub shared_memory_size: usize,
    pub io: Vec<BufferIOAttr>,
}

/// What the compiler would give.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlironArtifact {
    NvptxCode(NvptxModule),
    Unavailable,
}

/// What the compiler would be told.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    pub arch: Option<()>,
    pub sm_arch: Option<SmArch>,
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    pub grid_constants: bool,
    pub reserved: (),
}

/// The compiler that is not here.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    pub target: LlvmTarget,
}

impl PlironCompiler {
    /// Refuses.
    pub fn compile<K>(&mut self, _kernel: K, _options: &PlironOptions) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM; cubecl's feature `cuda-cpp` compiles by NVRTC".to_owned(),
            backtrace: BackTrace::capture(),
        })
    }

    /// The name of LLVM's language.
    pub fn lang_tag(&self) -> &'static str {
        "ll"
    }
}
