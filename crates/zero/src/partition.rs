//! Which rows of a parameter each rank owns.

use std::ops::Range;

use burnish_core::Layout;
use serde::{Deserialize, Serialize};

/// The rows (dimension 0) of one parameter, dealt to ranks as contiguous ranges in rank order.
///
/// A scalar is one row. Ranges may be uneven and empty, and there is no padding: FSDP2's rows rather than DeepSpeed's
/// flat slices, so that a matrix keeps its rows whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// One more bound than ranks; rank `r` owns `bounds[r]..bounds[r + 1]`.
    bounds: Vec<usize>,
    /// Elements per row.
    row: usize,
}

impl Partition {
    /// Everything on every rank's own: the partition over one rank.
    #[must_use]
    pub fn whole(shape: &[usize]) -> Self {
        let (rows, row) = rows_of(shape);
        Self { bounds: vec![0, rows], row }
    }

    /// All rows on `owner`, none elsewhere (an optimizer that needs whole matrices).
    ///
    /// # Panics
    /// If `owner` is not one of `world` ranks.
    #[must_use]
    pub fn owned(shape: &[usize], world: usize, owner: usize) -> Self {
        assert!(owner < world, "invariant: owner {owner} is one of {world} ranks");
        let (rows, row) = rows_of(shape);
        Self { bounds: (0..=world).map(|r| if r <= owner { 0 } else { rows }).collect(), row }
    }

    /// `rows / N` rows each, and the remaining ones to the ranks with the smallest `loads` (ties: lowest rank);
    /// `loads` then counts this parameter's elements too.
    ///
    /// Over any sequence of parameters, no two loads that began equal differ by more than the widest row.
    ///
    /// # Panics
    /// If there are no ranks.
    #[must_use]
    pub fn balanced(shape: &[usize], loads: &mut [usize]) -> Self {
        assert!(!loads.is_empty(), "invariant: at least one rank");
        let (rows, row) = rows_of(shape);
        let world = loads.len();
        let mut order: Vec<usize> = (0..world).collect();
        order.sort_by_key(|&rank| (loads[rank], rank));
        let mut counts = vec![rows / world; world];
        for &rank in &order[..rows % world] {
            counts[rank] += 1;
        }
        let mut bounds = Vec::with_capacity(world + 1);
        bounds.push(0);
        for (rank, count) in counts.into_iter().enumerate() {
            loads[rank] += count * row;
            bounds.push(bounds[rank] + count);
        }
        Self { bounds, row }
    }

    /// `rows / N` rows each, and the remaining ones to the ranks from `start` on: the same rows for every parameter with
    /// as many, whatever else there is.
    ///
    /// # Panics
    /// If there are no ranks.
    #[must_use]
    pub fn dealt(shape: &[usize], world: usize, start: usize) -> Self {
        assert!(world > 0, "invariant: at least one rank");
        let mut loads: Vec<usize> = (0..world).map(|rank| (rank + world - start % world) % world).collect();
        let (rows, row) = rows_of(shape);
        Self { row, ..Self::balanced(&[rows], &mut loads) }
    }

    /// How many ranks it is dealt to.
    #[must_use]
    pub fn world(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The rows that `rank` owns.
    #[must_use]
    pub fn rows(&self, rank: usize) -> Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }

    /// The elements that `rank` owns, in the parameter's row-major order.
    #[must_use]
    pub fn elements(&self, rank: usize) -> Range<usize> {
        self.bounds[rank] * self.row..self.bounds[rank + 1] * self.row
    }

    /// All rows.
    #[must_use]
    pub fn all_rows(&self) -> usize {
        self.bounds[self.world()]
    }

    /// All elements.
    #[must_use]
    pub fn all_elements(&self) -> usize {
        self.all_rows() * self.row
    }

    /// Elements per row.
    #[must_use]
    pub fn row(&self) -> usize {
        self.row
    }

