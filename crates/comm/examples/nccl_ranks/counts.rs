//! Counts of the fake driver, where it is the driver.

use libloading::os::unix::Library;

/// The counts of `fake_cuda_counts` (see tests/fake-cuda).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) launches: u64,
    pub(crate) synchronizations: u64,
    pub(crate) device_to_host: u64,
    pub(crate) device_to_host_bytes: u64,
    pub(crate) host_to_device: u64,
    pub(crate) host_to_device_bytes: u64,
    pub(crate) device_to_device: u64,
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) collectives: u64,
    pub(crate) communicators: u64,
    pub(crate) aborts: u64,
    pub(crate) faults: u64,
    pub(crate) instructions: u64,
    pub(crate) products: u64,
    pub(crate) kernel_reads: u64,
    pub(crate) kernel_writes: u64,
    pub(crate) atomic_sums: u64,
    pub(crate) executing_us: u64,
    pub(crate) compiled: u64,
    pub(crate) compiling_us: u64,
    pub(crate) kept: u64,
}

/// The counts of this process so far; `None` over a real driver.
pub(crate) fn now() -> Option<Counts> {
    // SAFETY: the driver is loaded already; this counts one more user.
    let driver = unsafe { Library::new("libcuda.so.1") }.ok()?;
    // SAFETY: the function has this signature in the only driver that has it.
    let counts = unsafe { driver.get::<unsafe extern "C" fn(*mut Counts)>(b"fake_cuda_counts") }.ok()?;
    let mut now = Counts::default();
    // SAFETY: it writes the counts, which have the same layout there.
    unsafe { counts(&raw mut now) };
    Some(now)
}
