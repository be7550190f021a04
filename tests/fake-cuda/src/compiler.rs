//! NVRTC with a memory: a real one compiles, and what it wrote is kept in a folder, so that each program is compiled once
//! for all processes.
//!
//! Only where `FAKE_CUDA_COMPILER` names the real library; without it the functions fail, as without a compiler.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::counts::{self, RUNNING};

/// An `nvrtcResult`.
type Code = c_int;

const SUCCESS: Code = 0;
const INVALID_INPUT: Code = 3;
const INVALID_PROGRAM: Code = 4;
/// `NVRTC_ERROR_INTERNAL_ERROR`
const INTERNAL: Code = 11;

unsafe extern "C" {
    fn dlopen(file: *const c_char, how: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_NOW`
const NOW: c_int = 2;

type Create = unsafe extern "C" fn(
    *mut usize,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Code;
type Compile = unsafe extern "C" fn(usize, c_int, *const *const c_char) -> Code;
type Size = unsafe extern "C" fn(usize, *mut usize) -> Code;
type Get = unsafe extern "C" fn(usize, *mut c_char) -> Code;
type Destroy = unsafe extern "C" fn(*mut usize) -> Code;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;
type Say = unsafe extern "C" fn(Code) -> *const c_char;

/// The functions of the real compiler.
struct Real {
    create: Create,
    compile: Compile,
    ptx_size: Size,
    ptx: Get,
    log_size: Size,
    log: Get,
    destroy: Destroy,
    version: Version,
    say: Say,
}

impl Real {
    fn open(file: &Path) -> Option<Self> {
        let name = CString::new(file.to_str()?).ok()?;
        // SAFETY: the name ends with a zero; NVRTC's initialisers have no conditions.
        let library = unsafe { dlopen(name.as_ptr(), NOW) };
        if library.is_null() {
            eprintln!("fake CUDA: cannot open the compiler {}", file.display());
            return None;
        }
        macro_rules! function {
            ($name:expr, $ty:ty) => {{
                // SAFETY: the library is open, and stays so.
                let found = unsafe { dlsym(library, $name.as_ptr()) };
                if found.is_null() {
                    return None;
                }
                // SAFETY: the function has this signature in NVRTC 12 and 13.
                unsafe { std::mem::transmute::<*mut c_void, $ty>(found) }
            }};
        }
        let [size, code] = match assembled() {
            false => [c"nvrtcGetPTXSize", c"nvrtcGetPTX"],
            true => [c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN"],
        };
        Some(Self {
            create: function!(c"nvrtcCreateProgram", Create),
            compile: function!(c"nvrtcCompileProgram", Compile),
            ptx_size: function!(size, Size),
            ptx: function!(code, Get),
            log_size: function!(c"nvrtcGetProgramLogSize", Size),
            log: function!(c"nvrtcGetProgramLog", Get),
            destroy: function!(c"nvrtcDestroyProgram", Destroy),
            version: function!(c"nvrtcVersion", Version),
            say: function!(c"nvrtcGetErrorString", Say),
        })
    }
}

/// Whether what asks for PTX is given the hardware's code, which a driver need not assemble: `FAKE_CUDA_CUBIN`.
fn assembled() -> bool {
    crate::variable("FAKE_CUDA_CUBIN", 0) > 0
}

fn real() -> Option<&'static Real> {
    static REAL: OnceLock<Option<Real>> = OnceLock::new();
    let open = || Real::open(Path::new(&std::env::var_os("FAKE_CUDA_COMPILER")?));
    REAL.get_or_init(open).as_ref()
}

/// What is known of a program.
struct Program {
    /// The real compiler's.
    handle: usize,
    source: Vec<u8>,
    /// What it compiled to, here or in an earlier process.
    ptx: Option<Vec<u8>>,
}

/// Where the PTX of a program is kept. Headers are not part of its name, only where they lie.
fn place(program: &Program, options: &[&CStr]) -> Option<PathBuf> {
    let folder = std::env::var_os("FAKE_CUDA_KEPT")?;
    let mut version = (0, 0);
    // SAFETY: it writes two numbers.
    unsafe { (real()?.version)(&raw mut version.0, &raw mut version.1) };
    let named = renamed(&program.source);
    // Two halves with different beginnings: 128 bits.
    let half = |begin: u8| {
        let mut hash = DefaultHasher::new();
        (begin, version, &named, options, assembled()).hash(&mut hash);
        hash.finish()
    };
    Some(Path::new(&folder).join(format!("{:016x}{:016x}.ptx", half(0), half(1))))
}

/// A program with its values (`v12`, `info_v12`) numbered as they appear: CubeCL numbers them by addresses, so that the
/// same program has other names in each process.
fn renamed(source: &[u8]) -> Vec<u8> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut numbers = HashMap::new();
    let mut out = Vec::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.first() {
        let end = rest.iter().position(|byte| is_word(byte) != is_word(first)).unwrap_or(rest.len());
        let (word, more) = rest.split_at(end);
        let value = word.strip_prefix(b"info_").unwrap_or(word).strip_prefix(b"v");
        let number = value.filter(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit));
        match number {
            Some(number) => {
                let next = numbers.len();
                out.push(b'v');
                out.extend_from_slice(numbers.entry(number).or_insert(next).to_string().as_bytes());
            }
            None => out.extend_from_slice(word),
        }
        rest = more;
    }
    out
}

/// Keeps bytes under a name that other processes see whole or not at all.
fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = file.with_extension(format!("{}-{number}.new", std::process::id()));
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, file)
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut usize,
    source: *const c_char,
    name: *const c_char,
    headers: c_int,
    contents: *const *const c_char,
    names: *const *const c_char,
) -> Code {
    let Some(real) = real() else { return INTERNAL };
    if program.is_null() || source.is_null() {
        return INVALID_INPUT;
    }
    let mut handle = 0;
    // SAFETY: as the caller promises.
    let code = unsafe { (real.create)(&raw mut handle, source, name, headers, contents, names) };
    if code == SUCCESS {
        // SAFETY: the source ends with a zero.
        let source = unsafe { CStr::from_ptr(source) }.to_bytes().to_vec();
        let own = Box::new(Program { handle, source, ptx: None });
        // SAFETY: the caller has room for a handle.
        unsafe { program.write(Box::into_raw(own).expose_provenance()) };
    }
    code
}

/// The program of a handle.
///
/// # Safety
/// The handle is one that was made and not destroyed, and no other reference to its program is in use.
unsafe fn of<'a>(handle: usize) -> Option<&'a mut Program> {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::with_exposed_provenance_mut::<Program>(handle).as_mut() }
}

/// The real compiler's words, where it has any.
///
/// # Safety
/// `handle` is the real compiler's.
unsafe fn bytes(handle: usize, size: Size, get: Get) -> Result<Vec<u8>, Code> {
    let mut room = 0;
    // SAFETY: as the caller promises.
    let code = unsafe { size(handle, &raw mut room) };
    if code != SUCCESS {
        return Err(code);
    }
    let mut bytes = vec![0; room];
    // SAFETY: there is the room that it asked for.
    let code = unsafe { get(handle, bytes.as_mut_ptr().cast()) };
    if code == SUCCESS { Ok(bytes) } else { Err(code) }
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    program: usize,
    count: c_int,
    options: *const *const c_char,
) -> Code {
    // SAFETY: as the caller promises.
    let (Some(real), Some(own)) = (real(), unsafe { of(program) }) else { return INVALID_PROGRAM };
    let words: Vec<&CStr> = (0..usize::try_from(count).unwrap_or(0))
        // SAFETY: there are `count` pointers to text that ends with a zero.
        .map(|at| unsafe { CStr::from_ptr(*options.add(at)) })
        .collect();
    let file = place(own, &words);
    let whole = |kept: &Vec<u8>| assembled() || kept.last() == Some(&0);
    own.ptx = file.as_ref().and_then(|file| std::fs::read(file).ok()).filter(whole);
    if own.ptx.is_some() {
        counts::one(&RUNNING.kept);
        return SUCCESS;
    }
    let begun = Instant::now();
    // SAFETY: as the caller promises.
    let code = unsafe { (real.compile)(own.handle, count, options) };
    counts::one(&RUNNING.compiled);
    RUNNING.compiling_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    if code == SUCCESS
        // SAFETY: the handle is the real compiler's.
        && let Ok(ptx) = unsafe { bytes(own.handle, real.ptx_size, real.ptx) }
    {
        if let Some(file) = &file
            && let Err(error) = keep(file, &ptx)
        {
            eprintln!("fake CUDA: cannot keep {}: {error}", file.display());
        }
        own.ptx = Some(ptx);
    } else if crate::variable("FAKE_CUDA_TRACE", 0) > 0
        // SAFETY: the handle is the real compiler's.
        && let Ok(log) = unsafe { bytes(own.handle, real.log_size, real.log) }
    {
        eprintln!("fake CUDA: {}", String::from_utf8_lossy(&log));
    }
    code
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTXSize(program: usize, size: *mut usize) -> Code {
    // SAFETY: as the caller promises.
    let Some(ptx) = (unsafe { of(program) }).and_then(|own| own.ptx.as_ref()) else { return INVALID_PROGRAM };
    // SAFETY: as the caller promises.
    unsafe { size.write(ptx.len()) };
    SUCCESS
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTX(program: usize, place: *mut c_char) -> Code {
    // SAFETY: as the caller promises.
    let Some(ptx) = (unsafe { of(program) }).and_then(|own| own.ptx.as_ref()) else { return INVALID_PROGRAM };
    // SAFETY: the caller has the room that it was told.
    unsafe { std::ptr::copy_nonoverlapping(ptx.as_ptr(), place.cast(), ptx.len()) };
    SUCCESS
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLogSize(program: usize, size: *mut usize) -> Code {
    // SAFETY: as the caller promises.
    let (Some(real), Some(own)) = (real(), unsafe { of(program) }) else { return INVALID_PROGRAM };
    // SAFETY: as the caller promises.
    unsafe { (real.log_size)(own.handle, size) }
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLog(program: usize, place: *mut c_char) -> Code {
    // SAFETY: as the caller promises.
    let (Some(real), Some(own)) = (real(), unsafe { of(program) }) else { return INVALID_PROGRAM };
    // SAFETY: as the caller promises.
    unsafe { (real.log)(own.handle, place) }
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(program: *mut usize) -> Code {
    // SAFETY: as the caller promises.
    let Some(handle) = (unsafe { program.as_mut() }).map(std::mem::take).filter(|&handle| handle != 0) else {
        return INVALID_PROGRAM;
    };
    // SAFETY: the handle came from `nvrtcCreateProgram`, and nobody uses it after this.
    let mut own = unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<Program>(handle)) };
    match real() {
        // SAFETY: the handle is the real compiler's.
        Some(real) => unsafe { (real.destroy)(&raw mut own.handle) },
        None => INTERNAL,
    }
}

/// # Safety
/// As the real function has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Code {
    // SAFETY: as the caller promises.
    real().map_or(INTERNAL, |real| unsafe { (real.version)(major, minor) })
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: Code) -> *const c_char {
    // SAFETY: it takes any number.
    real().map_or(c"no compiler".as_ptr(), |real| unsafe { (real.say)(code) })
}
