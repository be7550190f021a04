//! Modules and their kernels, which are executed where they are PTX.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::code::{
    Code, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND,
    NOT_SUPPORTED, SUCCESS, given, put,
};
use crate::counts::{self, RUNNING};
use crate::node::Kind;
use crate::stream::Stream;
use crate::{capture, driver, lock, memory, stream};

/// Nanoseconds that a kernel takes that does nothing.
const SKIPPED: u64 = 1_000_000_000;

static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000);

/// What is loaded, by handle: nothing where a module is not executed.
static MODULES: Mutex<Option<HashMap<usize, Option<Arc<ptx::Module>>>>> = Mutex::new(None);
static FUNCTIONS: Mutex<Option<HashMap<usize, Function>>> = Mutex::new(None);

#[derive(Clone)]
struct Function {
    module: Option<Arc<ptx::Module>>,
    name: String,
}

fn handle() -> usize {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The text of a module, if it is one.
///
/// # Safety
/// The bytes of a module are there, which end with a zero if they are text.
unsafe fn text(image: *const c_void) -> Option<String> {
    // SAFETY: as the caller promises; other forms of modules begin with four bytes that are no text.
    let first = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), 4) };
    if first.iter().any(|byte| !byte.is_ascii() || *byte < 9) {
        return None;
    }
    // SAFETY: text ends with a zero.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    text.to_str().ok().filter(|text| text.contains(".version")).map(str::to_owned)
}

/// Keeps a module's text in a folder.
fn keep(folder: &Path, text: &str) -> std::io::Result<()> {
    let name = text.split(".entry").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or("module");
    let mut hash = DefaultHasher::new();
    text.hash(&mut hash);
    let name: String = name.trim().chars().take(120).collect();
    std::fs::write(folder.join(format!("{name}-{:016x}.ptx", hash.finish())), text)
}

/// Whether `FAKE_CUDA_SKIP` has a beginning of the name of the module's kernel.
fn is_skipped(text: &str) -> bool {
    let skipped = std::env::var("FAKE_CUDA_SKIP").unwrap_or_default();
    let name = text.split(".entry").nth(1).unwrap_or_default().trim_start();
    skipped.split(',').map(str::trim).any(|part| part == "all" || !part.is_empty() && name.starts_with(part))
}

/// Reads a module for the current device, where its variables lie.
fn read(text: &str) -> Result<Arc<ptx::Module>, Code> {
    let device = driver::current()?;
    let mut wrong = SUCCESS;
    let mut place = |global: ptx::Global| {
        let placed = memory::allocate(device, global.bytes.len().max(1))
            .and_then(|address| memory::write(address, &global.bytes).map(|()| address));
        placed.unwrap_or_else(|code| {
            wrong = code;
            0
        })
    };
    let module = ptx::Module::read(text, &mut place).map_err(|error| {
        eprintln!("fake CUDA: {error}");
        INVALID_PTX
    })?;
    if wrong == SUCCESS { Ok(Arc::new(module)) } else { Err(wrong) }
}

/// # Safety
/// `image` is a module's, as the driver's interface has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: &mut MaybeUninit<usize>, image: *const c_void) -> Code {
    if image.is_null() {
        return INVALID_VALUE;
    }
    if let Err(code) = capture::refuse_unsafe() {
        return given(Err(code));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { text(image) };
    if let (Some(folder), Some(text)) = (std::env::var_os("FAKE_CUDA_MODULES"), &text)
        && let Err(error) = keep(Path::new(&folder), text)
    {
        eprintln!("fake CUDA: cannot keep a module in {}: {error}", Path::new(&folder).display());
    }
    let loaded = text.filter(|text| !is_skipped(text)).map(|text| read(&text)).transpose();
    put(
        module,
        loaded.map(|loaded| {
            let handle = handle();
            lock(&MODULES).get_or_insert_default().insert(handle, loaded);
            handle
        }),
    )
}

/// # Safety
/// As [`cuModuleLoadData`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: &mut MaybeUninit<usize>,
    image: *const c_void,
    _count: c_uint,
    _options: usize,
    _values: usize,
) -> Code {
    // SAFETY: as the caller promises.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> Code {
    given(capture::refuse_unsafe().map(|()| {
        lock(&MODULES).get_or_insert_default().remove(&module);
    }))
}

/// # Safety
/// `name` is text that ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: &mut MaybeUninit<usize>,
    module: usize,
    name: *const c_char,
) -> Code {
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let Some(module) = lock(&MODULES).get_or_insert_default().get(&module).cloned() else {
        return INVALID_HANDLE;
    };
    if module.as_ref().is_some_and(|module| module.kernel(&name).is_none()) {
        return NOT_FOUND;
    }
    let handle = handle();
    lock(&FUNCTIONS).get_or_insert_default().insert(handle, Function { module, name });
    put(function, Ok(handle))
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

/// Grid, block and bytes of shared memory of a launch.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
}

