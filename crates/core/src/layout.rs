//! How a logical tensor lies over the ranks of one mesh axis.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Placement of a logical tensor over the ranks of one mesh axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Every rank holds the whole tensor.
    #[default]
    Replicated,
    /// Rank `i` holds `ranges[i]` of dimension `dim`; ranges may be uneven and empty.
    Shard {
        /// The sharded dimension.
        dim: usize,
        /// One range per rank, in rank order.
        ranges: Vec<Range<usize>>,
    },
    /// Rank `i` holds `pieces[i]` of dimension `dim`: several ranges where one matrix packs blocks.
    Packed {
        /// The sharded dimension.
        dim: usize,
        /// Ascending ranges per rank, in rank order.
        pieces: Vec<Vec<Range<usize>>>,
    },
    /// Each rank holds an addend of the tensor, not yet summed.
    Partial,
    /// One rank holds the whole tensor.
    Owned {
        /// The owner's index on the axis.
        rank: usize,
    },
}
