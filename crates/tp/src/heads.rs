//! Attention heads over the ranks.

use std::ops::Range;

use burnish_core::Split;

use crate::TpError;

/// The heads of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankHeads {
    /// Its query heads.
    pub q: Range<usize>,
    /// Its key and value heads.
    pub kv: Range<usize>,
    /// Whether it counts and saves its key and value heads; no other rank that has them does.
    pub primary: bool,
}

/// Query, key and value heads over the ranks, so that every rank's attention is whole: each query head has its key and
/// value head beside it, and every key and value head of a rank serves the same number of its query heads.
///
/// With at most as many ranks as key and value heads these are dealt out, and their query heads follow. With more, each
/// key and value head is given to a group of ranks that share its query heads out among them; the group's gradients of
/// the key and value weights are then addends ([`Gradient::Shared`](crate::Gradient::Shared)).
///
/// ```
/// use burnish_tp::HeadSplit;
///
/// let heads = HeadSplit::new(8, 2, 3)?;
/// assert_eq!((heads.of(0).q.clone(), heads.of(0).kv.clone()), (0..2, 0..1));
/// assert_eq!((heads.of(1).q.clone(), heads.of(1).kv.clone()), (2..4, 0..1));
/// assert_eq!((heads.of(2).q.clone(), heads.of(2).kv.clone()), (4..8, 1..2));
/// assert!(heads.of(0).primary && !heads.of(1).primary);
/// # Ok::<_, burnish_tp::TpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSplit {
    heads: usize,
    kv_heads: usize,
    ranks: Vec<RankHeads>,
}

impl HeadSplit {
    /// `heads` query heads and `kv_heads` key and value heads over `tp` ranks.
    ///
    /// # Errors
    /// [`TpError::Heads`] for more ranks than heads; [`TpError::HeadGroups`] where key and value heads do not serve equal
    /// numbers of query heads; [`TpError::NoRanks`].
    pub fn new(heads: usize, kv_heads: usize, tp: usize) -> Result<Self, TpError> {
        if tp == 0 {
            return Err(TpError::NoRanks);
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(TpError::HeadGroups { heads, kv_heads });
        }
        if tp > heads {
            return Err(TpError::Heads { heads, tp });
        }
        let each = heads / kv_heads;
        let mut ranks = Vec::with_capacity(tp);
        if tp <= kv_heads {
            for rank in 0..tp {
                let kv = Split::balanced_range(kv_heads, tp, rank);
                ranks.push(RankHeads { q: kv.start * each..kv.end * each, kv, primary: true });
            }
        } else {
            for kv in 0..kv_heads {
                let sharing = Split::balanced_range(tp, kv_heads, kv).len();
                for member in 0..sharing {
                    let q = Split::balanced_range(each, sharing, member);
                    let q = kv * each + q.start..kv * each + q.end;
                    ranks.push(RankHeads { q, kv: kv..kv + 1, primary: member == 0 });
                }
            }
        }
        Ok(Self { heads, kv_heads, ranks })
    }

    /// The heads of `rank`.
    #[must_use]
    pub fn of(&self, rank: usize) -> &RankHeads {
        &self.ranks[rank]
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Whether key and value heads are on several ranks.
    #[must_use]
    pub fn shared(&self) -> bool {
        self.ranks.iter().any(|rank| !rank.primary)
    }

    /// The rows of a query projection, the columns of an output projection.
    #[must_use]
    pub fn q(&self, head_dim: usize) -> Split {
        let own = |rank: &RankHeads| [rank.q.clone()];
        Split::of(self.heads, self.ranks.iter().map(own)).scaled(head_dim)
    }

    /// The rows of a key or value projection.
    #[must_use]
    pub fn kv(&self, head_dim: usize) -> Split {
        let own = |rank: &RankHeads| [rank.kv.clone()];
        Split::of(self.kv_heads, self.ranks.iter().map(own)).scaled(head_dim)
    }
}
