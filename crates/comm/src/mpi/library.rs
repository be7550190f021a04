//! Open MPI's library, loaded at run time: no headers, no build dependency, one binary with and without MPI.
//!
//! Open MPI 4 and 5 share one binary interface (`libmpi.so.40`): handles are pointers, the predefined ones are
//! exported objects (`ompi_mpi_comm_world`), a status is 24 bytes that begin with source and tag. Other MPIs differ
//! (MPICH's handles are integers), so the version text is asked for before anything else is called.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicUsize;

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use super::MpiError;

/// Variable that names the library when it is not found by its usual names.
pub(super) const LIBRARY_VARIABLE: &str = "BURNISH_MPI_LIBRARY";

/// Names under which the loader knows the library.
const NAMES: &[&str] = if cfg!(target_os = "macos") {
    &["libmpi.40.dylib", "/opt/homebrew/lib/libmpi.40.dylib", "/usr/local/lib/libmpi.40.dylib"]
} else {
    &["libmpi.so.40", "/usr/lib64/openmpi/lib/libmpi.so.40"]
};

/// A handle of Open MPI: a pointer that this side never reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Handle(*mut c_void);

// SAFETY: a handle is only passed back to the library, which is initialised for calls from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; a shared handle is never read through.
unsafe impl Sync for Handle {}

/// `MPI_Status` of Open MPI 4 and 5.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Status {
    pub(super) source: c_int,
    pub(super) tag: c_int,
    pub(super) error: c_int,
    pub(super) cancelled: c_int,
    pub(super) bytes: usize,
}

/// Matches any sender in a receive (`MPI_ANY_SOURCE`).
pub(super) const ANY_SOURCE: c_int = -1;
/// `MPI_THREAD_MULTIPLE`: calls from any thread at any time.
pub(super) const THREAD_MULTIPLE: c_int = 3;
/// `MPI_SUCCESS`.
const SUCCESS: c_int = 0;
/// `MPI_MAX_LIBRARY_VERSION_STRING` and `MPI_MAX_ERROR_STRING` are 256 in Open MPI; other MPIs go up to 8192.
const TEXT: usize = 8192;

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions used, by their symbols.
        #[derive(Debug, Clone, Copy)]
        struct Functions { $($field: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Functions {
            fn load(loaded: &Loaded, path: &str) -> Result<Self, MpiError> {
                Ok(Self { $(
                    // SAFETY: the symbol is a function of Open MPI with the signature that the MPI standard gives
                    // it, handles being pointers; `version` was asked before, so the library is Open MPI.
                    $field: unsafe { *symbol::<unsafe extern "C" fn($($argument),*) -> c_int>(loaded, path, $symbol)? },
                )* })
            }
        }
    };
}

functions! {
    initialized = "MPI_Initialized" (*mut c_int);
    finalized = "MPI_Finalized" (*mut c_int);
    init_thread = "MPI_Init_thread" (*mut c_void, *mut c_void, c_int, *mut c_int);
    finalize = "MPI_Finalize" ();
    abort = "MPI_Abort" (Handle, c_int);
    comm_rank = "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size = "MPI_Comm_size" (Handle, *mut c_int);
    comm_dup = "MPI_Comm_dup" (Handle, *mut Handle);
    set_errhandler = "MPI_Comm_set_errhandler" (Handle, Handle);
    error_string = "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    isend = "MPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = "MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    test = "MPI_Test" (*mut Handle, *mut c_int, *mut Status);
    cancel = "MPI_Cancel" (*mut Handle);
}

/// An Open MPI library in this process. It is never unloaded: its threads and exit handlers stay.
#[derive(Debug)]
pub(super) struct Library {
    path: String,
    version: String,
    functions: Functions,
    world: Handle,
    byte: Handle,
    errors_return: Handle,
    /// Worlds over this library that have not ended. The last one ends MPI.
    pub(super) worlds: AtomicUsize,
}

/// A request that has not been seen complete.
#[derive(Debug)]
pub(super) struct Request(Handle);

/// A call's failure before it is put into words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code {
    pub(super) function: &'static str,
    pub(super) code: c_int,
}

impl Library {
    /// Loads the library: the one that `BURNISH_MPI_LIBRARY` names, else by its usual names.
    ///
    /// # Errors
    /// [`MpiError::Missing`] when none can be loaded, [`MpiError::Foreign`] when it is not Open MPI,
    /// [`MpiError::Symbol`] when it lacks something.
    pub(super) fn open() -> Result<Self, MpiError> {
        match std::env::var_os(LIBRARY_VARIABLE) {
            Some(named) if !named.is_empty() => Self::open_one_of(&[named]),
            _ => Self::open_one_of(&NAMES.iter().map(OsString::from).collect::<Vec<_>>()),
        }
    }

