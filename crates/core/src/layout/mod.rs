//! `Layout`: the distribution of a logical tensor over the ranks of a mesh with named axes.
//!
//! * [`Split`]: one dimension over the ranks of one axis.
//! * [`Region`]: what one rank holds: ranges of each dimension, and how elements get out of the whole and back.
//! * [`Layout`]: a split, or none, on each of several named axes: from a rank to its region.

mod error;
mod ranges;
mod region;
mod split;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use error::LayoutError;
pub use region::Region;
pub use split::Split;

/// The axis of ranks that take other rows of the batch.
pub const DP: &str = "dp";
/// The axis of ranks that share each layer.
pub const TP: &str = "tp";

/// How a tensor of a global shape lies over the ranks of a composition of mesh axes.
///
/// Ranks are numbered over the layout's own axes, the last one fastest; [`rank`](Self::rank) finds one by its numbers on
/// named axes. An axis may divide one dimension, evenly or not, in one range or several, with the same elements on
/// several ranks or none on some; or leave the tensor whole on each. What it leaves to a rank may be divided further over
/// other axes ([`compose`](Self::compose)), differently on each rank, in the same dimension or another.
///
/// ```
/// use burnish_core::layout::{DP, Layout, Split, TP};
///
/// // columns over two tensor-parallel ranks, of which each gives its rows to three data-parallel ranks
/// let columns = Layout::sharded(&[4, 6], TP, 1, Split::balanced(6, 2)?)?;
/// let both = columns.compose(|_, shape| Layout::sharded(shape, DP, 0, Split::balanced(shape[0], 3)?))?;
/// let rank = both.rank(&[(DP, 0), (TP, 1)]);
/// assert_eq!((both.ranks(), both.local_shape(rank)), (6, vec![2, 3]));
/// assert_eq!((both.region(rank).ranges(0), both.region(rank).ranges(1)), (&[0..2][..], &[3..6][..]));
///
/// let whole: Vec<f32> = (0..24).map(|i| i as f32).collect();
/// let parts: Vec<Vec<f32>> = (0..6).map(|rank| both.shard(&whole, rank)).collect();
/// assert_eq!(both.unshard(&parts), whole);
/// # Ok::<_, burnish_core::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    shape: Vec<usize>,
    axes: Vec<AxisLayout>,
}

/// What one axis does to what the axes before it leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AxisLayout {
    name: String,
    ranks: usize,
    /// Per rank of the axes before this one: the dimension that it divides, and how; `None` where each has all.
    cuts: Vec<Option<(usize, Split)>>,
}

impl Layout {
    /// A tensor that each of `ranks` ranks of `axis` has whole. A scalar is a tensor of one row.
    #[must_use]
    pub fn replicated(shape: &[usize], axis: &str, ranks: usize) -> Self {
        let shape = Region::whole(shape).shape().to_vec();
        Self { shape, axes: vec![AxisLayout { name: axis.to_owned(), ranks, cuts: vec![None] }] }
    }

    /// A tensor whose dimension `dim` is divided over the ranks of `axis`. A scalar is a tensor of one row.
    ///
    /// # Errors
    /// [`LayoutError::Dimension`], [`LayoutError::Length`]: a split that is not that dimension's.
    pub fn sharded(shape: &[usize], axis: &str, dim: usize, split: Split) -> Result<Self, LayoutError> {
        let mut layout = Self::replicated(shape, axis, split.ranks());
        let Some(&expected) = layout.shape.get(dim) else {
            return Err(LayoutError::Dimension { shape: layout.shape, dim });
        };
        if expected != split.length() {
            let got = split.length();
            return Err(LayoutError::Length { shape: layout.shape, dim, expected, got });
        }
        layout.axes[0].cuts[0] = Some((dim, split));
        Ok(layout)
    }

