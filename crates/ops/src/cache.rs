//! Keys and values of sequences being generated, one cache per layer.
//!
//! Sequences are independent: each has as many positions as it has said, nothing is padded. Keys are kept normed and
//! rotated, as they were when their token came.

use std::ops::Range;

use crate::attention::{AttentionShape, HeadNorm, Rotary};
#[cfg(feature = "cube")]
use crate::gpu::Pages;
use crate::gpu::Past;
use crate::{AnyTensor, OpsError};

const OP: &str = "cached attention";

/// Runs several operations of a few tokens, such as `like`, as one parallel region, where the backend has such.
///
/// `work` must not wait for other ranks: those of this process share the threads.
pub fn together<R: Send>(like: &AnyTensor, work: impl FnOnce() -> R + Send) -> R {
    #[cfg(feature = "flex")]
    if crate::flex::holds([like]) {
        return burnish_cpu_kernels::on_pool(work);
    }
    let _ = like;
    work()
}

/// What a layer's attention has seen of each sequence.
#[derive(Clone, Debug)]
pub struct KvCache {
    shape: AttentionShape,
    store: Store,
}

#[derive(Clone, Debug)]
enum Store {
    /// No token yet, so no backend: the number of sequences.
    Empty(usize),
    #[cfg(feature = "flex")]
    Kernels(burnish_cpu_kernels::KvCache),
    /// Kernels of GPUs.
    #[cfg(feature = "cube")]
    Paged(Box<Pages>),
    /// Operations of Burn.
    Plain(Vec<Option<Past>>),
}

impl Store {
    /// `n` empty sequences of the same kind.
    fn like(&self, n: usize) -> Self {
        match self {
            Self::Empty(_) => Self::Empty(n),
            #[cfg(feature = "flex")]
            Self::Kernels(cache) => {
                Self::Kernels(burnish_cpu_kernels::KvCache::new(cache.kv_heads(), cache.head_dim(), n))
            }
            #[cfg(feature = "cube")]
            Self::Paged(_) => Self::Paged(Box::new(Pages::empty(n))),
            Self::Plain(_) => Self::Plain(vec![None; n]),
        }
    }
}

impl KvCache {
    /// An empty cache of `sequences` sequences.
    #[must_use]
    pub fn new(shape: AttentionShape, sequences: usize) -> Self {
        Self { shape, store: Store::Empty(sequences) }
    }

    /// Sequences held.
    #[must_use]
    pub fn sequences(&self) -> usize {
        match &self.store {
            Store::Empty(n) => *n,
            #[cfg(feature = "flex")]
            Store::Kernels(cache) => cache.sequences(),
            #[cfg(feature = "cube")]
            Store::Paged(pages) => pages.sequences(),
            Store::Plain(past) => past.len(),
        }
    }

    /// Positions held of one sequence.
    #[must_use]
    pub fn len(&self, sequence: usize) -> usize {
        match &self.store {
            Store::Empty(_) => 0,
            #[cfg(feature = "flex")]
            Store::Kernels(cache) => cache.len(sequence),
            #[cfg(feature = "cube")]
            Store::Paged(pages) => pages.len(sequence),
            Store::Plain(past) => past[sequence].as_ref().map_or(0, Past::len),
        }
    }

