//! CUDA's driver and NCCL without a device: the C interfaces as far as burnish and CubeCL's CUDA runtime call them, so
//! that everything around the kernels runs, and is tested, on machines without a GPU.
//!
//! Links named `libcuda.so.1` and `libnccl.so.2` (`libcuda.so` and `libnccl.so` too, where cudarc looks) that point to
//! this library, in a folder of the loader's path, make it the driver. It is one file, so it is loaded once and both
//! halves share their state.
//!
//! * Each stream is a queue with a thread of its own: what is not ordered by a stream, an event or a wait happens in
//!   any order.
//! * Device memory is host memory behind addresses that are never given out twice and mean nothing to the host: a use
//!   after a free, or beyond an end, is `CUDA_ERROR_ILLEGAL_ADDRESS`, which stays. New memory is not zero.
//! * Kernels in PTX are executed by the interpreter in `tests/ptx`: blocks one after the other, while everything else
//!   that uses memory waits. A fault of one is the device's, and said on standard error. Those that
//!   `FAKE_CUDA_SKIP` names do nothing, as kernels in other forms do.
//! * NCCL's ranks find each other by Unix sockets, from threads and from processes. Sums are taken from the last rank
//!   to the first, since nothing may depend on their order. Where the communicator does not block, work starts only
//!   when its state has been asked for twice.
//! * Streams can be captured, and the graphs launched, as far as CubeCL does so: their nodes are done one after the other,
//!   on the stream that launches them. What a driver would refuse in a capture is refused (`capture.rs`).
//! * The time between two events is that of the work between them: a nanosecond for each instruction that a warp
//!   executed, and a second for each kernel that does nothing. So it is the same each time, and so is what tuning chooses by
//!   it; probes of the hardware, which are skipped, find it slow, and tuning takes the first kernel that runs.
//! * Under the name of NVRTC it passes programs on to the real one (`FAKE_CUDA_COMPILER`, its file), once for each: what it
//!   wrote is kept in the folder `FAKE_CUDA_KEPT`, for all processes. With `FAKE_CUDA_CUBIN` (1) it gives the hardware's code where
//!   PTX is asked for, which nothing here executes: for a cache of kernels that a real driver need not assemble.
//!
//! Variables: `FAKE_CUDA_DEVICES` (1), `FAKE_CUDA_MEMORY` (bytes of each device, 16 GiB), `FAKE_CUDA_JITTER` (0, most
//! microseconds that a stream waits before each piece of work), `FAKE_CUDA_REPORT` (a file that gets counts, and launches by kernel, as JSON
//! at exit; `{pid}` in its name is the process), `FAKE_CUDA_ARCH` (90: which hardware the devices say they are),
//! `FAKE_CUDA_SKIP` (beginnings of the names of kernels that do nothing, between commas, or `all`),
//! `FAKE_CUDA_ANSWER` (a number that the host reads in every f32, where kernels do nothing and a run must go on), `FAKE_CUDA_MODULES`
//! (a folder that every module's text is kept in), `FAKE_CUDA_TRACE` (1: failures of functions on standard error),
//! `FAKE_NCCL_DIR` (the temporary folder), `FAKE_NCCL_FAULT` (see
//! `fault.rs`).

mod capture;
mod code;
mod compiler;
mod counts;
mod driver;
mod event;
mod exchange;
mod fault;
mod graph;
mod kernels;
mod memory;
mod nccl;
mod node;
mod reduce;
mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A number from the environment.
fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(otherwise)
}

/// Locks, also after a panic of another holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
