//! Parallel regions, and how rows are cut into chunks.
//!
//! Chunks depend on shapes alone, never on the number of threads: so do the bits of every result.

use rayon::prelude::*;

/// Runs `work(0..n)` on the pool, each index a task of its own.
pub(crate) fn tasks(n: usize, work: impl Fn(usize) + Send + Sync) {
    if n <= 1 {
        (0..n).for_each(work);
    } else {
        (0..n).into_par_iter().with_max_len(1).for_each(work);
    }
}

/// [`tasks`], on this thread alone where the work is so little that waking others costs more: `work_size` counts
/// multiplications or elements moved, of all tasks together.
pub(crate) fn few_tasks(n: usize, work_size: usize, work: impl Fn(usize) + Send + Sync) {
    if work_size <= LITTLE {
        (0..n).for_each(work);
    } else {
        tasks(n, work);
    }
}

/// About 10 microseconds of one core.
const LITTLE: usize = 64 << 10;

/// Runs `work` on a thread of the pool: the parallel regions inside start without waking anyone from outside, which of a
/// decoding step with its many short ones is a good part.
///
/// `work` must not wait for another thread that may itself need the pool.
pub fn on_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

/// `n` in as few parts of at most `most` as there may be, as even as they can be: where each begins, and its length.
#[inline(always)]
pub(crate) fn evenly(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let (mut begin, parts) = (0, n.div_ceil(most));
    (0..parts).map(move |part| {
        let length = (n - begin).div_ceil(parts - part);
        begin += length;
        (begin - length, length)
    })
}

/// Rows of a chunk such that its packed activations, `widest` columns, stay in the second-level cache.
pub(crate) fn chunk_rows(tokens: usize, widest: usize) -> usize {
    let most = if widest > 640 { 64 } else { 128 };
    tokens.div_ceil(8).next_multiple_of(8).clamp(16, most)
}

/// Chunks of rows, and the slots that gather per-chunk sums: slot `s` owns the chunks `of(s)`, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) chunks: usize,
    pub(crate) count: usize,
}

impl Slots {
    /// `partial` is the floats a slot holds; slots stay below 64 and (past eight) below 64 MiB together.
    pub(crate) fn new(chunks: usize, partial: usize) -> Self {
        let fit = ((16 << 20) / partial.max(1)).max(8);
        Self { chunks, count: chunks.min(64).min(fit) }
    }

    pub(crate) fn of(self, slot: usize) -> std::ops::Range<usize> {
        slot * self.chunks / self.count..(slot + 1) * self.chunks / self.count
    }
}

/// Elements of one task of an elementwise kernel.
pub(crate) const SLICE: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_cover_the_chunks_in_order() {
        for (chunks, partial) in [(1, 1), (7, 1000), (64, 10), (1000, 1 << 20), (65, 1 << 30)] {
            let slots = Slots::new(chunks, partial);
            let all: Vec<usize> = (0..slots.count).flat_map(|s| slots.of(s)).collect();
            assert_eq!(all, (0..chunks).collect::<Vec<_>>());
            assert!((0..slots.count).all(|s| !slots.of(s).is_empty()));
        }
    }
}
