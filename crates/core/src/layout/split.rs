//! One dimension over the ranks of one axis.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{LayoutError, ranges};

/// Which elements of one dimension each rank holds: ranges that may be uneven and empty, several per rank where a
/// matrix packs blocks, and the same on several ranks where they share key and value heads.
///
/// ```
/// use burnish_core::Split;
///
/// let split = Split::balanced(10, 4)?;
/// assert_eq!((0..4).map(|r| split.len(r)).collect::<Vec<_>>(), [3, 3, 2, 2]);
/// // gate and up in one matrix: each rank has its rows of both
/// let packed = Split::packed(&[split.clone(), split])?;
/// assert_eq!(packed.pieces(3), [8..10, 18..20]);
/// # Ok::<_, burnish_core::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    length: usize,
    /// The ranges of all ranks, one after the other; ascending within a rank, none empty.
    ranges: Vec<Range<usize>>,
    /// Rank `r` holds `ranges[first[r]..first[r + 1]]`.
    first: Vec<usize>,
}

impl Split {
    /// Everything on one rank.
    #[must_use]
    pub fn whole(length: usize) -> Self {
        Self::of(length, [std::iter::once(0..length)])
    }

    /// `length / ranks` elements each, and one more on the first `length % ranks` ranks.
    ///
    /// # Errors
    /// [`LayoutError::NoRanks`].
    pub fn balanced(length: usize, ranks: usize) -> Result<Self, LayoutError> {
        if ranks == 0 {
            return Err(LayoutError::NoRanks);
        }
        Ok(Self::of(length, (0..ranks).map(|rank| [Self::balanced_range(length, ranks, rank)])))
    }

    /// The range of `rank` in [`balanced`](Self::balanced).
    #[must_use]
    pub fn balanced_range(length: usize, ranks: usize, rank: usize) -> Range<usize> {
        let (each, more) = (length / ranks, length % ranks);
        let start = rank * each + rank.min(more);
        start..start + each + usize::from(rank < more)
    }

    /// `length / N` elements each, and the remaining ones to the ranks with the smallest `loads` (ties: lowest rank), in
    /// rank order. Each element adds `weight` to its rank's load.
    ///
    /// Over any sequence of splits, no two loads that began equal differ by more than the largest weight.
    ///
    /// # Errors
    /// [`LayoutError::NoRanks`].
    pub fn by_load(length: usize, weight: usize, loads: &mut [usize]) -> Result<Self, LayoutError> {
        let ranks = loads.len();
        if ranks == 0 {
            return Err(LayoutError::NoRanks);
        }
        let mut order: Vec<usize> = (0..ranks).collect();
        order.sort_by_key(|&rank| (loads[rank], rank));
        let mut counts = vec![length / ranks; ranks];
        for &rank in &order[..length % ranks] {
            counts[rank] += 1;
        }
        for (load, count) in loads.iter_mut().zip(&counts) {
            *load += count * weight;
        }
        Ok(Self::in_order(&counts))
    }

    /// `length / ranks` elements each, and the remaining ones to the ranks from `start` on, in rank order.
    ///
    /// # Errors
    /// [`LayoutError::NoRanks`].
    pub fn from_rank(length: usize, ranks: usize, start: usize) -> Result<Self, LayoutError> {
        let turn = |rank: usize| (rank + ranks - start % ranks.max(1)) % ranks.max(1);
        let mut loads: Vec<usize> = (0..ranks).map(turn).collect();
        Self::by_load(length, 0, &mut loads)
    }

    /// Everything on `owner`, nothing on the other ranks.
    ///
    /// # Panics
    /// If `owner` is not one of `ranks` ranks.
    #[must_use]
    pub fn owned(length: usize, ranks: usize, owner: usize) -> Self {
        assert!(owner < ranks, "invariant: owner {owner} is one of {ranks} ranks");
        let mut counts = vec![0; ranks];
        counts[owner] = length;
        Self::in_order(&counts)
    }

    /// So many elements on each rank, in rank order.
    #[must_use]
    pub fn in_order(counts: &[usize]) -> Self {
        let mut end = 0;
        let own = counts.iter().map(|count| {
            end += count;
            std::iter::once(end - count..end)
        });
        let pieces: Vec<_> = own.collect();
        Self::of(end, pieces)
    }

