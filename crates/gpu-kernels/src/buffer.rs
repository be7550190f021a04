//! Contiguous elements in a device's memory.

use cubecl_core::bytes::Bytes;
use cubecl_core::ir::{ElemType, FloatKind};
use cubecl_core::prelude::{AddressType, BufferArg, Client};
use cubecl_core::server::Handle;

/// The dtype of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// 32 bits.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE's half.
    F16,
}

impl FloatType {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    pub(crate) fn elem(self) -> ElemType {
        ElemType::Float(match self {
            Self::F32 => FloatKind::F32,
            Self::Bf16 => FloatKind::BF16,
            Self::F16 => FloatKind::F16,
        })
    }
}

/// Contiguous elements of one dtype. A clone shares them.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// CubeCL's memory.
    pub handle: Handle,
    /// How many elements.
    pub len: usize,
    /// Their dtype.
    pub dtype: FloatType,
}

impl Buffer {
    /// Memory for `len` elements, whose values are anything.
    #[must_use]
    pub fn empty(client: &Client, len: usize, dtype: FloatType) -> Self {
        Self { handle: client.empty(len * dtype.bytes()), len, dtype }
    }

    /// Memory with these words.
    #[must_use]
    pub fn of_words(client: &Client, words: Vec<u32>) -> Self {
        let len = words.len();
        Self { handle: client.create(Bytes::from_elems(words)), len, dtype: FloatType::F32 }
    }

    /// Memory for `len` numbers in f32, zeros where a kernel that follows does not write all of it (`cleared`).
    pub(crate) fn cleared(client: &Client, len: usize, cleared: bool) -> Self {
        if cleared { Self::of_words(client, vec![0; len]) } else { Self::empty(client, len, FloatType::F32) }
    }

    /// Writes words to its beginning, after what this thread launched before, whoever else holds it.
    pub fn overwrite(&self, client: &Client, words: Vec<u32>) {
        assert!(words.len() * 4 <= self.len * self.dtype.bytes(), "invariant: room for the words");
        client.write(&self.handle, Bytes::from_elems(words));
    }

    /// `len` of its elements, from `first` on.
    #[must_use]
    pub fn piece(&self, first: usize, len: usize) -> Self {
        let bytes = self.dtype.bytes();
        let handle = self.handle.clone().offset_start((first * bytes) as u64);
        Self { handle: handle.offset_end(((self.len - first - len) * bytes) as u64), len, dtype: self.dtype }
    }

    /// Pieces of so many elements, one behind the other from its beginning on.
    pub(crate) fn pieces(&self, lengths: impl IntoIterator<Item = usize>) -> Vec<Self> {
        let mut first = 0;
        let piece = |len| {
            first += len;
            self.piece(first - len, len)
        };
        lengths.into_iter().map(piece).collect()
    }

    /// Whether vectors of `size` elements may be read from its beginning.
    pub(crate) fn is_aligned(&self, size: usize) -> bool {
        let offset = self.handle.offset_start.unwrap_or(0);
        offset.is_multiple_of((size * self.dtype.bytes()) as u64)
    }

    /// All elements as an argument, in vectors of `size`.
    pub(crate) fn arg(&self, size: usize) -> BufferArg {
        debug_assert!(self.len.is_multiple_of(size), "invariant: {} elements in vectors of {size}", self.len);
        // SAFETY: `len` is the number of elements that the memory was made for.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.len / size) }
    }
}

/// The widest vectors, of at most `most` elements, in which rows of `columns` elements of all these buffers can be read.
pub(crate) fn vector(columns: usize, most: usize, buffers: &[&Buffer]) -> usize {
    [8, 4, 2]
        .into_iter()
        .filter(|&size| size <= most)
        .find(|&size| columns.is_multiple_of(size) && buffers.iter().all(|b| b.is_aligned(size)))
        .unwrap_or(1)
}

/// The integers that count the elements of all these buffers.
pub(crate) fn address(buffers: &[&Buffer]) -> AddressType {
    AddressType::from_len(buffers.iter().map(|b| b.len).max().unwrap_or(0))
}