    /// The same, with what each rank holds divided further: `inner` is given a rank and the shape of what it holds, and
    /// says how that lies over further axes, the same ones for every rank.
    ///
    /// # Errors
    /// Those of `inner`; [`LayoutError::Shape`], [`LayoutError::Axes`] if its layouts are not of what ranks hold, or not
    /// over the same, new axes.
    pub fn compose(
        &self,
        inner: impl Fn(usize, &[usize]) -> Result<Self, LayoutError>,
    ) -> Result<Self, LayoutError> {
        let mut layout = self.clone();
        let mut names: Vec<(String, usize)> = Vec::new();
        for rank in 0..self.ranks() {
            let expected = self.local_shape(rank);
            let Self { shape: got, axes } = inner(rank, &expected)?;
            if got != expected {
                return Err(LayoutError::Shape { rank, got, expected });
            }
            let got: Vec<_> = axes.iter().map(|axis| (axis.name.clone(), axis.ranks)).collect();
            let fresh = |name: &str| !self.axes.iter().any(|axis| axis.name == name);
            if rank == 0 {
                names = got.iter().filter(|(name, _)| fresh(name)).cloned().collect();
                let empty = |axis: &AxisLayout| AxisLayout { cuts: Vec::new(), ..axis.clone() };
                layout.axes.extend(axes.iter().map(empty));
            }
            if got != names {
                return Err(LayoutError::Axes { rank, got, expected: names });
            }
            for (all, own) in layout.axes[self.axes.len()..].iter_mut().zip(axes) {
                all.cuts.extend(own.cuts);
            }
        }
        Ok(layout)
    }

