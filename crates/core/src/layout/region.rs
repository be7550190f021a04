//! A part of a tensor: ranges of each dimension.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{LayoutError, ranges};

/// The part of a tensor that a rank holds: some ranges of each dimension, and all elements that lie in one of each.
/// A rank has these elements in row-major order, as a tensor of [`local_shape`](Self::local_shape).
///
/// ```
/// use burnish_core::Region;
///
/// // the last two columns of rows 0 and 2
/// let region = Region::new(&[3, 4], vec![vec![0..1, 2..3], vec![2..4]])?;
/// let all: Vec<u32> = (0..12).collect();
/// assert_eq!((region.local_shape(), region.read(&all)), (vec![2, 2], vec![2, 3, 10, 11]));
/// // of these, the second row: where it lies in the whole
/// let own = Region::rows(&[2, 2], 1..2);
/// assert_eq!(region.select(&own).ranges(0), [2..3]);
/// # Ok::<_, burnish_core::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    shape: Vec<usize>,
    /// Per dimension, ascending, none empty.
    ranges: Vec<Vec<Range<usize>>>,
}

impl Region {
    /// All of a tensor of `shape`. A scalar is a tensor of one row.
    #[must_use]
    pub fn whole(shape: &[usize]) -> Self {
        let shape = if shape.is_empty() { vec![1] } else { shape.to_vec() };
        let all = |&length: &usize| Vec::from_iter((length > 0).then_some(0..length));
        Self { ranges: shape.iter().map(all).collect(), shape }
    }

    /// These ranges of each dimension of a tensor of `shape`; empty ones are left out.
    ///
    /// # Errors
    /// [`LayoutError::Ranges`] if ranges of a dimension overlap, go back or end behind it; [`LayoutError::Dimension`]
    /// if there are not as many as dimensions.
    pub fn new(shape: &[usize], ranges: Vec<Vec<Range<usize>>>) -> Result<Self, LayoutError> {
        let region = Self::announced(shape, ranges);
        region.check()?;
        Ok(region)
    }

    /// As [`new`](Self::new), of what somebody else says that he holds: [`check`](Self::check) says whether he can.
    #[must_use]
    pub fn announced(shape: &[usize], ranges: Vec<Vec<Range<usize>>>) -> Self {
        let some =
            |own: Vec<Range<usize>>| own.into_iter().filter(|range| range.start != range.end).collect();
        Self { shape: shape.to_vec(), ranges: ranges.into_iter().map(some).collect() }
    }

