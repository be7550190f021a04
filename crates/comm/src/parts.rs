//! What each rank gave, side by side.

use std::fmt;
use std::marker::PhantomData;

use crate::{Bucket, Bytes, Wire};

/// One part per rank of the group, in rank order. Where ranks share memory the parts are views of
/// what the peers posted, not copies.
pub struct Parts<E: Wire> {
    parts: Vec<Bytes>,
    elements: PhantomData<E>,
}

impl<E: Wire> Parts<E> {
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

    /// All parts in rank order.
    pub fn iter(&self) -> impl Iterator<Item = &[E]> {
        self.parts.iter().map(Bytes::elements)
    }

    /// Number of elements of all parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().map(<[E]>::len).sum()
    }

    /// Whether all parts are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }

    /// One bucket with all parts in rank order. A copy, unless there is one rank only.
    #[must_use]
    pub fn concat(mut self) -> Bucket<E> {
        if self.parts.len() == 1
            && let Some(only) = self.parts.pop()
        {
            return Bucket::received(only, None);
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

impl<E: Wire> fmt::Debug for Parts<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts<{}>({:?})", E::DTYPE, self.iter().map(<[E]>::len).collect::<Vec<_>>())
    }
}
