//! Findings of `burnish doctor`: drivers, libraries and devices of this machine.

use burnish_cpu_kernels::{Isa, amx_fault};

use crate::{DeviceError, DeviceKind};

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What: `driver`, `GPU 0`, `NVRTC`.
    pub what: String,
    /// What was found, or what is missing and how to mend it.
    pub found: Result<String, DeviceError>,
}

impl Finding {
    fn new(what: impl Into<String>, found: Result<String, DeviceError>) -> Self {
        Self { what: what.into(), found }
    }
}

/// Looks at everything that computing on this machine needs. Never panics, whatever is missing.
#[must_use]
pub fn findings() -> Vec<Finding> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = format!("{threads} threads, {}", instructions());
    let mut findings = vec![Finding::new("CPU", Ok(processor))];
    if let Some(fault) = amx_fault() {
        findings.push(Finding::new("AMX", Ok(format!("not used: {fault}"))));
    }
    findings.extend(cuda());
    findings
}

/// Whether this processor has products of bfloat16 that are faster than those of float32.
#[must_use]
pub fn multiplies_bf16() -> bool {
    burnish_cpu_kernels::isa().has_bf16_dots()
}

/// Which of the kernels' instruction sets this processor has, and what it is good for.
fn instructions() -> &'static str {
    match burnish_cpu_kernels::isa() {
        Isa::Amx => {
            "AVX-512, and AMX for products of bfloat16, in which training multiplies unless `bf16` is false (`BURNISH_AMX=0` leaves AMX alone)"
        }
        Isa::Avx512Bf16 => {
            "AVX-512 with products of bfloat16 and int8: training multiplies bfloat16, about twice as fast, unless `bf16` is false"
        }
        Isa::Avx512 => "AVX-512; products of bfloat16 that a run asks for are float32's",
        Isa::Avx2 => "AVX2; products of bfloat16 that a run asks for are float32's",
        Isa::NeonBf16 => {
            "NEON with products of bfloat16, in which training multiplies unless `bf16` is false"
        }
        Isa::Neon => "NEON; products of bfloat16 that a run asks for are float32's",
        _ => "portable kernels: no AVX2",
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Vec<Finding> {
    vec![Finding::new("CUDA", Err(DeviceError::NotBuilt { kind: DeviceKind::Cuda }))]
}

#[cfg(feature = "cuda")]
fn cuda() -> Vec<Finding> {
    use crate::cuda::{Gpu, Installation, OLDEST_DRIVER, driver_version, gpus};
    use crate::error::version;
    use crate::kernel_cache;

    let driver = driver_version().and_then(|got| {
        if got < OLDEST_DRIVER {
            return Err(DeviceError::OldDriver { got, least: OLDEST_DRIVER });
        }
        Ok(format!("serves CUDA {}", version(got)))
    });
    let lives = driver.is_ok();
    let mut findings = vec![Finding::new("NVIDIA driver", driver)];
    if lives {
        match gpus() {
            Ok(found) if found.is_empty() => {
                let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".to_owned());
                let none = DeviceError::NoDevice { kind: DeviceKind::Cuda, ordinal: 0, count: 0, visible };
                findings.push(Finding::new("GPU", Err(none)));
            }
            Ok(found) => findings.extend(found.into_iter().map(|gpu| {
                let Gpu { ordinal, name, capability, memory, free } = gpu;
                let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
                let found = format!("{name}, sm_{capability}, {:.1} GiB, {:.1} free", gib(memory), gib(free));
                Finding::new(format!("GPU {ordinal}"), Ok(found))
            })),
            Err(error) => findings.push(Finding::new("GPU", Err(error))),
        }
    }
    let installation = Installation::find();
    let compiler = installation
        .compiler(crate::cuda::driver_version().ok())
        .map(|(major, minor)| format!("{major}.{minor}"));
    findings.push(Finding::new("NVRTC", compiler));
    let headers = installation.headers().map(|root| root.join("include").display().to_string());
    findings.push(Finding::new("CUDA headers", headers));
    let kept = kernel_cache::opened().map(|folder| match folder {
        Some(folder) => format!(
            "{}, {:.1} MiB",
            folder.display(),
            kernel_cache::size(&folder) as f64 / f64::from(1 << 20)
        ),
        None => format!(
            "none: each process compiles its kernels anew ({} can name a folder)",
            kernel_cache::VARIABLE
        ),
    });
    findings.push(Finding::new("compiled kernels", kept));
    findings
}