    /// Whether the ranges are those of a part of the tensor.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.shape.len() != self.ranges.len() {
            return Err(LayoutError::Dimension { shape: self.shape.clone(), dim: self.ranges.len() });
        }
        for (dim, (own, &length)) in self.ranges.iter().zip(&self.shape).enumerate() {
            let rising = own.windows(2).all(|pair| pair[0].end <= pair[1].start);
            if !rising || own.iter().any(|range| range.start > range.end || range.end > length) {
                return Err(LayoutError::Ranges { dim, got: own.clone(), within: 0..length });
            }
        }
        Ok(())
    }

    /// The rows (dimension 0) `rows` of a tensor of `shape`.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn rows(shape: &[usize], rows: Range<usize>) -> Self {
        Self::whole(shape).along(0, &[rows])
    }

    /// Of this region, the part at the positions `pieces` of its dimension `dim`.
    ///
    /// # Panics
    /// If it has no such dimension, or not so many elements in it.
    #[must_use]
    pub fn along(&self, dim: usize, pieces: &[Range<usize>]) -> Self {
        let held = ranges::length(&self.ranges[dim]);
        let end = pieces.last().map_or(0, |piece| piece.end);
        assert!(end <= held, "invariant: {pieces:?} are among {held} elements of dimension {dim}");
        let mut region = self.clone();
        region.ranges[dim] = ranges::select(&self.ranges[dim], pieces);
        region
    }

    /// Where a part of this region lies in the whole tensor; `part` is a region of [`local_shape`](Self::local_shape).
    ///
    /// # Panics
    /// If it is of another shape.
    #[must_use]
    pub fn select(&self, part: &Self) -> Self {
        assert_eq!(self.local_shape(), part.shape, "invariant: a region of what is held");
        let select = |(held, inner): (&Vec<_>, &Vec<_>)| ranges::select(held, inner);
        let ranges = self.ranges.iter().zip(&part.ranges).map(select).collect();
        Self { shape: self.shape.clone(), ranges }
    }

    /// What of `wanted`, a region of the same tensor, is in this one, as a region of [`local_shape`](Self::local_shape).
    #[must_use]
    pub fn locate(&self, wanted: &Self) -> Self {
        let locate = |(held, wanted): (&Vec<_>, &Vec<_>)| ranges::locate(held, wanted);
        let ranges = self.ranges.iter().zip(&wanted.ranges).map(locate).collect();
        Self { shape: self.local_shape(), ranges }
    }

    /// The elements that are in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let both = |(a, b): (&Vec<_>, &Vec<_>)| ranges::intersect(a, b);
        let ranges = self.ranges.iter().zip(&other.ranges).map(both).collect();
        Self { shape: self.shape.clone(), ranges }
    }

    /// The shape of the whole tensor.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The shape of the part.
    #[must_use]
    pub fn local_shape(&self) -> Vec<usize> {
        self.ranges.iter().map(|own| ranges::length(own)).collect()
    }

    /// The ranges of a dimension, ascending.
    ///
    /// # Panics
    /// If there is no such dimension.
    #[must_use]
    pub fn ranges(&self, dim: usize) -> &[Range<usize>] {
        &self.ranges[dim]
    }

    /// How many elements it has.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.ranges.iter().map(|own| ranges::length(own)).product()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.iter().any(Vec::is_empty)
    }

    /// Whether it is the whole tensor.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        (0..self.shape.len()).all(|dim| self.has_all(dim))
    }

    pub(super) fn has_all(&self, dim: usize) -> bool {
        ranges::length(&self.ranges[dim]) == self.shape[dim]
    }

    /// The same elements of the matrix that the tensor is when all dimensions but the last count as rows; a vector is
    /// one row.
    #[must_use]
    pub fn as_matrix(&self) -> Self {
        let Some((&columns, rows)) = self.shape.split_last() else { return Self::whole(&[1, 1]) };
        let outer = Self { shape: rows.to_vec(), ranges: self.ranges[..rows.len()].to_vec() };
        let mut own = Vec::new();
        outer.each_run(|run| own.push(run));
        let last = self.ranges[rows.len()].clone();
        Self { shape: vec![rows.iter().product(), columns], ranges: vec![own, last] }
    }

    /// Visits the elements of the whole tensor (row-major) that the region consists of, as ascending ranges.
    pub fn each_run(&self, mut visit: impl FnMut(Range<usize>)) {
        if self.is_empty() {
            return;
        }
        let mut stride = vec![1; self.shape.len()];
        for dim in (1..self.shape.len()).rev() {
            stride[dim - 1] = stride[dim] * self.shape[dim];
        }
        match (0..self.shape.len()).rev().find(|&dim| !self.has_all(dim)) {
            None => visit(0..self.shape.iter().product()),
            Some(last) => self.runs_from(0, 0, last, &stride, &mut visit),
        }
    }

    fn runs_from(
        &self,
        dim: usize,
        base: usize,
        last: usize,
        stride: &[usize],
        visit: &mut impl FnMut(Range<usize>),
    ) {
        for range in &self.ranges[dim] {
            if dim == last {
                visit(base + range.start * stride[dim]..base + range.end * stride[dim]);
                continue;
            }
            for at in range.clone() {
                self.runs_from(dim + 1, base + at * stride[dim], last, stride, visit);
            }
        }
    }

    /// The region's elements out of the whole tensor's.
    ///
    /// # Panics
    /// If there are not as many as the shape says.
    #[must_use]
    pub fn read<E: Copy>(&self, whole: &[E]) -> Vec<E> {
        self.read_units(whole, 1)
    }

    /// As [`read`](Self::read) where each element is `unit` of `whole`, which has their bytes.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[must_use]
    pub fn read_units<E: Copy>(&self, whole: &[E], unit: usize) -> Vec<E> {
        let all = self.shape.iter().product::<usize>() * unit;
        assert_eq!(whole.len(), all, "invariant: the whole tensor of shape {:?}", self.shape);
        let mut part = Vec::with_capacity(self.elements() * unit);
        self.each_run(|run| part.extend_from_slice(&whole[run.start * unit..run.end * unit]));
        part
    }

    /// Puts the region's elements where they belong in the whole tensor's.
    ///
    /// # Panics
    /// If there are not as many as the shapes say.
    pub fn place<E: Copy>(&self, part: &[E], whole: &mut [E]) {
        assert_eq!(part.len(), self.elements(), "invariant: a part of shape {:?}", self.local_shape());
        assert_eq!(whole.len(), self.shape.iter().product::<usize>(), "invariant: the whole tensor");
        let mut rest = part;
        self.each_run(|run| {
            let (now, after) = rest.split_at(run.len());
            whole[run].copy_from_slice(now);
            rest = after;
        });
    }

    /// Copies this region of `from` into the region `target` of `to`: the same elements, in their order.
    ///
    /// # Panics
    /// If the regions have other shapes, or the slices are not of theirs.
    pub fn copy_to<E: Copy>(&self, from: &[E], target: &Self, to: &mut [E]) {
        assert_eq!(self.local_shape(), target.local_shape(), "invariant: as many elements");
        let mut sources = Vec::new();
        self.each_run(|run| sources.push(run));
        let mut sources = sources.into_iter();
        let mut source = 0..0;
        target.each_run(|mut run| {
            while !run.is_empty() {
                if source.is_empty() {
                    source = sources.next().expect("invariant: as many elements");
                }
                let now = source.len().min(run.len());
                to[run.start..run.start + now].copy_from_slice(&from[source.start..source.start + now]);
                (run.start, source.start) = (run.start + now, source.start + now);
            }
        });
    }
}
