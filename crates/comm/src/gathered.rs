//! `Gathered`: the result of an all-gather, one slice per rank in rank order.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::transport::{Bytes, DeviceMemory};
use crate::{Bucket, Wire};

/// One part per rank of the group, in rank order. Where ranks share memory the parts are views of
/// what the peers posted, not copies.
pub struct Gathered<E: Wire> {
    parts: Vec<Bytes>,
    elements: PhantomData<E>,
}

impl<E: Wire> Gathered<E> {
    pub(crate) fn new(parts: Vec<Bytes>) -> Self {
        Self { parts, elements: PhantomData }
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.parts.len()
    }

    /// What rank `rank` of the group gave.
    ///
    /// # Panics
    /// If the group has no such rank, as slices do.
    #[must_use]
    pub fn of(&self, rank: usize) -> &[E] {
        self.parts[rank].elements()
    }

    /// The memory on a device that rank `rank`'s part lies in, and at which of its bytes; `None` for one on the host.
    ///
    /// # Panics
    /// If the group has no such rank, as slices do.
    #[must_use]
    pub fn device(&self, rank: usize) -> Option<(&Arc<dyn DeviceMemory>, Range<usize>)> {
        self.parts[rank].device()
    }

    /// All parts in rank order.
    pub fn iter(&self) -> impl Iterator<Item = &[E]> {
        self.parts.iter().map(Bytes::elements)
    }

    /// Number of elements of all parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lengths().sum()
    }

    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.len() / size_of::<E>())
    }

    /// Whether all parts are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }

    /// One bucket with all parts in rank order. A copy, unless they lie one behind the other already.
    #[must_use]
    pub fn concat(self) -> Bucket<E> {
        if let Some(all) = Bytes::joined(&self.parts) {
            drop(self);
            return Bucket::received(all, None);
        }
        let mut values = Vec::with_capacity(self.len());
        for part in self.iter() {
            values.extend_from_slice(part);
        }
        Bucket::new(values)
    }

    /// The part of rank `rank` as a bucket of its own, without a copy where memory is shared.
    ///
    /// # Panics
    /// If the group has no such rank, as slices do.
    #[must_use]
    pub fn take(&self, rank: usize) -> Bucket<E> {
        Bucket::received(self.parts[rank].clone(), None)
    }
}

impl<E: Wire> fmt::Debug for Gathered<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts<{}>({:?})", E::DTYPE, self.lengths().collect::<Vec<_>>())
    }
}
