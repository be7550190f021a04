//! Keys and values of sequences being generated, for one layer.

use crate::micro::NR as PANEL;

/// One sequence: keys `[kv_heads][capacity/32][head_dim][32]`, values `[kv_heads][capacity][head_dim]`.
#[derive(Clone, Debug, Default)]
struct Sequence {
    len: usize,
    capacity: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Key and value cache of one layer for many sequences.
///
/// Keys are kept normed and rotated, in the panel layout the score kernel reads; both keys and values of one
/// (sequence, head) lie contiguously. Storage of a sequence doubles as it grows.
///
/// ```
/// use burnish_cpu_kernels::KvCache;
///
/// let mut cache = KvCache::new(2, 64, 3);
/// assert_eq!((cache.sequences(), cache.len(0)), (3, 0));
/// cache.reorder(&[2, 0]); // the second sequence has finished
/// assert_eq!(cache.sequences(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    kv_heads: usize,
    head_dim: usize,
    sequences: Vec<Sequence>,
}

impl KvCache {
    /// An empty cache of `sequences` sequences.
    pub fn new(kv_heads: usize, head_dim: usize, sequences: usize) -> Self {
        Self { kv_heads, head_dim, sequences: vec![Sequence::default(); sequences] }
    }

    /// Sequences held, empty ones included.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Elements per head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Tokens held of one sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].len
    }

    /// Whether no sequence holds a token.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(|s| s.len == 0)
    }

    /// Bytes of storage held.
    pub fn bytes(&self) -> usize {
        self.sequences.iter().map(|s| (s.keys.len() + s.values.len()) * size_of::<f32>()).sum()
    }

    /// Adds an empty sequence and returns its index.
    pub fn push(&mut self) -> usize {
        self.sequences.push(Sequence::default());
        self.sequences.len() - 1
    }

    /// Drops all but the first `len` tokens of a sequence; storage is kept.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        let s = &mut self.sequences[sequence];
        s.len = s.len.min(len);
    }

    /// Removes a sequence; later ones move down by one.
    pub fn remove(&mut self, sequence: usize) {
        self.sequences.remove(sequence);
    }

    /// Sequence `i` becomes what `order[i]` was; what is not named is freed, what is named twice is copied.
    pub fn reorder(&mut self, order: &[usize]) {
        let mut left = vec![0usize; self.sequences.len()];
        for &o in order {
            assert!(o < left.len(), "kv cache: reorder names sequence {o}, there are {}", left.len());
            left[o] += 1;
        }
        let mut old = std::mem::take(&mut self.sequences);
        self.sequences = order
            .iter()
            .map(|&o| {
                left[o] -= 1;
                if left[o] == 0 { std::mem::take(&mut old[o]) } else { old[o].clone() }
            })
            .collect();
    }

    /// The sequences of `other` follow those that are here.
    ///
    /// # Panics
    /// If its heads are others.
    pub fn append(&mut self, other: Self) {
        let heads = |cache: &Self| (cache.kv_heads, cache.head_dim);
        assert_eq!(heads(self), heads(&other), "kv cache: heads and elements per head of what is appended");
        self.sequences.extend(other.sequences);
    }

    /// Takes out the sequences from `at` on.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    pub fn split_off(&mut self, at: usize) -> Self {
        Self { sequences: self.sequences.split_off(at), ..*self }
    }

    /// Makes room for `extra` more tokens of a sequence.
    pub fn reserve(&mut self, sequence: usize, extra: usize) {
        let (heads, d) = (self.kv_heads, self.head_dim);
        let s = &mut self.sequences[sequence];
        let need = s.len + extra;
        if need <= s.capacity {
            return;
        }
        let capacity = need.max(2 * s.capacity).next_multiple_of(PANEL);
        let used = s.len.next_multiple_of(PANEL) * d;
        let grow = |old: &[f32]| {
            let mut new = vec![0.0; heads * capacity * d];
            for h in 0..heads {
                let from = h * s.capacity * d;
                new[h * capacity * d..][..used].copy_from_slice(&old[from..from + used]);
            }
            new
        };
        (s.keys, s.values) = (grow(&s.keys), grow(&s.values));
        s.capacity = capacity;
    }

    /// Key panels of one (sequence, head): `[capacity/32][head_dim][32]`.
    pub(crate) fn keys(&self, sequence: usize, head: usize) -> &[f32] {
        let s = &self.sequences[sequence];
        &s.keys[head * s.capacity * self.head_dim..(head + 1) * s.capacity * self.head_dim]
    }

    /// Values of one (sequence, head): `[capacity][head_dim]`.
    pub(crate) fn values(&self, sequence: usize, head: usize) -> &[f32] {
        let s = &self.sequences[sequence];
        &s.values[head * s.capacity * self.head_dim..(head + 1) * s.capacity * self.head_dim]
    }

    /// Every (sequence, head), to be written by tasks of their own.
    pub(crate) fn lanes(&mut self) -> Vec<Lane<'_>> {
        let (heads, d) = (self.kv_heads, self.head_dim);
        let mut lanes = vec![];
        for (sequence, s) in self.sequences.iter_mut().enumerate().filter(|(_, s)| s.capacity > 0) {
            let size = s.capacity * d;
            let pairs = s.keys.chunks_mut(size).zip(s.values.chunks_mut(size)).take(heads);
            for (head, (keys, values)) in pairs.enumerate() {
                lanes.push(Lane { sequence, head, len: s.len, keys, values });
            }
        }
        lanes
    }

    /// Counts `extra` tokens written past the end.
    pub(crate) fn advance(&mut self, sequence: usize, extra: usize) {
        self.sequences[sequence].len += extra;
    }
}

/// Storage of one (sequence, head).
pub(crate) struct Lane<'a> {
    pub(crate) sequence: usize,
    pub(crate) head: usize,
    len: usize,
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

impl Lane<'_> {
    /// Writes the next token's key and value; room must have been reserved.
    pub(crate) fn push(&mut self, key: &[f32], value: &[f32]) {
        let d = key.len();
        let panel = &mut self.keys[self.len / PANEL * PANEL * d..][..PANEL * d];
        for (slot, x) in panel[self.len % PANEL..].iter_mut().step_by(PANEL).zip(key) {
            *slot = *x;
        }
        self.values[self.len * d..][..d].copy_from_slice(value);
        self.len += 1;
    }
}
