//! From a kind to a device that was seen to be there.

use burn::tensor::Device;

use crate::{DeviceError, DeviceKind};

/// Opens device number `ordinal` of a kind. What it needs is checked first, so that a lack is an error and not a panic
/// in a thread of the backend's.
///
/// # Errors
/// Whatever is missing: the build's feature, the driver, the device, the compiler, its headers.
pub fn open(kind: DeviceKind, ordinal: usize) -> Result<Device, DeviceError> {
    match kind {
        #[cfg(feature = "flex")]
        DeviceKind::Cpu => Ok(Device::flex()),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => {
            crate::cuda::ready(ordinal)?;
            let device = Device::cuda(ordinal);
            opened().push(device.clone());
            Ok(device)
        }
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => wgpu(ordinal),
        #[allow(unreachable_patterns, reason = "a build with every feature has every kind")]
        kind => {
            let _ = ordinal;
            Err(DeviceError::NotBuilt { kind })
        }
    }
}

/// The GPUs that were opened.
#[cfg(feature = "cuda")]
fn opened() -> std::sync::MutexGuard<'static, Vec<Device>> {
    static OPENED: std::sync::Mutex<Vec<Device>> = std::sync::Mutex::new(Vec::new());
    OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for what was launched on the GPUs that were opened. To be called before the program ends: else the backend's thread
/// compiles and launches while the process is taken down, and a process that has done its work ends by a signal.
pub fn settle() {
    #[cfg(feature = "cuda")]
    for device in opened().drain(..) {
        // What it failed at was said where it was asked for.
        let _ = device.sync();
    }
}

/// A kind that this machine can compute on: CUDA where it is all there, else the processor with the reason why not,
/// which is `None` where nobody would expect a GPU.
#[must_use]
pub fn best() -> (DeviceKind, Option<DeviceError>) {
    #[cfg(feature = "cuda")]
    match crate::cuda::ready(0) {
        Ok(_) => return (DeviceKind::Cuda, None),
        Err(DeviceError::NoDriver | DeviceError::NoDevice { .. }) => {}
        Err(error) => return (DeviceKind::Cpu, Some(error)),
    }
    (DeviceKind::Cpu, None)
}

/// How many devices of a kind this machine has; those of [`DeviceKind::Cpu`] count as one.
///
/// # Errors
/// As [`open`].
pub fn count(kind: DeviceKind) -> Result<usize, DeviceError> {
    match kind {
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => Ok(crate::cuda::gpus()?.len()),
        kind if kind.built() => Ok(1),
        kind => Err(DeviceError::NotBuilt { kind }),
    }
}

#[cfg(feature = "wgpu")]
fn wgpu(ordinal: usize) -> Result<Device, DeviceError> {
    if ordinal > 0 {
        let visible = "not read by WebGPU".to_owned();
        return Err(DeviceError::NoDevice { kind: DeviceKind::Wgpu, ordinal, count: 1, visible });
    }
    // Without an adapter the backend panics when it is first used, and there is no asking before.
    let opened = std::panic::catch_unwind(|| {
        let device = Device::wgpu(burn::tensor::DeviceKind::DefaultDevice);
        device.sync().is_ok().then_some(device)
    });
    opened.ok().flatten().ok_or(DeviceError::NoAdapter)
}

/// Has a write beyond the limit on the length of files (`ulimit -f`) fail as an error, instead of ending the process by
/// the signal SIGXFSZ. To be called once, at the start of the program; elsewhere than under Linux it does nothing.
pub fn files_too_large_are_errors() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no handler is installed: the signal is ignored, which has no requirements.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Bytes that the stack of the program's first thread may have (`ulimit -s`), where there is a limit; elsewhere than under
/// Linux none is known.
#[must_use]
pub fn stack_limit() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a place for what is asked.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } == 0;
        (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

/// Tells CubeCL where CUDA's headers are, when they are in none of the places where it looks: in NVIDIA's Python wheels,
/// say. To be called once, at the start of the program.
///
/// # Safety
/// No other thread may run: it sets the environment variable `CUDA_PATH`.
pub unsafe fn prepare() {
    #[cfg(feature = "cuda")]
    if std::env::var_os("CUDA_PATH").is_none()
        && let Ok(root) = crate::cuda::Installation::find().headers()
    {
        // SAFETY: the caller promises that no other thread reads the environment.
        unsafe { std::env::set_var("CUDA_PATH", root) };
    }
}
