//! NVIDIA GPUs: the driver, the compiler of kernels and the headers that kernels include.
//!
//! Nothing of CUDA is linked. The driver and NVRTC are loaded when the first device is opened; whether they can be is
//! asked before, because CubeCL's device thread panics where they cannot.

mod driver;
mod installation;

pub use installation::Installation;

pub use driver::{Gpu, gpus};

pub(crate) use driver::{OLDEST_DRIVER, driver_version};

use crate::{DeviceError, DeviceKind};

/// Checks that device `ordinal` can compute.
pub(crate) fn ready(ordinal: usize) -> Result<Gpu, DeviceError> {
    let mut found = gpus()?;
    let installation = Installation::find();
    let compiler = installation.compiler(Some(driver_version()?))?;
    installation.headers()?;
    crate::kernel_cache::keep(compiler)?;
    let count = found.len();
    if ordinal >= count {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".to_owned());
        return Err(DeviceError::NoDevice { kind: DeviceKind::Cuda, ordinal, count, visible });
    }
    Ok(found.swap_remove(ordinal))
}
