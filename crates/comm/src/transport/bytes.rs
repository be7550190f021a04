//! Reference-counted bytes that are aligned for every wire type, without unsafe code.

use std::any::Any;
use std::collections::TryReserveError;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::Wire;
use crate::transport::{DeviceError, DeviceMemory};

/// What [`Bytes`] may point into.
trait Store: Any + Send + Sync {
    /// The bytes on the host.
    fn bytes(&self) -> &[u8];
    fn len(&self) -> usize {
        self.bytes().len()
    }
    fn device(&self) -> Option<&OnDevice> {
        None
    }
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

struct Owned<E>(Vec<E>);

impl<E: Wire> Store for Owned<E> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

struct Shared<E>(Arc<dyn AsRef<[E]> + Send + Sync>);

impl<E: Wire> Store for Shared<E> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice((*self.0).as_ref())
    }
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// Bytes on a device, with their copy on the host once somebody has asked for it.
struct OnDevice {
    memory: Arc<dyn DeviceMemory>,
    host: OnceLock<Result<Aligned, DeviceError>>,
}

impl OnDevice {
    fn host(&self) -> Result<&Aligned, DeviceError> {
        self.host.get_or_init(|| self.memory.to_host()).as_ref().map_err(Clone::clone)
    }
}

impl Store for OnDevice {
    fn bytes(&self) -> &[u8] {
        match self.host() {
            Ok(host) => host.as_ref(),
            Err(error) => panic!("{error}"),
        }
    }
    fn len(&self) -> usize {
        self.memory.bytes()
    }
    fn device(&self) -> Option<&OnDevice> {
        Some(self)
    }
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A buffer to receive into: any number of bytes, starting at a multiple of eight.
pub struct Aligned {
    words: Vec<u64>,
    bytes: usize,
}

impl Aligned {
    /// `bytes` zero bytes.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self { words: vec![0; bytes.div_ceil(8)], bytes }
    }

    /// Adds zero bytes up to `bytes` in all, unless there is no memory for so many.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        let words = bytes.div_ceil(8);
        self.words.try_reserve_exact(words.saturating_sub(self.words.len()))?;
        self.words.resize(words, 0);
        self.bytes = bytes;
        Ok(())
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut aligned = Self::zeroed(bytes.len());
        aligned.as_mut().copy_from_slice(bytes);
        aligned
    }

    /// No more writing from here on.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        let end = self.bytes;
        Bytes { store: Arc::new(self), range: 0..end }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

impl Store for Aligned {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// A range of reference-counted, immutable bytes. Cloning and slicing copy nothing.
#[derive(Clone)]
pub struct Bytes {
    store: Arc<dyn Store>,
    range: Range<usize>,
}

impl Bytes {
    /// No bytes.
    #[must_use]
    pub fn empty() -> Self {
        // words, so that they are aligned for every type
        Self::from_vec(Vec::<u64>::new())
    }

    /// The elements of `values`, which are moved, not copied.
    #[must_use]
    pub fn from_vec<E: Wire>(values: Vec<E>) -> Self {
        let end = std::mem::size_of_val(values.as_slice());
        Self { store: Arc::new(Owned(values)), range: 0..end }
    }

    /// Elements that somebody else holds too.
    #[must_use]
    pub fn from_shared<E: Wire>(values: Arc<dyn AsRef<[E]> + Send + Sync>) -> Self {
        let end = std::mem::size_of_val((*values).as_ref());
        Self { store: Arc::new(Shared(values)), range: 0..end }
    }

    /// Bytes that lie on a device. The first look at them on the host copies them there.
    #[must_use]
    pub fn on_device(memory: Arc<dyn DeviceMemory>) -> Self {
        let end = memory.bytes();
        Self { store: Arc::new(OnDevice { memory, host: OnceLock::new() }), range: 0..end }
    }

    /// The memory on a device that these bytes lie in, and where in it; `None` for bytes on the host.
    #[must_use]
    pub fn device(&self) -> Option<(&Arc<dyn DeviceMemory>, Range<usize>)> {
        self.store.device().map(|on| (&on.memory, self.range.clone()))
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes, on the host.
    ///
    /// # Panics
    /// If they lie on a device that cannot be read; [`Bytes::to_host`] gives the error.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.store.bytes()[self.range.clone()]
    }

