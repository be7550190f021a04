//! Queries of the CUDA driver: devices, their names, memory and compute capability.

use std::ffi::CStr;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::DeviceError;

/// CUDA 12.8, whose driver has every function that the interface of CUDA 13.0 names here.
pub(crate) const OLDEST_DRIVER: i32 = 12_080;

/// A GPU that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, counted over the visible ones.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its compute capability, as 90 for 9.0.
    pub capability: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes that nobody holds now.
    pub free: u64,
}

fn failed(what: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |DriverError(code)| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes the address of a static string, or null for a code it does not know.
        let known = unsafe { sys::cuGetErrorString(code, &raw mut text) } == sys::CUresult::CUDA_SUCCESS;
        let text = if known && !text.is_null() {
            // SAFETY: a string of the driver's, that ends with zero and lives as long as the process.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "no text".to_owned()
        };
        DeviceError::Driver { what, code: format!("{code:?}"), text }
    }
}

/// The version of CUDA that the driver serves.
pub(crate) fn driver_version() -> Result<i32, DeviceError> {
    // SAFETY: loads the driver's library and lets go of it; a system library may be loaded at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the driver writes the number; no initialisation is needed before.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(failed("asking for the version"))?;
    Ok(version)
}

/// The visible GPUs.
///
/// # Errors
/// If there is no driver, or it is too old or fails.
pub fn gpus() -> Result<Vec<Gpu>, DeviceError> {
    let got = driver_version()?;
    if got < OLDEST_DRIVER {
        return Err(DeviceError::OldDriver { got, least: OLDEST_DRIVER });
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
        other => other.map_err(failed("starting the driver"))?,
    }
    let count = result::device::get_count().map_err(failed("counting devices"))?;
    (0..usize::try_from(count).unwrap_or(0)).map(gpu).collect()
}

fn gpu(ordinal: usize) -> Result<Gpu, DeviceError> {
    let context = CudaContext::new(ordinal).map_err(failed("opening the device"))?;
    let (major, minor) = context.compute_capability().map_err(failed("asking for the compute capability"))?;
    let (free, memory) = context.mem_get_info().map_err(failed("asking for the memory"))?;
    Ok(Gpu {
        ordinal,
        name: context.name().map_err(failed("asking for the name"))?,
        capability: u32::try_from(major * 10 + minor).unwrap_or(0),
        memory: memory as u64,
        free: free as u64,
    })
}
