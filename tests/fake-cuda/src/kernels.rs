//! Kernels, which are loaded, launched and counted, and do nothing.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::code::{Code, INVALID_VALUE, SUCCESS, given, put};
use crate::counts::{self, RUNNING};
use crate::stream;

static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000);

fn handle() -> Result<usize, Code> {
    Ok(NEXT.fetch_add(1, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: &mut MaybeUninit<usize>, image: *const c_void) -> Code {
    put(module, if image.is_null() { Err(INVALID_VALUE) } else { handle() })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: &mut MaybeUninit<usize>,
    image: *const c_void,
    _count: c_uint,
    _options: usize,
    _values: usize,
) -> Code {
    cuModuleLoadData(module, image)
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(_module: usize) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(
    function: &mut MaybeUninit<usize>,
    _module: usize,
    name: *const c_char,
) -> Code {
    put(function, if name.is_null() { Err(INVALID_VALUE) } else { handle() })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_function: usize, _attribute: c_uint, _value: c_int) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(_function: usize, _config: c_uint) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(
    value: &mut MaybeUninit<c_int>,
    attribute: c_uint,
    _function: usize,
) -> Code {
    /// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`
    const MAX_THREADS: c_uint = 0;
    put(value, Ok(if attribute == MAX_THREADS { 1024 } else { 0 }))
}

fn launch(on: usize) -> Code {
    counts::one(&RUNNING.launches);
    given(stream::of(on).and_then(|stream| stream.push(|| Ok(()))))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    _function: usize,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    on: usize,
    _arguments: usize,
    _extra: usize,
) -> Code {
    launch(on)
}

/// The beginning of a `CUlaunchConfig`.
#[repr(C)]
struct Config {
    sizes: [c_uint; 7],
    stream: usize,
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernelEx(config: &Config, _function: usize, _arguments: usize, _extra: usize) -> Code {
    launch(config.stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(on: usize, function: Option<extern "C" fn(usize)>, argument: usize) -> Code {
    let Some(function) = function else { return INVALID_VALUE };
    given(stream::of(on).and_then(|stream| {
        stream.push(move || {
            function(argument);
            Ok(())
        })
    }))
}

/// A `CUtensorMap`, which no kernel reads here.
type TensorMap = MaybeUninit<[u64; 16]>;

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeTiled(map: &mut TensorMap) -> Code {
    put(map, Ok([0; 16]))
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2col(map: &mut TensorMap) -> Code {
    put(map, Ok([0; 16]))
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2colWide(map: &mut TensorMap) -> Code {
    put(map, Ok([0; 16]))
}