    /// The global shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Names and sizes of the axes, slowest first.
    pub fn axes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.axes.iter().map(|axis| (axis.name.as_str(), axis.ranks))
    }

    /// The number of ranks: the product of the axes' sizes.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|axis| axis.ranks).product()
    }

    /// The rank with these numbers on the axes of a mesh, in any order; axes that the layout does not have do not count.
    ///
    /// # Panics
    /// If an axis of several ranks is not named, or has not so many ranks.
    #[must_use]
    pub fn rank(&self, coords: &[(&str, usize)]) -> usize {
        self.axes.iter().fold(0, |rank, axis| {
            let own = coords.iter().find(|(name, _)| *name == axis.name).map(|(_, own)| *own);
            let own = own.or((axis.ranks == 1).then_some(0));
            let own = own.filter(|&own| own < axis.ranks);
            let own = own.unwrap_or_else(|| {
                panic!("invariant: a number on axis {} of {} ranks, got {coords:?}", axis.name, axis.ranks)
            });
            rank * axis.ranks + own
        })
    }

    /// Whether no axis divides anything.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.axes.iter().all(|axis| axis.cuts.iter().all(Option::is_none))
    }

    /// The dimension that the first axis divides, and how; `None` where each of its ranks has all.
    #[must_use]
    pub fn split(&self) -> Option<(usize, &Split)> {
        let (dim, split) = self.axes.first()?.cuts.first()?.as_ref()?;
        Some((*dim, split))
    }

    /// The dimension that the first axis divides.
    #[must_use]
    pub fn dim(&self) -> Option<usize> {
        self.split().map(|(dim, _)| dim)
    }

    /// Per axis: its number of `rank`, and what it does to what the axes before it left.
    fn steps(&self, rank: usize) -> impl Iterator<Item = (usize, &Option<(usize, Split)>)> {
        let (mut before, mut rest, mut below) = (0, rank, self.ranks());
        assert!(rank < below, "invariant: rank {rank} of {below}");
        self.axes.iter().map(move |axis| {
            below /= axis.ranks;
            let own = rest / below;
            rest %= below;
            let cut = &axis.cuts[before];
            before = before * axis.ranks + own;
            (own, cut)
        })
    }

    /// What `rank` holds.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn region(&self, rank: usize) -> Region {
        self.steps(rank).fold(Region::whole(&self.shape), |held, (own, cut)| match cut {
            Some((dim, split)) => held.along(*dim, split.pieces(own)),
            None => held,
        })
    }

    /// What `rank` counts and saves: of what it holds, what no rank before it on any axis holds too. Every element is one
    /// rank's.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn primary(&self, rank: usize) -> Region {
        let mut held = Region::whole(&self.shape);
        let mut primary = held.clone();
        for (own, cut) in self.steps(rank) {
            match cut {
                Some((dim, split)) => {
                    primary = primary.intersect(&held.along(*dim, &split.primary(own)));
                    held = held.along(*dim, split.pieces(own));
                }
                None if own > 0 => primary = primary.along(0, &[]),
                None => {}
            }
        }
        primary
    }

    /// The elements of [`primary`](Self::primary) as a region of what `rank` holds.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn counted(&self, rank: usize) -> Region {
        self.region(rank).locate(&self.primary(rank))
    }

    /// The shape of what `rank` holds.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn local_shape(&self, rank: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        for (own, cut) in self.steps(rank) {
            if let Some((dim, split)) = cut {
                shape[*dim] = split.len(own);
            }
        }
        shape
    }

    /// The rank that holds everything, if one does and there is something.
    #[must_use]
    pub fn owner(&self) -> Option<usize> {
        (0..self.ranks()).find(|&rank| {
            let held = self.region(rank);
            held.is_whole() && !held.is_empty()
        })
    }

    /// All rows (dimension 0).
    #[must_use]
    pub fn all_rows(&self) -> usize {
        self.shape[0]
    }

    /// All elements.
    #[must_use]
    pub fn all_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of a row: of all dimensions but the first.
    #[must_use]
    pub fn row(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The rows (dimension 0) that `rank` holds, of a tensor that is divided into one range of whole rows a rank.
    ///
    /// # Panics
    /// If it is divided otherwise.
    #[must_use]
    pub fn rows(&self, rank: usize) -> Range<usize> {
        match (self.axes.as_slice(), self.split()) {
            ([_], Some((0, split))) => {
                return split.range(rank).expect("invariant: one range of rows a rank");
            }
            ([_], None) => return 0..self.shape[0],
            _ => {}
        }
        let held = self.region(rank);
        assert!((1..self.shape.len()).all(|dim| held.has_all(dim)), "invariant: whole rows");
        match held.ranges(0) {
            [] => 0..0,
            [one] => one.clone(),
            several => panic!("invariant: one range of rows a rank, got {several:?}"),
        }
    }

    /// The elements of [`rows`](Self::rows), row-major.
    ///
    /// # Panics
    /// As [`rows`](Self::rows).
    #[must_use]
    pub fn elements(&self, rank: usize) -> Range<usize> {
        let (rows, row) = (self.rows(rank), self.row());
        rows.start * row..rows.end * row
    }

    /// What `rank` holds, from all elements in row-major order.
    ///
    /// # Panics
    /// If there are not as many elements as the shape says.
    #[must_use]
    pub fn shard<E: Copy>(&self, whole: &[E], rank: usize) -> Vec<E> {
        self.region(rank).read(whole)
    }

    /// All elements, from what every rank holds; of shared elements those of the rank that saves them.
    ///
    /// # Panics
    /// If there is not one part per rank, of its elements.
    #[must_use]
    pub fn unshard<E: Copy + Default>(&self, parts: &[impl AsRef<[E]>]) -> Vec<E> {
        assert_eq!(parts.len(), self.ranks(), "invariant: one part per rank");
        let mut whole = vec![E::default(); self.shape.iter().product()];
        for (rank, part) in parts.iter().enumerate() {
            let (held, primary) = (self.region(rank), self.primary(rank));
            assert_eq!(part.as_ref().len(), held.elements(), "invariant: what rank {rank} holds");
            held.locate(&primary).copy_to(part.as_ref(), &primary, &mut whole);
        }
        whole
    }

    /// Of the rows (dimension 0) `rows` of what `rank` holds, those that it [saves](Self::primary), with their place in
    /// the whole; none where it holds no whole row.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn saved_rows(&self, rank: usize, rows: &Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
        let held = self.region(rank);
        if !(1..self.shape.len()).all(|dim| held.has_all(dim)) {
            return Vec::new();
        }
        let given = ranges::select(held.ranges(0), std::slice::from_ref(rows));
        let saved = ranges::intersect(&given, self.primary(rank).ranges(0));
        let own = |whole: Range<usize>| {
            let here = ranges::locate(held.ranges(0), std::slice::from_ref(&whole));
            here.into_iter().map(move |here| (here, whole.clone()))
        };
        saved.into_iter().flat_map(own).collect()
    }
}
