//! Contiguous elements of one wire type: the only thing that a collective accepts.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::Wire;
use crate::transport::{Bytes, DeviceMemory};

/// Which elements of a bucket belong to which parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The parameter's name.
    pub parameter: String,
    /// Its elements within the bucket.
    pub range: Range<usize>,
}

enum Storage<E> {
    Owned(Vec<E>),
    Shared(Arc<dyn AsRef<[E]> + Send + Sync>),
    Received(Bytes),
}

/// Contiguous elements of one type, with a map to parameters where there are some.
///
/// A collective takes a bucket by value and gives one back: nothing can be read or written while it
/// is on the way. The element type is part of the type, so buckets of different types cannot be put
/// together; casts are explicit and happen outside.
///
/// ```
/// use burnish_comm::Bucket;
/// let both = Bucket::concat([Bucket::new(vec![1.0_f32]), Bucket::new(vec![2.0, 3.0])]);
/// assert_eq!(both.as_slice(), [1.0, 2.0, 3.0]);
/// ```
///
/// ```compile_fail,E0308
/// use burnish_comm::Bucket;
/// use half::bf16;
/// // fp32 adapters on a bf16 base: one bucket for both does not compile
/// let both = Bucket::concat([Bucket::new(vec![1.0_f32]), Bucket::new(vec![bf16::ONE])]);
/// ```
pub struct Bucket<E: Wire> {
    storage: Storage<E>,
    map: Option<Arc<[Piece]>>,
}

impl<E: Wire> Bucket<E> {
    /// A bucket that owns its elements.
    #[must_use]
    pub fn new(values: Vec<E>) -> Self {
        Self { storage: Storage::Owned(values), map: None }
    }

    /// A bucket over elements that somebody else keeps alive, such as a reference-counted tensor: posted without a copy.
    #[must_use]
    pub fn shared(values: Arc<dyn AsRef<[E]> + Send + Sync>) -> Self {
        Self { storage: Storage::Shared(values), map: None }
    }

    /// A bucket of elements that lie on a device: posted without a copy, and without coming to the host where the
    /// transport can do that.
    ///
    /// # Panics
    /// If the memory holds a part of an element.
    #[must_use]
    pub fn on_device(memory: Arc<dyn DeviceMemory>) -> Self {
        let (bytes, each) = (memory.bytes(), size_of::<E>());
        assert!(bytes.is_multiple_of(each), "{bytes} bytes of elements of {each}");
        Self::received(Bytes::on_device(memory), None)
    }

    /// The memory on a device that the elements lie in, and at which of its bytes; `None` for elements on the host.
    #[must_use]
    pub fn device(&self) -> Option<(&Arc<dyn DeviceMemory>, Range<usize>)> {
        match &self.storage {
            Storage::Received(bytes) => bytes.device(),
            Storage::Owned(_) | Storage::Shared(_) => None,
        }
    }

    /// No elements.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(Vec::new())
    }

    /// Buckets of one type, end to end; their maps are joined where all have one.
    #[must_use]
    pub fn concat(buckets: impl IntoIterator<Item = Self>) -> Self {
        let buckets: Vec<Self> = buckets.into_iter().collect();
        let mut values = Vec::with_capacity(buckets.iter().map(Self::len).sum());
        let mut map = (!buckets.is_empty()).then(Vec::new);
        for bucket in buckets {
            let start = values.len();
            values.extend_from_slice(bucket.as_slice());
            match (&mut map, &bucket.map) {
                (Some(all), Some(pieces)) => all.extend(pieces.iter().map(|piece| Piece {
                    parameter: piece.parameter.clone(),
                    range: piece.range.start + start..piece.range.end + start,
                })),
                _ => map = None,
            }
        }
        Self { storage: Storage::Owned(values), map: map.map(Arc::from) }
    }

    pub(crate) fn received(bytes: Bytes, map: Option<Arc<[Piece]>>) -> Self {
        Self { storage: Storage::Received(bytes), map }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        match self.storage {
            Storage::Owned(values) => Bytes::from_vec(values),
            Storage::Shared(values) => Bytes::from_shared(values),
            Storage::Received(bytes) => bytes,
        }
    }

    /// The same elements with a map to parameters.
    #[must_use]
    pub fn with_map(mut self, map: Arc<[Piece]>) -> Self {
        self.map = Some(map);
        self
    }

    /// The map to parameters.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<[Piece]>> {
        self.map.as_ref()
    }

    /// The elements of one parameter; `None` without a map or for a name that is not in it.
    #[must_use]
    pub fn of(&self, parameter: &str) -> Option<&[E]> {
        let piece = self.map.as_ref()?.iter().find(|piece| piece.parameter == parameter)?;
        self.as_slice().get(piece.range.clone())
    }

    /// The elements, on the host.
    ///
    /// # Panics
    /// If they lie on a device that cannot be read.
    #[must_use]
    pub fn as_slice(&self) -> &[E] {
        match &self.storage {
            Storage::Owned(values) => values,
            Storage::Shared(values) => (**values).as_ref(),
            Storage::Received(bytes) => bytes.elements(),
        }
    }

    /// The elements as a vector: moved where this bucket is their only holder, else copied.
    #[must_use]
    pub fn into_vec(self) -> Vec<E> {
        match self.storage {
            Storage::Owned(values) => values,
            Storage::Shared(values) => (*values).as_ref().to_vec(),
            Storage::Received(bytes) => bytes.into_vec(),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.storage {
            Storage::Received(bytes) => bytes.len() / size_of::<E>(),
            Storage::Owned(_) | Storage::Shared(_) => self.as_slice().len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The part of `map` that lies in `range`, counted from `range.start`.
pub(crate) fn part_of_map(map: &[Piece], range: &Range<usize>) -> Arc<[Piece]> {
    map.iter()
        .filter_map(|piece| {
            let start = piece.range.start.max(range.start);
            let end = piece.range.end.min(range.end);
            (start < end).then(|| Piece {
                parameter: piece.parameter.clone(),
                range: start - range.start..end - range.start,
            })
        })
        .collect()
}

impl<E: Wire> fmt::Debug for Bucket<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket<{}>({} elements)", E::DTYPE, self.len())
    }
}

impl<E: Wire> From<Vec<E>> for Bucket<E> {
    fn from(values: Vec<E>) -> Self {
        Self::new(values)
    }
}