    /// The bytes, on the host: copied by the first who asks where they lie on a device.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn to_host(&self) -> Result<&[u8], DeviceError> {
        if let Some(on) = self.store.device() {
            on.host()?;
        }
        Ok(self.as_bytes())
    }

    /// Bytes `range` of these.
    ///
    /// # Panics
    /// If `range` reaches beyond the end, as slices do.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let start = self.range.start + range.start;
        Self { store: Arc::clone(&self.store), range: start..start + range.len() }
    }

    /// `parts` as one, if they lie one behind the other in the same memory already.
    pub(crate) fn joined(parts: &[Self]) -> Option<Self> {
        let (first, others) = parts.split_first()?;
        let mut range = first.range.clone();
        for part in others {
            if !Arc::ptr_eq(&part.store, &first.store) || part.range.start != range.end {
                return None;
            }
            range.end = part.range.end;
        }
        Some(Self { store: Arc::clone(&first.store), range })
    }

    /// The bytes as elements. Every [`Bytes`] that a transport hands out is aligned and sized for
    /// the dtype of its call (see [`Bytes::aligned_to`]).
    ///
    /// # Panics
    /// If the length is no multiple of the element size, or the start is not aligned.
    #[must_use]
    pub fn elements<E: Wire>(&self) -> &[E] {
        bytemuck::cast_slice(self.as_bytes())
    }

    /// These bytes, copied only if they do not start at a multiple of `align`.
    #[must_use]
    pub fn aligned_to(self, align: usize) -> Self {
        let aligned = match self.device() {
            // a copy on the host is aligned as the memory is
            Some((_, range)) => range.start.is_multiple_of(align),
            None => (self.as_bytes().as_ptr() as usize).is_multiple_of(align),
        };
        if aligned { self } else { Aligned::copy_of(self.as_bytes()).freeze() }
    }

    /// The vector that these bytes were made from, if nobody else holds it and the whole of it is meant.
    ///
    /// # Errors
    /// The bytes, unchanged, otherwise.
    pub fn try_into_vec<E: Wire>(self) -> Result<Vec<E>, Self> {
        let Self { store, range } = self;
        if range != (0..store.len()) || Arc::strong_count(&store) != 1 {
            return Err(Self { store, range });
        }
        match Arc::clone(&store).any().downcast::<Owned<E>>() {
            Ok(owned) => {
                drop(store);
                Arc::try_unwrap(owned).map(|owned| owned.0).map_err(|owned| Self { store: owned, range })
            }
            Err(_) => Err(Self { store, range }),
        }
    }

    /// The elements as a vector: moved where possible, else copied.
    #[must_use]
    pub fn into_vec<E: Wire>(self) -> Vec<E> {
        self.try_into_vec().unwrap_or_else(|bytes| bytes.elements().to_vec())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.device().is_some() { " on a device" } else { "" };
        write!(f, "Bytes({} bytes{place})", self.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_back_without_a_copy() {
        let values = vec![1.0_f32, 2.0, 3.0];
        let address = values.as_ptr();
        let bytes = Bytes::from_vec(values);
        let slice = bytes.slice(4..12);
        assert_eq!(slice.elements::<f32>(), [2.0, 3.0]);
        let bytes = bytes.try_into_vec::<f32>().unwrap_err();
        drop(slice);
        let bytes = bytes.try_into_vec::<u64>().unwrap_err();
        let values = bytes.try_into_vec::<f32>().unwrap();
        assert_eq!(values.as_ptr(), address);
    }

    #[test]
    fn received_bytes_are_aligned_for_every_type() {
        for bytes in [0_usize, 1, 7, 8, 9, 24] {
            let frozen = Aligned::zeroed(bytes).freeze();
            assert_eq!(frozen.len(), bytes);
            assert!((frozen.as_bytes().as_ptr() as usize).is_multiple_of(8));
        }
        let odd = Aligned::copy_of(&[9, 0, 0, 128, 63, 0, 0, 0, 0]).freeze().slice(1..5);
        assert_eq!(odd.aligned_to(4).elements::<f32>(), [1.0]);
    }
}
