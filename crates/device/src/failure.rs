//! `Failure`: kinds of device failures, parsed from the panic text of CubeCL.
//!
//! CubeCL reports a failed allocation or kernel where its result is read, as a panic with a text. That text is all there
//! is, so it is read here, in one place.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

/// A failure of a device, from the text of a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device's memory is full; `bytes` were asked for.
    OutOfMemory {
        /// The size of the allocation that failed.
        bytes: u64,
    },
    /// A kernel or the driver failed; nothing more can be computed on the device by this process.
    Broken {
        /// The first lines of what CubeCL says, without its backtrace.
        text: String,
    },
}

/// Texts before the size of a failed allocation.
const FULL: [&str; 4] = [
    "out of device memory allocating ",
    "can't allocate buffer of size: ",
    "OutOfMemory { size: ",
    "BufferTooBig { size: ",
];

/// Texts of other failures of CubeCL's server.
const BROKEN: [&str; 6] = [
    "The device is poisoned",
    "A launch error happened",
    "An error happened during execution",
    "A validation error happened during execution",
    "CUDA_ERROR_",
    "Error while reading data",
];

impl Failure {
    /// Reads the text of a panic; `None` if it does not come from a device.
    #[must_use]
    pub fn of(panic: &str) -> Option<Self> {
        let before = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        Self::after(before.as_deref(), panic)
    }

    /// [`Self::of`], where `before` is how a device's thread panicked before.
    fn after(before: Option<&str>, panic: &str) -> Option<Self> {
        for before in FULL {
            let Some((_, after)) = panic.split_once(before) else { continue };
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            return Some(Self::OutOfMemory { bytes: digits.parse().unwrap_or(0) });
        }
        let broken = BROKEN.iter().any(|mark| panic.contains(mark));
        broken.then(|| {
            let kept = panic.lines().map(str::trim).filter(|line| !line.is_empty());
            let kept: Vec<&str> = kept.take_while(|line| !line.starts_with("Backtrace")).take(6).collect();
            let mut text = kept.join(" ");
            if let Some(before) = before {
                text = format!("{text} (a thread of the device panicked before: {before})");
            }
            Self::Broken { text }
        })
    }
}

/// How one of CubeCL's threads panicked last: a kernel that cannot be made panics there, and where its result is read
/// only that there is none is said.
static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Panics that come from a device are not printed any more: they are errors where a result is read, and those of CubeCL's
/// own threads mostly tell of a kernel that was tried and given up. The last of those is told with the error.
pub fn quiet() {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let of_device =
            thread.name().is_some_and(|name| name.starts_with("DSD-") || name.starts_with("DSU-"));
        if of_device {
            *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(line(panic));
        } else if Failure::of(&panic.to_string()).is_none() {
            other(panic);
        }
    }));
}

/// The first line of a panic's message, and where it happened.
fn line(panic: &PanicHookInfo<'_>) -> String {
    let message = panic.payload_as_str().unwrap_or("no message").lines().next().unwrap_or_default();
    match panic.location() {
        Some(place) => format!("{message} at {}:{}", place.file(), place.line()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_is_told_from_a_broken_one() {
        let full =
            "Error: A io error\nCaused by:\n  out of device memory allocating 4096 bytes\nBacktrace:\n 0: x";
        assert_eq!(Failure::after(None, full), Some(Failure::OutOfMemory { bytes: 4096 }));
        let debug = "Error while reading data: Server(Io(BufferTooBig { size: 77, backtrace: ... }))";
        assert_eq!(Failure::after(None, debug), Some(Failure::OutOfMemory { bytes: 77 }));
        let broken = "A launch error happened\nCaused by:\n  no kernel image\nBacktrace:\n 0: main";
        let text = "A launch error happened Caused by: no kernel image".to_owned();
        assert_eq!(Failure::after(None, broken), Some(Failure::Broken { text }));
        assert_eq!(Failure::after(None, "index out of bounds: the len is 3"), None);
    }

    #[test]
    fn a_kernel_that_cannot_be_made_is_told_where_its_result_is_read() {
        quiet();
        let thread = std::thread::Builder::new().name("DSD-0".to_owned());
        let made = thread.spawn(|| panic!("no such vector\nand more")).expect("a thread starts");
        assert!(made.join().is_err());
        let read = "Error while reading data: The bytes were never written";
        let Some(Failure::Broken { text }) = Failure::of(read) else { panic!("a device's failure") };
        assert!(text.starts_with(read) && text.contains("no such vector at "), "{text}");
        assert!(!text.contains("and more"), "{text}");
    }
}
