//! Counts of the driver's and the kernels' work.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use crate::lock;

macro_rules! counts {
    (
        given: { $($(#[doc = $text:literal])* $name:ident,)* }
        reported: { $($(#[doc = $more_text:literal])* $more:ident,)* }
    ) => {
        /// The counts of a process, as `fake_cuda_counts` gives them: callers have this layout too.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Counts { $($(#[doc = $text])* $name: u64,)* }

        /// The running counts.
        pub(crate) struct Running {
            $(pub(crate) $name: AtomicU64,)*
            $($(#[doc = $more_text])* pub(crate) $more: AtomicU64,)*
        }

        pub(crate) static RUNNING: Running =
            Running { $($name: AtomicU64::new(0),)* $($more: AtomicU64::new(0),)* };

        fn now() -> Counts {
            Counts { $($name: RUNNING.$name.load(Ordering::Relaxed),)* }
        }

        fn json() -> String {
            let counts = now();
            let more = [$((stringify!($more), RUNNING.$more.load(Ordering::Relaxed))),*];
            let all = [$((stringify!($name), counts.$name)),*].into_iter().chain(more);
            let lines: Vec<_> = all.map(|(name, count)| format!("  \"{name}\": {count}")).collect();
            format!("{{\n{},\n  \"kernels\": {{\n{}\n  }}\n}}\n", lines.join(",\n"), kernels())
        }
    };
}

counts! {
    given: {
        /// Kernels launched.
        launches,
        /// Times that the host waited for a stream, an event or a context.
        synchronizations,
        /// Copies from a device to the host.
        device_to_host,
        /// Their bytes.
        device_to_host_bytes,
        /// Copies from the host to a device.
        host_to_device,
        /// Their bytes.
        host_to_device_bytes,
        /// Copies from device memory to device memory.
        device_to_device,
        /// Allocations of device memory.
        allocations,
        /// Bytes of device memory that are allocated.
        allocated_bytes,
        /// The most there were.
        peak_bytes,
        /// Collectives and groups of sends and receives that were begun.
        collectives,
        /// Communicators that were made.
        communicators,
        /// Communicators that were aborted.
        aborts,
        /// Uses of memory that is not there, and other faults of kernels.
        faults,
        /// Instructions of warps that they executed.
        instructions,
        /// Products of matrices (`wmma`, `mma`) among them.
        products,
        /// Bytes of device memory that threads read.
        kernel_reads,
        /// Bytes of device memory that threads wrote.
        kernel_writes,
        /// Atomic sums of floats, whose order is the hardware's.
        atomic_sums,
        /// Microseconds that kernels were executed.
        executing_us,
        /// Programs that the real compiler compiled.
        compiled,
        /// Microseconds that it took.
        compiling_us,
        /// Programs whose PTX was kept from an earlier time.
        kept,
    }
    reported: {
        /// Graphs that streams captured.
        graphs,
        /// Launches of graphs: calls of the host.
        graph_launches,
        /// Kernels that they launched, which `launches` and the launches by kernel count too.
        graph_kernels,
    }
}

/// Launches by kernel, without the digest that ends a name.
static KERNELS: Mutex<Option<BTreeMap<String, u64>>> = Mutex::new(None);

/// One more launch of the kernel.
pub(crate) fn launched(kernel: &str) {
    let name = kernel.rsplit_once('_').map_or(kernel, |(name, _)| name);
    let mut all = lock(&KERNELS);
    let all = all.get_or_insert_default();
    match all.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            all.insert(name.to_owned(), 1);
        }
    }
}

fn kernels() -> String {
    let all = lock(&KERNELS);
    // Names of kernels are letters, digits and underscores.
    let lines = all.iter().flatten().map(|(name, count)| format!("    \"{name}\": {count}"));
    lines.collect::<Vec<_>>().join(",\n")
}

/// One more.
pub(crate) fn one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// One more, of so many bytes.
pub(crate) fn bytes(count: &AtomicU64, of: &AtomicU64, bytes: usize) {
    one(count);
    of.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Gives the counts so far.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_counts(counts: &mut MaybeUninit<Counts>) {
    counts.write(now());
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

extern "C" fn report() {
    if let Ok(file) = std::env::var("FAKE_CUDA_REPORT") {
        let file = file.replace("{pid}", &std::process::id().to_string());
        if let Err(error) = std::fs::write(&file, json()) {
            eprintln!("fake CUDA: cannot write {file}: {error}");
        }
    }
}

/// Has the report written when the process ends.
pub(crate) fn report_at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: the C library calls the function at exit, when this library is still loaded: nothing unloads it.
    ONCE.call_once(|| unsafe {
        atexit(report);
    });
}
