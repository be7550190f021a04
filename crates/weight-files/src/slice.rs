//! Byte ranges of a slice along one dim, or of a block of a matrix, in a row-major tensor.

use std::ops::Range;

/// The byte runs of a slice: `count` runs of `bytes`, `stride` apart, the first at `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    pub(crate) start: u64,
    pub(crate) bytes: usize,
    pub(crate) stride: u64,
    pub(crate) count: usize,
}

impl Runs {
    /// The runs of `range` along `dim` of a tensor of `shape` with elements of `size` bytes,
    /// or `None` if it is outside.
    pub(crate) fn of(shape: &[usize], size: usize, dim: usize, range: &Range<usize>) -> Option<Self> {
        let extent = *shape.get(dim)?;
        if range.start > range.end || range.end > extent {
            return None;
        }
        let outer: usize = shape[..dim].iter().product();
        let inner = shape[dim + 1..].iter().product::<usize>() * size;
        let (bytes, stride) = ((range.end - range.start) * inner, (extent * inner) as u64);
        let start = (range.start * inner) as u64;
        if dim == 0 || bytes as u64 == stride {
            return Some(Self { start, bytes: bytes * outer, stride: 0, count: 1 });
        }
        Some(Self { start, bytes, stride, count: outer })
    }

    /// The one run of a whole tensor of so many bytes.
    pub(crate) fn all(bytes: usize) -> Self {
        Self { start: 0, bytes, stride: 0, count: 1 }
    }

    /// The runs of a block of a matrix, or `None` if it is outside, or the shape is no matrix.
    pub(crate) fn block(
        shape: &[usize],
        size: usize,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Option<Self> {
        let &[height, width] = shape else { return None };
        if rows.start > rows.end || rows.end > height {
            return None;
        }
        let all = Self::of(shape, size, 1, columns)?;
        let stride = (width * size) as u64;
        let start = all.start + rows.start as u64 * stride;
        if columns.len() == width {
            return Some(Self { start, bytes: rows.len() * width * size, stride: 0, count: 1 });
        }
        Some(Self { start, count: rows.len(), ..all })
    }

    /// Bytes of the whole slice.
    pub(crate) fn total(&self) -> usize {
        self.bytes * self.count
    }

    /// The first byte of each run.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { start, stride, count, .. } = *self;
        (0..count as u64).map(move |i| start + i * stride)
    }
}
