//! Memory that outlives a call: per-thread scratch, and a pool of large buffers shared by all threads.
//!
//! Fresh pages cost more than the arithmetic done in them (above 32 MiB every allocation is mapped anew), so
//! kernels take their working memory here. Contents are whatever the last user left.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// `len` floats at a 64-byte boundary, uninitialised.
struct Aligned {
    ptr: *mut f32,
    len: usize,
}

// SAFETY: the pointer is owned and unique.
unsafe impl Send for Aligned {}

impl Aligned {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len * 4, 64).expect("invariant: scratch is below isize::MAX bytes")
    }

    fn new(len: usize) -> Self {
        let len = len.max(16).next_multiple_of(16);
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc(Self::layout(len)) }.cast::<f32>();
        if ptr.is_null() {
            handle_alloc_error(Self::layout(len));
        }
        Self { ptr, len }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.ptr.cast(), Self::layout(self.len)) }
    }
}

/// Takes the smallest buffer that fits; when none does, a new one replaces the largest there is.
fn take(kept: &mut Vec<Aligned>, len: usize) -> Aligned {
    let fits = kept.iter().enumerate().filter(|(_, b)| b.len >= len).min_by_key(|(_, b)| b.len);
    if let Some((at, _)) = fits {
        return kept.swap_remove(at);
    }
    if let Some((at, _)) = kept.iter().enumerate().max_by_key(|(_, b)| b.len) {
        kept.swap_remove(at);
    }
    Aligned::new(len)
}

thread_local! { static LOCAL: RefCell<Vec<Aligned>> = const { RefCell::new(Vec::new()) }; }

/// Uninitialised floats of this thread, kept for its next use of them.
pub(crate) struct Held(Option<Aligned>);

impl Held {
    /// At least `len` floats, 64-byte aligned.
    pub(crate) fn take(len: usize) -> Self {
        Self(Some(LOCAL.with_borrow_mut(|kept| take(kept, len))))
    }

    /// The buffer's start.
    pub(crate) fn ptr(&self) -> *mut f32 {
        self.0.as_ref().map_or(std::ptr::null_mut(), |b| b.ptr)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        LOCAL.with_borrow_mut(|kept| kept.extend(self.0.take()));
    }
}

/// Runs `work` on at least `len` uninitialised floats (64-byte aligned) that belong to this thread.
///
/// Calls may nest. The buffer is kept for the next call on the thread.
pub(crate) fn scratch<R>(len: usize, work: impl FnOnce(*mut f32) -> R) -> R {
    let buffer = Held::take(len);
    work(buffer.ptr())
}

static POOL: Mutex<Vec<Aligned>> = Mutex::new(Vec::new());
/// Buffers kept in the pool; ranks of one process take a few each.
const POOL_KEPT: usize = 16;

/// Floats (32 MiB) above which [`Pooled::passing`] buffers go back to the system.
const PASSING: usize = 8 << 20;

/// A buffer of at least the asked floats, given back to the pool when dropped.
pub(crate) struct Pooled {
    buffer: Option<Aligned>,
    kept: bool,
}

impl Pooled {
    /// A buffer of at least `len` uninitialised floats, 64-byte aligned.
    pub(crate) fn take(len: usize) -> Self {
        let buffer = take(&mut POOL.lock().unwrap_or_else(PoisonError::into_inner), len);
        Self { buffer: Some(buffer), kept: true }
    }

    /// A buffer for a call that holds little else: a large one is the system's again when dropped.
    pub(crate) fn passing(len: usize) -> Self {
        if len > PASSING { Self { buffer: Some(Aligned::new(len)), kept: false } } else { Self::take(len) }
    }

    /// The buffer's start.
    pub(crate) fn ptr(&self) -> Ptr {
        Ptr(self.buffer.as_ref().map_or(std::ptr::null_mut(), |b| b.ptr))
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let kept = self.kept;
        if let Some(buffer) = self.buffer.take().filter(|_| kept) {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            pool.push(buffer);
            if pool.len() > POOL_KEPT
                && let Some((at, _)) = pool.iter().enumerate().min_by_key(|(_, b)| b.len)
            {
                pool.swap_remove(at);
            }
        }
    }
}

/// A pointer that tasks share; each task writes its own part.
#[derive(Clone, Copy)]
pub(crate) struct Ptr(pub(crate) *mut f32);

// SAFETY: whoever dereferences it upholds the absence of races.
unsafe impl Send for Ptr {}
// SAFETY: as above.
unsafe impl Sync for Ptr {}

impl Ptr {
    /// The pointer `offset` floats on.
    ///
    /// # Safety
    /// The result must stay inside the allocation.
    #[inline(always)]
    pub(crate) unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { self.0.add(offset) }
    }
}

/// An output of `len` floats that the caller fills completely (zeroing first would double the memory traffic).
///
/// # Safety
/// Every element must be written before it is read.
pub(crate) unsafe fn uninit(len: usize) -> Vec<f32> {
    let mut v = Vec::with_capacity(len);
    // SAFETY: capacity is `len`; the caller writes the elements.
    #[allow(clippy::uninit_vec, reason = "the function's contract")]
    unsafe {
        v.set_len(len);
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_scratch_is_distinct_aligned_and_kept() {
        let first = scratch(100, |a| {
            scratch(100, |b| {
                assert_ne!(a, b);
                assert_eq!(a as usize % 64, 0);
                assert_eq!(b as usize % 64, 0);
            });
            a as usize
        });
        // Both buffers are kept: one of them comes back.
        let again = scratch(90, |a| a as usize);
        let other = scratch(90, |a| scratch(90, |b| [a as usize, b as usize]));
        assert!(other.contains(&first) && other.contains(&again));
    }

    #[test]
    fn a_pooled_buffer_holds_what_was_asked() {
        let a = Pooled::take(1000);
        let b = Pooled::take(1000);
        assert_ne!(a.ptr().0, b.ptr().0);
        // SAFETY: 1000 floats are there.
        unsafe { *a.ptr().at(999) = 1.0 };
    }
}
