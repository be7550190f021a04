//! Results of the driver's functions, and their names.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

/// A `CUresult`.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const INVALID_PTX: Code = 218;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const LAUNCH_FAILED: Code = 719;
pub(crate) const NOT_SUPPORTED: Code = 801;

/// Name and meaning of each.
const NAMES: &[(Code, &CStr, &CStr)] = &[
    (SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (NO_DEVICE, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (INVALID_PTX, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
];

/// The code that a function gives back.
#[track_caller]
pub(crate) fn given(result: Result<(), Code>) -> Code {
    if let Err(code) = result
        && crate::variable("FAKE_CUDA_TRACE", 0) > 0
        && code != NOT_READY
    {
        let name = NAMES.iter().find(|name| name.0 == code).map_or(c"another error", |name| name.1);
        eprintln!("fake CUDA: {} at {}", name.to_string_lossy(), std::panic::Location::caller());
    }
    result.err().unwrap_or(SUCCESS)
}

/// Writes what a function computes to where its caller wants it.
#[track_caller]
pub(crate) fn put<T>(place: &mut MaybeUninit<T>, value: Result<T, Code>) -> Code {
    given(value.map(|value| {
        place.write(value);
    }))
}

fn text(
    code: Code,
    place: &mut MaybeUninit<*const c_char>,
    of: impl Fn(&(Code, &CStr, &CStr)) -> *const c_char,
) -> Code {
    put(place, NAMES.iter().find(|name| name.0 == code).map(of).ok_or(INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, name: &mut MaybeUninit<*const c_char>) -> Code {
    text(code, name, |known| known.1.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Code, text_of: &mut MaybeUninit<*const c_char>) -> Code {
    text(code, text_of, |known| known.2.as_ptr())
}