impl Sizes {
    /// Whether a device takes them, as `cuDeviceGetAttribute` has its bounds.
    fn fit(&self) -> bool {
        let within = |sizes: [c_uint; 3], most: [u64; 3]| {
            sizes.into_iter().zip(most).all(|(size, most)| (1..=most).contains(&u64::from(size)))
        };
        let threads: u64 = self.block.iter().map(|&size| u64::from(size)).product();
        within(self.grid, driver::MOST_BLOCKS)
            && within(self.block, driver::MOST_THREADS)
            && threads <= driver::MOST_THREADS[0]
            && u64::from(self.shared) <= driver::MOST_SHARED
    }
}

/// The bytes of the arguments of a kernel.
///
/// # Safety
/// There is a pointer to each argument.
unsafe fn arguments(kernel: &ptx::Kernel, pointers: *const *const u8) -> Result<Vec<Vec<u8>>, Code> {
    let mut all = Vec::new();
    for (at, bytes) in kernel.parameters().enumerate() {
        if pointers.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the caller promises.
        let argument = unsafe { std::slice::from_raw_parts(*pointers.add(at), bytes) };
        all.push(argument.to_vec());
    }
    Ok(all)
}

/// # Safety
/// There is a pointer to each argument of the kernel.
unsafe fn launch(function: usize, sizes: Sizes, on: usize, pointers: *const *const u8) -> Result<(), Code> {
    let on = stream::of(on)?;
    let function = lock(&FUNCTIONS).get_or_insert_default().get(&function).cloned();
    let Function { module, name } = function.ok_or(INVALID_HANDLE)?;
    if !sizes.fit() {
        eprintln!("fake CUDA: no device launches {name} so: {sizes:?}");
        return Err(INVALID_VALUE);
    }
    let kind = Kind::Kernel(name.clone());
    let Some(module) = module else {
        let skip = |on: &Stream| {
            on.spend(SKIPPED);
            Ok(())
        };
        return on.take(kind, skip).map(drop);
    };
    let kernel = module.kernel(&name).ok_or(NOT_FOUND)?;
    // SAFETY: as the caller promises.
    let arguments = unsafe { arguments(kernel, pointers) }?;
    let run = move |on: &Stream| {
        let kernel = module.kernel(&name).ok_or(NOT_FOUND)?;
        let Sizes { grid, block, shared } = sizes;
        let launch = ptx::Launch { kernel, grid, block, shared: shared as usize, arguments: &arguments };
        let begun = Instant::now();
        let done = memory::run(&launch).map_err(|fault| {
            counts::one(&RUNNING.faults);
            eprintln!("fake CUDA: {fault}");
            if fault.is_of_memory() { ILLEGAL_ADDRESS } else { LAUNCH_FAILED }
        })?;
        on.spend(done.instructions);
        let counted = [
            (&RUNNING.executing_us, begun.elapsed().as_micros() as u64),
            (&RUNNING.instructions, done.instructions),
            (&RUNNING.products, done.products),
            (&RUNNING.kernel_reads, done.read),
            (&RUNNING.kernel_writes, done.written),
            (&RUNNING.atomic_sums, done.atomic_sums),
        ];
        for (count, more) in counted {
            count.fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    };
    on.take(kind, run).map(drop)
}

/// # Safety
/// There is a pointer to each argument of the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    on: usize,
    arguments: *const *const u8,
    _extra: usize,
) -> Code {
    let sizes = Sizes { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
    // SAFETY: as the caller promises.
    given(unsafe { launch(function, sizes, on, arguments) })
}

/// The beginning of a `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: usize,
}

