//! One dimension over the ranks.

use std::ops::Range;

use burnish_core::Layout;

use crate::TpError;

/// Which elements of one dimension each rank holds: ranges that may be uneven and empty, several per rank where a
/// matrix packs blocks, and the same on several ranks where they share key and value heads.
///
/// ```
/// use burnish_tp::Split;
///
/// let split = Split::balanced(10, 4)?;
/// assert_eq!((0..4).map(|r| split.len(r)).collect::<Vec<_>>(), [3, 3, 2, 2]);
/// // gate and up in one matrix: each rank has its rows of both
/// let packed = Split::packed(&[split.clone(), split])?;
/// assert_eq!(packed.pieces(3), [8..10, 18..20]);
/// # Ok::<_, burnish_tp::TpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    length: usize,
    /// Per rank, ascending, no empty ones.
    pieces: Vec<Vec<Range<usize>>>,
}

impl Split {
    /// `length / ranks` elements each, and one more on the first `length % ranks` ranks.
    ///
    /// # Errors
    /// [`TpError::NoRanks`].
    pub fn balanced(length: usize, ranks: usize) -> Result<Self, TpError> {
        if ranks == 0 {
            return Err(TpError::NoRanks);
        }
        Ok(Self::of(length, (0..ranks).map(|rank| vec![balanced(length, ranks, rank)]).collect()))
    }

    /// Everything on one rank.
    #[must_use]
    pub fn whole(length: usize) -> Self {
        Self::of(length, vec![vec![0..length]])
    }

    pub(crate) fn of(length: usize, mut pieces: Vec<Vec<Range<usize>>>) -> Self {
        for own in &mut pieces {
            own.retain(|piece| !piece.is_empty());
        }
        Self { length, pieces }
    }

    /// Blocks that lie one after another in the same dimension (gate and up; queries, keys and values): each rank has
    /// its part of each.
    ///
    /// # Errors
    /// [`TpError::NoRanks`] without blocks; [`TpError::Ranks`] for blocks over different numbers of ranks.
    pub fn packed(blocks: &[Self]) -> Result<Self, TpError> {
        let Some(first) = blocks.first() else { return Err(TpError::NoRanks) };
        let ranks = first.ranks();
        let mut length = 0;
        let mut pieces = vec![Vec::new(); ranks];
        for (number, block) in blocks.iter().enumerate() {
            if block.ranks() != ranks {
                let what = format!("block {number}");
                return Err(TpError::Ranks { what, placed: block.ranks(), group: ranks });
            }
            for (all, own) in pieces.iter_mut().zip(&block.pieces) {
                all.extend(own.iter().map(|piece| piece.start + length..piece.end + length));
            }
            length += block.length;
        }
        Ok(Self::of(length, pieces))
    }

    /// Every element replaced by `by` elements: heads to their rows.
    #[must_use]
    pub fn scaled(&self, by: usize) -> Self {
        let scale = |piece: &Range<usize>| piece.start * by..piece.end * by;
        Self::of(self.length * by, self.pieces.iter().map(|own| own.iter().map(scale).collect()).collect())
    }

    /// The whole dimension.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.pieces.len()
    }

    /// What `rank` holds, ascending; none if it holds nothing.
    #[must_use]
    pub fn pieces(&self, rank: usize) -> &[Range<usize>] {
        &self.pieces[rank]
    }

    /// How many elements `rank` holds.
    #[must_use]
    pub fn len(&self, rank: usize) -> usize {
        self.pieces[rank].iter().map(Range::len).sum()
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
        match self.pieces[rank].as_slice() {
            [] => {
                let at = self.pieces[..rank].iter().flatten().map(|piece| piece.end).max().unwrap_or(0);
                Some(at..at)
            }
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// As a layout of dimension `dim`.
    #[must_use]
    pub fn layout(&self, dim: usize) -> Layout {
        match (0..self.ranks()).map(|rank| self.range(rank)).collect() {
            Some(ranges) => Layout::Shard { dim, ranges },
            None => Layout::Packed { dim, pieces: self.pieces.clone() },
        }
    }

    /// The elements of `rank` that no lower rank holds: those that it counts and saves.
    #[must_use]
    pub fn primary(&self, rank: usize) -> Vec<Range<usize>> {
        let mut own = self.pieces[rank].clone();
        for taken in self.pieces[..rank].iter().flatten() {
            own = own
                .into_iter()
                .flat_map(|piece| {
                    let before = piece.start..piece.end.min(taken.start);
                    let after = piece.start.max(taken.end)..piece.end;
                    // a taken range beyond the piece leaves all of it on one side
                    if taken.end <= piece.start || piece.end <= taken.start {
                        [piece, 0..0]
                    } else {
                        [before, after]
                    }
                })
                .filter(|piece| !piece.is_empty())
                .collect();
        }
        own
    }

    /// Whether some elements are on several ranks.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        (0..self.ranks())
            .any(|rank| self.primary(rank).iter().map(Range::len).sum::<usize>() < self.len(rank))
    }

    /// Where the elements `local` of what `rank` holds lie among all.
    #[must_use]
    pub fn global(&self, rank: usize, local: &Range<usize>) -> Vec<Range<usize>> {
        let mut at = 0;
        let mut found = Vec::new();
        for piece in &self.pieces[rank] {
            let (start, end) = (local.start.max(at), local.end.min(at + piece.len()));
            if start < end {
                found.push(piece.start + start - at..piece.start + end - at);
            }
            at += piece.len();
        }
        found
    }

    /// The elements of `ranges` counted within what `rank` holds; parts that it does not hold are left out.
    #[must_use]
    pub fn local(&self, rank: usize, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut at = 0;
        for piece in &self.pieces[rank] {
            for range in ranges {
                let (start, end) = (range.start.max(piece.start), range.end.min(piece.end));
                if start < end {
                    let here = at + start - piece.start..at + end - piece.start;
                    match found.last_mut() {
                        Some(last) if last.end == here.start => last.end = here.end,
                        _ => found.push(here),
                    }
                }
            }
            at += piece.len();
        }
        found
    }
}

/// The range of `rank` when `length` elements are dealt to `ranks`, the first ones getting one more.
pub(crate) fn balanced(length: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (length / ranks, length % ranks);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}