    /// These ranges on each rank; empty ones are left out.
    ///
    /// # Panics
    /// If a rank's ranges overlap, go back or end behind `length`.
    #[must_use]
    pub fn of<P: IntoIterator<Item = Range<usize>>>(
        length: usize,
        pieces: impl IntoIterator<Item = P>,
    ) -> Self {
        let (mut all, mut first) = (Vec::new(), vec![0]);
        for own in pieces {
            let mut end = 0;
            for piece in own.into_iter().filter(|piece| !piece.is_empty()) {
                assert!(
                    end <= piece.start && piece.end <= length,
                    "invariant: {piece:?} after {end}, within {length}"
                );
                end = piece.end;
                all.push(piece);
            }
            first.push(all.len());
        }
        Self { length, ranges: all, first }
    }

    /// Blocks that lie one after another in the same dimension (gate and up; queries, keys and values): each rank has
    /// its part of each.
    ///
    /// # Errors
    /// [`LayoutError::NoRanks`] without blocks; [`LayoutError::Ranks`] for blocks over different numbers of ranks.
    pub fn packed(blocks: &[Self]) -> Result<Self, LayoutError> {
        let Some(first) = blocks.first() else { return Err(LayoutError::NoRanks) };
        let ranks = first.ranks();
        let mut length = 0;
        let mut pieces = vec![Vec::new(); ranks];
        for (number, block) in blocks.iter().enumerate() {
            if block.ranks() != ranks {
                let what = format!("block {number}");
                return Err(LayoutError::Ranks { what, placed: block.ranks(), group: ranks });
            }
            for (rank, all) in pieces.iter_mut().enumerate() {
                all.extend(block.pieces(rank).iter().map(|piece| piece.start + length..piece.end + length));
            }
            length += block.length;
        }
        Ok(Self::of(length, pieces))
    }

    /// Every element replaced by `by` elements: heads to their rows.
    #[must_use]
    pub fn scaled(&self, by: usize) -> Self {
        let scale = |piece: &Range<usize>| piece.start * by..piece.end * by;
        Self::of(self.length * by, (0..self.ranks()).map(|rank| self.pieces(rank).iter().map(scale)))
    }

    /// The whole dimension.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.first.len() - 1
    }

    /// What `rank` holds, ascending; none if it holds nothing.
    #[must_use]
    pub fn pieces(&self, rank: usize) -> &[Range<usize>] {
        &self.ranges[self.first[rank]..self.first[rank + 1]]
    }

    /// How many elements `rank` holds.
    #[must_use]
    pub fn len(&self, rank: usize) -> usize {
        ranges::length(self.pieces(rank))
    }

    /// Whether the dimension itself has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What `rank` holds as one range (empty at the end of what comes before if it holds nothing); `None` if it holds
    /// several.
    #[must_use]
    pub fn range(&self, rank: usize) -> Option<Range<usize>> {
        match self.pieces(rank) {
            [] => {
                let before = &self.ranges[..self.first[rank]];
                let at = before.iter().map(|piece| piece.end).max().unwrap_or(0);
                Some(at..at)
            }
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// Whether some rank holds several ranges.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        (0..self.ranks()).any(|rank| self.pieces(rank).len() > 1)
    }

    /// The rank that holds everything, if one does and there is something.
    #[must_use]
    pub fn owner(&self) -> Option<usize> {
        (0..self.ranks()).find(|&rank| self.length > 0 && self.len(rank) == self.length)
    }

    /// The elements of `rank` that no lower rank holds: those that it counts and saves.
    #[must_use]
    pub fn primary(&self, rank: usize) -> Vec<Range<usize>> {
        ranges::without(self.pieces(rank), &self.ranges[..self.first[rank]])
    }

    /// Whether some elements are on several ranks.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        (0..self.ranks()).any(|rank| ranges::length(&self.primary(rank)) < self.len(rank))
    }

    /// Where the elements `local` of what `rank` holds lie among all.
    #[must_use]
    pub fn global(&self, rank: usize, local: &Range<usize>) -> Vec<Range<usize>> {
        ranges::select(self.pieces(rank), std::slice::from_ref(local))
    }

    /// The elements of `ranges` counted within what `rank` holds; parts that it does not hold are left out.
    #[must_use]
    pub fn local(&self, rank: usize, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        ranges::locate(self.pieces(rank), ranges)
    }
}