/// # Safety
/// There is a pointer to each argument of the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: &Config,
    function: usize,
    arguments: *const *const u8,
    _extra: usize,
) -> Code {
    let sizes = Sizes { grid: config.grid, block: config.block, shared: config.shared };
    // SAFETY: as the caller promises.
    given(unsafe { launch(function, sizes, config.stream, arguments) })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(on: usize, function: Option<extern "C" fn(usize)>, argument: usize) -> Code {
    let Some(function) = function else { return INVALID_VALUE };
    given(stream::of(on).and_then(|stream| {
        let call = move |_: &Stream| {
            function(argument);
            Ok(())
        };
        stream.take(Kind::Host, call).map(drop)
    }))
}

/// A `CUtensorMap`.
type TensorMap = MaybeUninit<[u8; ptx::TENSOR_MAP_BYTES]>;

/// Bytes of an element of a `CUtensorMapDataType`.
fn element(kind: c_uint) -> Option<u8> {
    Some(match kind {
        0 => 1,
        1 | 6 | 9 => 2,
        2 | 3 | 7 | 10..=12 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// Whether a tensor is one that the hardware brings boxes of, as the driver's reference has it for tensors that are not
/// interleaved.
fn describable(
    element: u8,
    address: u64,
    size: &[u64],
    strides: &[u64],
    boxed: &[c_uint],
    swizzle: c_uint,
) -> bool {
    let line = u64::from(boxed[0]) * u64::from(element);
    let order = [u64::MAX, 32, 64, 128].get(swizzle as usize).is_some_and(|&most| line <= most);
    address.is_multiple_of(16)
        && size.iter().all(|size| (1..=1 << 32).contains(size))
        && strides.iter().all(|stride| stride.is_multiple_of(16) && *stride < 1 << 40)
        && boxed.iter().all(|size| (1..=256).contains(size))
        && line.is_multiple_of(16)
        && order
}

/// # Safety
/// There are `rank` numbers at each pointer, one less at `strides`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: &mut TensorMap,
    kind: c_uint,
    rank: c_uint,
    address: u64,
    size: *const u64,
    strides: *const u64,
    boxed: *const c_uint,
    element_strides: *const c_uint,
    interleave: c_uint,
    swizzle: c_uint,
    _cache: c_uint,
    fill: c_uint,
) -> Code {
    let rank = rank as usize;
    let Some(element) = element(kind).filter(|_| (1..=5).contains(&rank)) else { return INVALID_VALUE };
    // SAFETY: as the caller promises.
    let numbers = |at: *const u64, count| unsafe { std::slice::from_raw_parts(at, count) }.to_vec();
    // SAFETY: as the caller promises.
    let counts = |at: *const c_uint| unsafe { std::slice::from_raw_parts(at, rank) }.to_vec();
    if counts(element_strides).iter().any(|&stride| stride != 1)
        || interleave != 0
        || swizzle > 3
        || fill != 0
    {
        return NOT_SUPPORTED;
    }
    let strides = if rank > 1 { numbers(strides, rank - 1) } else { Vec::new() };
    if !describable(element, address, &numbers(size, rank), &strides, &counts(boxed), swizzle) {
        eprintln!(
            "fake CUDA: no tensor map is of {:?} elements of {element} bytes, lines {strides:?} bytes apart from {address:#x}, by boxes of {:?} in order {swizzle}",
            numbers(size, rank),
            counts(boxed),
        );
        return INVALID_VALUE;
    }
    let described = ptx::TensorMap {
        element,
        address,
        size: numbers(size, rank),
        strides,
        boxed: counts(boxed),
        swizzle: swizzle as u8,
    };
    put(map, Ok(described.encode()))
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2col(map: &mut TensorMap) -> Code {
    put(map, Err(NOT_SUPPORTED))
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2colWide(map: &mut TensorMap) -> Code {
    put(map, Err(NOT_SUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_have_the_sizes_of_a_device() {
        let fit = |grid, block, shared| Sizes { grid, block, shared }.fit();
        assert!(fit([1 << 20, 65_535, 1], [16, 16, 4], 232_448));
        assert!(!fit([1, 65_536, 1], [1, 1, 1], 0) && !fit([1, 1, 0], [1, 1, 1], 0));
        assert!(!fit([1, 1, 1], [1024, 2, 1], 0) && !fit([1, 1, 1], [1, 1, 65], 0));
        assert!(!fit([1, 1, 1], [1, 1, 1], 232_449));
    }

    #[test]
    fn tensor_maps_have_lines_that_the_hardware_copies() {
        let of_bf16 = |address, size: [u64; 3], strides: [u64; 2], boxed: [c_uint; 3]| {
            describable(2, address, &size, &strides, &boxed, 3)
        };
        let size = [4096, 151_936, 1];
        assert!(of_bf16(0x1000, size, [8192, 8192 * 151_936], [64, 128, 1]));
        assert!(!of_bf16(0x1008, size, [8192, 8192 * 151_936], [64, 128, 1]));
        assert!(!of_bf16(0x1000, size, [8200, 8192 * 151_936], [64, 128, 1]));
        assert!(!of_bf16(0x1000, size, [8192, 1 << 40], [64, 128, 1]));
        assert!(!of_bf16(0x1000, size, [8192, 8192 * 151_936], [128, 128, 1]));
        assert!(!of_bf16(0x1000, size, [8192, 8192 * 151_936], [64, 257, 1]));
        assert!(!of_bf16(0x1000, [4096, 0, 1], [8192, 0], [64, 128, 1]));
    }
}