    /// The rank that owns every row, if one does and there are rows.
    #[must_use]
    pub fn owner(&self) -> Option<usize> {
        let all = 0..self.all_rows();
        (0..self.world()).find(|&rank| !all.is_empty() && self.rows(rank) == all)
    }

    /// As a layout over the data-parallel axis.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self.owner() {
            Some(rank) if self.world() > 1 => Layout::Owned { rank },
            _ if self.world() == 1 => Layout::Replicated,
            _ => Layout::Shard { dim: 0, ranges: (0..self.world()).map(|r| self.rows(r)).collect() },
        }
    }
}

/// Rows and elements per row of a shape.
pub(crate) fn rows_of(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
    }
}

/// The shape of `rows` rows of a parameter.
pub(crate) fn rows_shape(shape: &[usize], rows: usize) -> Vec<usize> {
    match shape {
        [] => vec![rows],
        [_, rest @ ..] => std::iter::once(rows).chain(rest.iter().copied()).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_remaining_rows_go_where_least_is() {
        let mut loads = [0; 4];
        let first = Partition::balanced(&[5, 3], &mut loads);
        assert_eq!((0..4).map(|r| first.rows(r).len()).collect::<Vec<_>>(), [2, 1, 1, 1]);
        let second = Partition::balanced(&[6], &mut loads);
        assert_eq!((0..4).map(|r| second.rows(r)).collect::<Vec<_>>(), [0..1, 1..3, 3..5, 5..6]);
        assert_eq!(loads, [7, 5, 5, 4]);
    }

    #[test]
    fn scalars_and_nothing_have_rows_too() {
        let mut loads = [0; 3];
        let scalar = Partition::balanced(&[], &mut loads);
        assert_eq!((scalar.all_rows(), scalar.all_elements(), scalar.owner()), (1, 1, Some(0)));
        let none = Partition::balanced(&[0, 7], &mut loads);
        assert_eq!((none.all_elements(), none.owner()), (0, None));
        let thin = Partition::balanced(&[7, 0], &mut loads);
        assert_eq!((thin.all_rows(), thin.all_elements()), (7, 0));
        assert_eq!(loads, [1, 0, 0]);
    }

    #[test]
    fn an_owner_has_everything() {
        let partition = Partition::owned(&[4, 2], 3, 1);
        assert_eq!((0..3).map(|r| partition.elements(r)).collect::<Vec<_>>(), [0..0, 0..8, 8..8]);
        assert_eq!(partition.layout(), Layout::Owned { rank: 1 });
    }

    proptest! {
        #[test]
        fn ranges_cover_in_order_and_loads_stay_within_a_row(
            world in 1usize..9,
            shapes in prop::collection::vec(prop::collection::vec(0usize..17, 0..4), 0..20),
        ) {
            let mut loads = vec![0; world];
            let mut widest = 0;
            for shape in &shapes {
                let partition = Partition::balanced(shape, &mut loads);
                prop_assert_eq!(partition.world(), world);
                let mut next = 0;
                for rank in 0..world {
                    let rows = partition.rows(rank);
                    prop_assert_eq!(rows.start, next);
                    prop_assert!(rows.len().abs_diff(partition.all_rows() / world) <= 1);
                    prop_assert_eq!(partition.elements(rank).len(), rows.len() * partition.row());
                    next = rows.end;
                }
                prop_assert_eq!(next * partition.row(), shape.iter().product::<usize>());
                widest = widest.max(partition.row());
                let (low, high) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
                prop_assert!(high - low <= widest, "loads {loads:?}, widest row {widest}");
            }
            let total: usize = shapes.iter().map(|s| s.iter().product::<usize>()).sum();
            prop_assert_eq!(loads.iter().sum::<usize>(), total);
        }

        #[test]
        fn the_rule_is_a_function_of_what_came_before(world in 1usize..6, rows in 0usize..30, row in 1usize..5) {
            let shape = [rows, row];
            let mut first = vec![3; world];
            let mut second = vec![3; world];
            prop_assert_eq!(
                Partition::balanced(&shape, &mut first),
                Partition::balanced(&shape, &mut second)
            );
        }
    }
}
