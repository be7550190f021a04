//! The heap of the process: what tensors on the CPU are allocated from.

use std::time::Duration;

/// Lets glibc's allocator keep what is freed for the next tensors of the process. To be called once, at the start of
/// the program; elsewhere than under glibc, and where the environment sets the allocator's options, it does nothing.
///
/// A training step frees hundreds of megabytes and asks for them again. By default glibc gives the top of the heap back
/// to the system and maps larger blocks one by one, so that every step faults the same pages in anew: a quarter of a
/// million faults for five steps of a 30M model with recompute, 3 % of its time. The largest resident size does not
/// change: the next step needs the memory again.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !environment_sets_allocator() {
        /// The largest threshold that glibc takes.
        const LARGEST_BLOCK: libc::c_int = 32 << 20;
        // SAFETY: the two calls set numbers that the allocator reads under its own locks, at any time.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        }
    }
}

/// [`keep_freed_memory`] of blocks of any size. To be called where training begins: what a load frees before it goes back to
/// the system at once.
///
/// glibc maps a block above 32 MiB on its own whatever its threshold, unless it is to map none. Gate and up of a 1B model are
/// one of 64 MiB for 1024 tokens, in each layer and each recomputation: without it half a million faults in a step, 8 % of its
/// time. The largest resident size does not change.
pub fn keep_large_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !environment_sets_allocator() {
        // SAFETY: sets a number that the allocator reads under its own locks, at any time.
        unsafe { libc::mallopt(libc::M_MMAP_MAX, 0) };
    }
}

/// Whether who started the program has set the allocator's options.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn environment_sets_allocator() -> bool {
    ["GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"]
        .into_iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// Gives memory that has been freed back to the system, where the step that needs it again lasts so long that faulting it in
/// costs less than a hundredth of it; elsewhere than under glibc it does nothing.
///
/// Between two steps little is alive. What a step allocates first settles in the gaps that the step before has left, and
/// what is larger than they are lies behind them: without this the heap of a 0.6B model grows by 65 MiB in four steps.
pub fn give_back_freed_memory(step: Duration) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// What a page costs when it is used again.
        const FAULT: Duration = Duration::from_nanos(800);
        /// Bytes of a page.
        const PAGE: u32 = 4096;
        // SAFETY: reads the allocator's counts under its own locks. They wrap at 4 GiB, where too little is expected of a
        // step that is long anyway.
        #[allow(clippy::cast_sign_loss, reason = "a count of bytes in an `int`, wrapped")]
        let free = unsafe { libc::mallinfo() }.fordblks as u32;
        if FAULT * (free / PAGE) * 100 < step {
            // SAFETY: gives back pages in which nothing is allocated, under the allocator's locks.
            unsafe { libc::malloc_trim(0) };
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = step;
}
