//! NCCL's library, loaded at run time under the name that its packages install.
//!
//! cudarc looks for `libnccl.so`, which comes with the development package only, and panics where a function is missing.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::Library as Loaded;

use super::NcclError;
use super::error::REMOTE;

const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Bytes of NCCL's identifier of a communicator.
pub(super) const ID: usize = 128;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Id(pub(super) [u8; ID]);

/// `ncclComm_t`: a pointer that this side never reads.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) *mut c_void);

/// A `cudaStream_t`.
pub(super) type Stream = *mut c_void;

/// `ncclConfig_t` as NCCL 2.14 has it. Later ones read as much as `size` says and take their defaults for the rest.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Config {
    /// For a communicator whose calls return at once.
    pub(super) const NON_BLOCKING: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21400, blocking: 0 };
}

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// An `ncclDataType_t` that is used here.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub(super) enum Element {
    U8 = 1,
    U64 = 5,
    F32 = 7,
    F64 = 8,
}

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions used, by their symbols.
        #[derive(Clone, Copy)]
        pub(super) struct Functions { $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)* }

        impl Functions {
            fn load(loaded: &Loaded, path: &str) -> Result<Self, NcclError> {
                Ok(Self { $(
                    // SAFETY: the symbol is a function of NCCL with the signature of NCCL's header, in which integers
                    // stand for enumerations; the library is never unloaded.
                    $field: *unsafe { loaded.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol) }
                        .map_err(|_| NcclError::Outdated {
                            function: String::from_utf8_lossy($symbol).into_owned(),
                            path: path.to_owned(),
                        })?,
                )* })
            }
        }
    };
}

functions! {
    version = b"ncclGetVersion" (*mut c_int) -> c_int;
    error_string = b"ncclGetErrorString" (c_int) -> *const c_char;
    unique_id = b"ncclGetUniqueId" (*mut Id) -> c_int;
    init = b"ncclCommInitRankConfig" (*mut Handle, c_int, Id, c_int, *mut Config) -> c_int;
    async_error = b"ncclCommGetAsyncError" (Handle, *mut c_int) -> c_int;
    finalize = b"ncclCommFinalize" (Handle) -> c_int;
    destroy = b"ncclCommDestroy" (Handle) -> c_int;
    abort = b"ncclCommAbort" (Handle) -> c_int;
    group_start = b"ncclGroupStart" () -> c_int;
    group_end = b"ncclGroupEnd" () -> c_int;
    all_reduce = b"ncclAllReduce" (*const c_void, *mut c_void, usize, Element, c_int, Handle, Stream) -> c_int;
    reduce_scatter =
        b"ncclReduceScatter" (*const c_void, *mut c_void, usize, Element, c_int, Handle, Stream) -> c_int;
    all_gather = b"ncclAllGather" (*const c_void, *mut c_void, usize, Element, Handle, Stream) -> c_int;
    broadcast = b"ncclBroadcast" (*const c_void, *mut c_void, usize, Element, c_int, Handle, Stream) -> c_int;
    send = b"ncclSend" (*const c_void, usize, Element, c_int, Handle, Stream) -> c_int;
    receive = b"ncclRecv" (*mut c_void, usize, Element, c_int, Handle, Stream) -> c_int;
}

/// NCCL in this process. It is never unloaded: its threads stay.
pub(super) struct Library {
    pub(super) functions: Functions,
    pub(super) version: c_int,
    pub(super) path: PathBuf,
}

impl Library {
    /// The library, which the first call loads.
    pub(super) fn get() -> Result<&'static Self, NcclError> {
        static LIBRARY: OnceLock<Result<Library, NcclError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, NcclError> {
        let mut reasons = Vec::new();
        for name in NAMES {
            // SAFETY: loads NCCL, whose initialisers may run at any time.
            match unsafe { Loaded::new(name) } {
                Ok(loaded) => {
                    let functions = Functions::load(&loaded, name)?;
                    std::mem::forget(loaded);
                    let mut version = 0;
                    // SAFETY: NCCL writes the version.
                    let code = unsafe { (functions.version)(&raw mut version) };
                    let path = mapped(functions.version as usize).unwrap_or_else(|| PathBuf::from(name));
                    let library = Self { functions, version, path };
                    library.checked("ncclGetVersion", code)?;
                    return Ok(library);
                }
                Err(error) => {
                    reasons.push(error.source().map_or_else(|| error.to_string(), ToString::to_string))
                }
            }
        }
        Err(NcclError::Missing {
            library: "NCCL library",
            mend: "install libnccl2 (libnccl.so.2 in the loader's path, LD_LIBRARY_PATH)",
            reason: reasons.join("; "),
        })
    }

    /// A result of NCCL; what is under way is none to complain about.
    pub(super) fn checked(&self, function: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL gives a static string for every number.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(code)) };
        Err(NcclError::Nccl { function, code: name(code), text: text.to_string_lossy().into_owned() })
    }

    /// The version as people write it.
    pub(super) fn version_text(&self) -> String {
        let version = self.version;
        // 2.9 and later count in ten thousands.
        let (major, minor) = if version < 10_000 { (1000, 100) } else { (10_000, 100) };
        format!("{}.{}.{}", version / major, version % major / minor, version % minor)
    }
}

fn name(code: c_int) -> String {
    let known = match code {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => REMOTE,
        8 => "ncclTimeout",
        other => return format!("result {other}"),
    };
    known.to_owned()
}

/// The file that the code at `address` was loaded from, as Linux tells.
fn mapped(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let here = (number(start)?..number(end)?).contains(&address);
        let path = rest.split_whitespace().nth(4)?;
        here.then(|| PathBuf::from(path))
    })
}