    /// Loads the first of `names` that the loader finds.
    pub(super) fn open_one_of(names: &[OsString]) -> Result<Self, MpiError> {
        let mut said = String::new();
        for name in names {
            // Global, because Open MPI's own plugins look its symbols up there.
            // SAFETY: the initialisers of a system library run; Open MPI's only set up its own tables.
            match unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(loaded) => return Self::bind(loaded, name.to_string_lossy().into_owned()),
                Err(error) => {
                    // What the loader itself said lies one level below.
                    let loader = std::error::Error::source(&error);
                    said = loader.map_or_else(|| error.to_string(), ToString::to_string);
                }
            }
        }
        let tried: Vec<String> = names.iter().map(|name| format!("`{}`", name.to_string_lossy())).collect();
        Err(MpiError::Missing { tried: tried.join(", "), said })
    }

    fn bind(loaded: Loaded, path: String) -> Result<Self, MpiError> {
        let version = version(&loaded, &path)?;
        if !version.starts_with("Open MPI") {
            return Err(MpiError::Foreign { path, version });
        }
        let object = |name: &'static str| -> Result<Handle, MpiError> {
            // SAFETY: in Open MPI the predefined handles are the addresses of exported objects; only the address
            // is taken, nothing is read.
            unsafe { symbol::<Handle>(&loaded, &path, name) }.map(|found| Handle(found.into_raw()))
        };
        let (world, byte) = (object("ompi_mpi_comm_world")?, object("ompi_mpi_byte")?);
        let errors_return = object("ompi_mpi_errors_return")?;
        let functions = Functions::load(&loaded, &path)?;
        std::mem::forget(loaded);
        let worlds = AtomicUsize::new(0);
        Ok(Self { path, version, functions, world, byte, errors_return, worlds })
    }

    /// Name or path that it was loaded by.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// First line of its version text, such as `Open MPI v4.1.4, ...`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The communicator of all ranks.
    pub(super) fn world(&self) -> Handle {
        self.world
    }

    /// Whether MPI was initialised, and whether it was finalised, in this process.
    pub(super) fn life(&self) -> (bool, bool) {
        let (mut initialised, mut finalised) = (0, 0);
        // SAFETY: both may be called at any time, and each writes one int.
        unsafe {
            (self.functions.initialized)(&raw mut initialised);
            (self.functions.finalized)(&raw mut finalised);
        }
        (initialised != 0, finalised != 0)
    }

    /// Starts MPI for calls from several threads; gives the thread level provided.
    pub(super) fn init(&self) -> Result<c_int, Code> {
        let mut provided = 0;
        // SAFETY: null arguments are allowed for argc and argv; the caller saw that MPI is not initialised.
        let code = unsafe {
            (self.functions.init_thread)(ptr::null_mut(), ptr::null_mut(), THREAD_MULTIPLE, &raw mut provided)
        };
        checked("MPI_Init_thread", code).map(|()| provided)
    }

    /// A communicator of all ranks of the job that is this crate's own, and that returns errors.
    pub(super) fn own_world(&self) -> Result<Handle, Code> {
        let mut own = Handle(ptr::null_mut());
        // SAFETY: MPI is initialised; world and the error handler are Open MPI's predefined handles, and `own` is
        // valid for one write.
        unsafe {
            checked(
                "MPI_Comm_set_errhandler",
                (self.functions.set_errhandler)(self.world, self.errors_return),
            )?;
            checked("MPI_Comm_dup", (self.functions.comm_dup)(self.world, &raw mut own))?;
            checked("MPI_Comm_set_errhandler", (self.functions.set_errhandler)(own, self.errors_return))?;
        }
        Ok(own)
    }

    /// This process's rank in `of`, and the number of ranks there.
    pub(super) fn place(&self, of: Handle) -> Result<(usize, usize), Code> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: `of` is a communicator of an initialised MPI; each call writes one int.
        unsafe {
            checked("MPI_Comm_rank", (self.functions.comm_rank)(of, &raw mut rank))?;
            checked("MPI_Comm_size", (self.functions.comm_size)(of, &raw mut size))?;
        }
        Ok((usize::try_from(rank).unwrap_or(0), usize::try_from(size).unwrap_or(0)))
    }

    /// Begins to send `bytes` bytes at `from`.
    ///
    /// # Safety
    /// `from` must be readable for `bytes` bytes, and stay so, unchanged, until the request is complete.
    pub(super) unsafe fn send(
        &self,
        from: *const u8,
        bytes: c_int,
        to: c_int,
        tag: c_int,
        within: Handle,
    ) -> Result<Request, Code> {
        let mut request = Handle(ptr::null_mut());
        // SAFETY: the buffer is the caller's promise; type and communicator are handles of this library.
        let code = unsafe {
            (self.functions.isend)(from.cast(), bytes, self.byte, to, tag, within, &raw mut request)
        };
        checked("MPI_Isend", code).map(|()| Request(request))
    }

    /// Begins to receive at most `bytes` bytes into `into`.
    ///
    /// # Safety
    /// `into` must be writable for `bytes` bytes, and be touched by nothing else until the request is complete.
    pub(super) unsafe fn receive(
        &self,
        into: *mut u8,
        bytes: c_int,
        from: c_int,
        tag: c_int,
        within: Handle,
    ) -> Result<Request, Code> {
        let mut request = Handle(ptr::null_mut());
        // SAFETY: the buffer is the caller's promise; type and communicator are handles of this library.
        let code = unsafe {
            (self.functions.irecv)(into.cast(), bytes, self.byte, from, tag, within, &raw mut request)
        };
        checked("MPI_Irecv", code).map(|()| Request(request))
    }

    /// Lets MPI go on, and says whether the request is complete. A complete one must not be tested again.
    pub(super) fn test(&self, request: &mut Request) -> Result<Option<Status>, Code> {
        let (mut done, mut status) = (0, Status::default());
        // SAFETY: the request came from `send` or `receive` of this library and is not complete yet; `Status` has
        // Open MPI's size and order of fields.
        let code = unsafe { (self.functions.test)(&raw mut request.0, &raw mut done, &raw mut status) };
        checked("MPI_Test", code).map(|()| (done != 0).then_some(status))
    }

    /// Asks MPI to give up a receive; `test` then completes it.
    pub(super) fn cancel(&self, request: &mut Request) -> Result<(), Code> {
        // SAFETY: the request came from `receive` of this library and is not complete yet.
        checked("MPI_Cancel", unsafe { (self.functions.cancel)(&raw mut request.0) })
    }

    /// Ends MPI in this process; waits for the other ranks to do so too.
    pub(super) fn finalize(&self) -> Result<(), Code> {
        // SAFETY: the caller saw that MPI is initialised and not finalised, and no request is left.
        checked("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    /// Ends every rank of the job with `code`. Returns only when MPI is not running.
    pub(super) fn abort(&self, code: c_int) {
        if let (true, false) = self.life() {
            // SAFETY: MPI is running, and world is its predefined communicator.
            unsafe { (self.functions.abort)(self.world, code) };
        }
    }

    /// Puts a failed call into words.
    pub(super) fn error(&self, rank: usize, failed: Code) -> MpiError {
        let mut text = [0 as c_char; TEXT];
        let mut length = 0;
        // SAFETY: the buffer is larger than MPI_MAX_ERROR_STRING and was zeroed, so it ends with a nul.
        let text = unsafe {
            (self.functions.error_string)(failed.code, text.as_mut_ptr(), &raw mut length);
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        };
        MpiError::Call { rank, function: failed.function, code: failed.code, text }
    }
}

fn checked(function: &'static str, code: c_int) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(Code { function, code }) }
}

/// Looks a symbol up.
///
/// # Safety
/// `T` must be the symbol's type.
unsafe fn symbol<T>(
    loaded: &Loaded,
    path: &str,
    name: &'static str,
) -> Result<libloading::os::unix::Symbol<T>, MpiError> {
    // SAFETY: the type is the caller's promise.
    unsafe { loaded.get(name) }.map_err(|_| MpiError::Symbol { path: path.to_owned(), symbol: name })
}

/// The first line of what the library says of itself. Every MPI has this function, in one binary interface.
fn version(loaded: &Loaded, path: &str) -> Result<String, MpiError> {
    type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // SAFETY: the MPI standard gives this function this signature in every MPI.
    let Ok(ask) = (unsafe { symbol::<Version>(loaded, path, "MPI_Get_library_version") }) else {
        let version = "no MPI at all: it has no MPI_Get_library_version".to_owned();
        return Err(MpiError::Foreign { path: path.to_owned(), version });
    };
    let mut text = [0 as c_char; TEXT];
    let mut length = 0;
    // SAFETY: it may be called before MPI_Init; the buffer is as long as the longest text of any MPI known, and was
    // zeroed, so it ends with a nul.
    let text = unsafe {
        ask(text.as_mut_ptr(), &raw mut length);
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    };
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
