//! `Failure`: kinds of device failures, parsed from the panic text of CubeCL.
//!
//! CubeCL reports a failed allocation or kernel where its result is read, as a panic with a text. That text is all there
//! is, so it is read here, in one place.

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
        for before in FULL {
            let Some((_, after)) = panic.split_once(before) else { continue };
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            return Some(Self::OutOfMemory { bytes: digits.parse().unwrap_or(0) });
        }
        let broken = BROKEN.iter().any(|mark| panic.contains(mark));
        broken.then(|| {
            let kept = panic.lines().map(str::trim).filter(|line| !line.is_empty());
            let kept: Vec<&str> = kept.take_while(|line| !line.starts_with("Backtrace")).take(6).collect();
            Self::Broken { text: kept.join(" ") }
        })
    }
}

/// Panics that come from a device are not printed any more: they are errors where a result is read, and those of CubeCL's
/// own threads mostly tell of a kernel that was tried and given up.
pub fn quiet() {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let of_device =
            thread.name().is_some_and(|name| name.starts_with("DSD-") || name.starts_with("DSU-"));
        if !of_device && Failure::of(&panic.to_string()).is_none() {
            other(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_is_told_from_a_broken_one() {
        let full =
            "Error: A io error\nCaused by:\n  out of device memory allocating 4096 bytes\nBacktrace:\n 0: x";
        assert_eq!(Failure::of(full), Some(Failure::OutOfMemory { bytes: 4096 }));
        let debug = "Error while reading data: Server(Io(BufferTooBig { size: 77, backtrace: ... }))";
        assert_eq!(Failure::of(debug), Some(Failure::OutOfMemory { bytes: 77 }));
        let broken = "A launch error happened\nCaused by:\n  no kernel image\nBacktrace:\n 0: main";
        let text = "A launch error happened Caused by: no kernel image".to_owned();
        assert_eq!(Failure::of(broken), Some(Failure::Broken { text }));
        assert_eq!(Failure::of("index out of bounds: the len is 3"), None);
    }
}