    /// Whether no sequence holds a position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        (0..self.sequences()).all(|s| self.len(s) == 0)
    }

    /// Bytes of storage held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::Empty(_) => 0,
            #[cfg(feature = "flex")]
            Store::Kernels(cache) => cache.bytes(),
            #[cfg(feature = "cube")]
            Store::Paged(pages) => pages.bytes(),
            Store::Plain(past) => past.iter().flatten().map(Past::bytes).sum(),
        }
    }

    /// Sequence `i` becomes what `order[i]` was; what is not named is freed, what is named twice is copied.
    ///
    /// # Errors
    /// If `order` names a sequence that is not held; the cache is then as before.
    pub fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        let limit = self.sequences();
        if let Some(&got) = order.iter().find(|&&o| o >= limit) {
            return Err(OpsError::Index { op: OP, got, limit });
        }
        match &mut self.store {
            Store::Empty(n) => *n = order.len(),
            #[cfg(feature = "flex")]
            Store::Kernels(cache) => cache.reorder(order),
            #[cfg(feature = "cube")]
            Store::Paged(pages) => pages.reorder(order),
            Store::Plain(past) => *past = order.iter().map(|&o| past[o].clone()).collect(),
        }
        Ok(())
    }

    /// Sequences that are `named` become empty.
    ///
    /// # Errors
    /// If `named` is not one entry per sequence.
    pub fn restart(&mut self, named: &[bool]) -> Result<(), OpsError> {
        let held = self.sequences();
        if named.len() != held {
            return Err(OpsError::Shape {
                op: OP,
                what: "named sequences",
                got: vec![named.len()],
                expected: vec![held],
            });
        }
        let begin = |(at, &named): (usize, &bool)| named && self.len(at) > 0;
        let anew: Vec<bool> = named.iter().enumerate().map(begin).collect();
        let count = anew.iter().filter(|&&anew| anew).count();
        if count == 0 {
            return Ok(());
        }
        self.append(Self::new(self.shape.clone(), count));
        let mut fresh = held..;
        let order: Vec<usize> = anew
            .iter()
            .enumerate()
            .map(|(at, &anew)| if anew { fresh.next().unwrap_or(at) } else { at })
            .collect();
        self.reorder(&order)
    }

    /// The sequences of `other` follow those that are here.
    ///
    /// # Panics
    /// If `other` is of another shape, or its keys live on another backend.
    pub fn append(&mut self, other: Self) {
        assert_eq!(self.shape, other.shape, "cached attention: the shape of what is appended");
        if let Store::Empty(n) = self.store {
            self.store = other.store.like(n);
        }
        let other = match other.store {
            Store::Empty(n) => self.store.like(n),
            held => held,
        };
        match (&mut self.store, other) {
            (Store::Empty(n), Store::Empty(more)) => *n += more,
            #[cfg(feature = "flex")]
            (Store::Kernels(cache), Store::Kernels(more)) => cache.append(more),
            #[cfg(feature = "cube")]
            (Store::Paged(pages), Store::Paged(more)) => pages.append(*more),
            (Store::Plain(past), Store::Plain(more)) => past.extend(more),
            _ => panic!("cached attention: what is appended lives on another backend"),
        }
    }

    /// Takes out the sequences from `at` on.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let store = match &mut self.store {
            Store::Empty(n) => {
                assert!(at <= *n, "cached attention: sequence {at} is outside 0..={n}");
                Store::Empty(std::mem::replace(n, at) - at)
            }
            #[cfg(feature = "flex")]
            Store::Kernels(cache) => Store::Kernels(cache.split_off(at)),
            #[cfg(feature = "cube")]
            Store::Paged(pages) => Store::Paged(Box::new(pages.split_off(at))),
            Store::Plain(past) => Store::Plain(past.split_off(at)),
        };
        Self { shape: self.shape.clone(), store }
    }

    /// Attention of new rows, each sequence over its own past and itself; the new rows join the cache. Plain tensors
    /// only: nothing is recorded for backward.
    ///
    /// `rotary.positions` index its table only; the cache itself knows how many positions precede.
    ///
    /// # Shapes
    /// - qkv: `[rows, (heads + 2 * kv_heads) * head_dim]`: queries, keys, values
    /// - documents: per sequence its new rows, an empty range where it has none
    /// - sinks: `[heads]`, as in [`attention`](crate::attention())
    /// - output: `[rows, heads * head_dim]`
    ///
    /// # Errors
    /// If shapes or dtypes do not fit, or the number of ranges is not that of the sequences; the cache is then as
    /// before.
    pub fn attend(
        &mut self,
        qkv: &AnyTensor,
        documents: &[Range<usize>],
        rotary: Option<&Rotary>,
        norm: Option<&HeadNorm>,
        sinks: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        let got = qkv.shape();
        let width = (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim;
        let rows = got.first().copied().unwrap_or(0);
        if got != [rows, width] {
            return Err(OpsError::Shape { op: OP, what: "qkv", got, expected: vec![rows, width] });
        }
        let one_of = |what, got: usize, expected: usize| match got == expected {
            true => Ok(()),
            false => Err(OpsError::Shape { op: OP, what, got: vec![got], expected: vec![expected] }),
        };
        one_of("documents", documents.len(), self.sequences())?;
        one_of("sinks", sinks.map_or(self.shape.heads, |s| s.shape().iter().product()), self.shape.heads)?;
        one_of("rotary positions", rotary.map_or(rows, |r| r.positions.len()), rows)?;
        if let Some(range) = documents.iter().find(|d| d.end > rows) {
            return Err(OpsError::Index { op: OP, got: range.end, limit: rows + 1 });
        }
        if let Store::Empty(n) = self.store {
            self.store = self.open(n, qkv);
        }
        match &mut self.store {
            #[cfg(feature = "flex")]
            Store::Kernels(cache) => {
                crate::flex::cache::attend(cache, qkv, &self.shape, documents, rotary, norm, sinks)
            }
            #[cfg(feature = "cube")]
            Store::Paged(pages) => pages.attend(qkv, &self.shape, documents, rotary, norm, sinks),
            Store::Plain(past) => {
                crate::gpu::attend_cached(past, qkv, &self.shape, documents, rotary, norm, sinks)
            }
            Store::Empty(_) => unreachable!("invariant: opened above"),
        }
    }

    /// Takes a place for one more position of each sequence: what the rows of a step of so many see, of which the first are the
    /// sequences' and the others nobody's. [`Self::attend_step`] then puts keys and values there. None where nothing is said
    /// yet, or keys and values are in no pages of a device.
    ///
    /// # Panics
    /// If there are more sequences than rows.
    #[cfg(feature = "cube")]
    pub fn step(&mut self, rows: usize) -> Option<crate::StepRows> {
        assert!(self.sequences() <= rows, "cached attention: a row for each sequence");
        match &mut self.store {
            Store::Paged(pages) => pages.step(rows, self.shape.window),
            _ => None,
        }
    }

    /// Numbers for the memory that holds keys and values: as long as they are the same a recorded step may run again.
    #[cfg(feature = "cube")]
    #[must_use]
    pub fn memory(&self) -> Option<[usize; 2]> {
        match &self.store {
            Store::Paged(pages) => pages.memory(),
            _ => None,
        }
    }

    /// [`Self::attend`] of the rows of a [`Self::step`], which have joined already.
    ///
    /// # Errors
    /// If shapes or dtypes do not fit, or [`Self::step`] has not made the rows.
    #[cfg(feature = "cube")]
    pub fn attend_step(
        &mut self,
        qkv: &AnyTensor,
        rows: &crate::PlacedRows,
        rotary: Option<&Rotary>,
        norm: Option<&HeadNorm>,
        sinks: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        let width = (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim;
        let (got, expected) = (qkv.shape(), vec![rows.len(), width]);
        match &mut self.store {
            Store::Paged(pages) if got == expected => {
                pages.attend_step(qkv, &self.shape, rows, rotary, norm, sinks)
            }
            _ => Err(OpsError::Shape { op: OP, what: "qkv", got, expected }),
        }
    }

    /// Storage of the backend that `like` lives on.
    fn open(&self, sequences: usize, like: &AnyTensor) -> Store {
        #[cfg(feature = "flex")]
        if crate::flex::holds([like]) {
            return Store::Kernels(burnish_cpu_kernels::KvCache::new(
                self.shape.kv_heads,
                self.shape.head_dim,
                sequences,
            ));
        }
        #[cfg(feature = "cube")]
        if let Some(pages) = Pages::open(sequences, &self.shape, like) {
            return Store::Paged(Box::new(pages));
        }
        let _ = like;
        Store::Plain((0..sequences).map(|_| None).collect())
    }
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
