//! Layouts over compositions of axes: what is dealt out comes back, every element once.

#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init, reason = "tests")]

use burnish_core::layout::{DP, Layout, LayoutError, Region, Split, TP};
use proptest::prelude::*;

/// How one axis divides a dimension.
#[derive(Clone, Copy, Debug)]
enum Way {
    Whole,
    Balanced,
    /// The larger parts from another rank on, which differs between outer ranks.
    Turned,
    Owned,
    /// Two blocks that lie one after the other.
    Packed,
    /// Neighbours hold the same, as ranks that share a key head.
    Shared,
    /// Each has the first element of the next one too.
    Overlapping,
}

const WAYS: [Way; 7] =
    [Way::Whole, Way::Balanced, Way::Turned, Way::Owned, Way::Packed, Way::Shared, Way::Overlapping];

#[derive(Clone, Debug)]
struct AxisCase {
    name: &'static str,
    ranks: usize,
    dim: usize,
    way: Way,
}

impl AxisCase {
    /// How what the outer rank `outer` holds lies over this axis.
    fn layout(&self, outer: usize, shape: &[usize]) -> Result<Layout, LayoutError> {
        let (ranks, dim) = (self.ranks, self.dim % shape.len());
        let length = shape[dim];
        let split = match self.way {
            Way::Whole => return Ok(Layout::replicated(shape, self.name, ranks)),
            Way::Balanced => Split::balanced(length, ranks)?,
            Way::Turned => Split::from_rank(length, ranks, outer + 1)?,
            Way::Owned => Split::owned(length, ranks, outer % ranks),
            Way::Packed => {
                let (first, second) = (length / 3, length - length / 3);
                Split::packed(&[Split::balanced(first, ranks)?, Split::balanced(second, ranks)?])?
            }
            Way::Shared => {
                let groups = ranks.div_ceil(2);
                Split::of(length, (0..ranks).map(|r| [Split::balanced_range(length, groups, r / 2)]))
            }
            Way::Overlapping => Split::of(
                length,
                (0..ranks).map(|r| {
                    let own = Split::balanced_range(length, ranks, r);
                    [own.start..(own.end + 1).min(length)]
                }),
            ),
        };
        Layout::sharded(shape, self.name, dim, split)
    }
}

fn axis(name: &'static str) -> impl Strategy<Value = AxisCase> {
    (1usize..5, 0usize..3, prop::sample::select(&WAYS[..])).prop_map(move |(ranks, dim, way)| AxisCase {
        name,
        ranks,
        dim,
        way,
    })
}

fn composed(shape: &[usize], axes: &[AxisCase]) -> Layout {
    let (first, rest) = axes.split_first().unwrap();
    rest.iter().fold(first.layout(0, shape).unwrap(), |layout, axis| {
        layout.compose(|outer, shape| axis.layout(outer, shape)).unwrap()
    })
}

fn numbers(shape: &[usize]) -> Vec<u32> {
    (0..shape.iter().product::<usize>() as u32).map(|i| 3 * i + 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Shard and back, over experts, tensor-parallel and data-parallel ranks, whatever each divides.
    #[test]
    fn three_axes_give_back_what_they_took(
        shape in prop::collection::vec(0usize..8, 1..4),
        ep in axis("ep"), tp in axis(TP), dp in axis(DP),
    ) {
        let layout = composed(&shape, &[ep.clone(), tp.clone(), dp.clone()]);
        prop_assert_eq!(layout.ranks(), ep.ranks * tp.ranks * dp.ranks);
        let all = numbers(&shape);
        let parts: Vec<Vec<u32>> = (0..layout.ranks()).map(|rank| layout.shard(&all, rank)).collect();
        for (rank, part) in parts.iter().enumerate() {
            let region = layout.region(rank);
            region.check().unwrap();
            prop_assert_eq!(region.local_shape(), layout.local_shape(rank));
            prop_assert_eq!(part.len(), layout.local_shape(rank).iter().product::<usize>());
            prop_assert_eq!(region.is_empty(), part.is_empty());
        }
        prop_assert_eq!(layout.unshard(&parts), all);
    }

    /// Every element is saved by exactly one rank, which holds it.
    #[test]
    fn every_element_is_one_ranks_to_save(
        shape in prop::collection::vec(0usize..7, 1..4), ep in axis("ep"), tp in axis(TP), dp in axis(DP),
    ) {
        let layout = composed(&shape, &[ep, tp, dp]);
        let mut saved = vec![0; shape.iter().product()];
        for rank in 0..layout.ranks() {
            let (held, primary) = (layout.region(rank), layout.primary(rank));
            prop_assert_eq!(&held.intersect(&primary), &primary);
            primary.each_run(|run| saved[run].iter_mut().for_each(|times| *times += 1));
        }
        prop_assert!(saved.iter().all(|&times| times == 1), "{:?}: {:?}", layout, saved);
    }

    /// Composing is associative, and the rank is found by the names of the axes in any order.
    #[test]
    fn it_does_not_matter_what_is_composed_first(
        shape in prop::collection::vec(0usize..7, 1..4), ep in axis("ep"), tp in axis(TP), dp in axis(DP),
    ) {
        // the inner axes turn by the tensor-parallel rank alone, so that both orders can be asked for the same
        let inner = |shape: &[usize]| {
            tp.layout(0, shape)?.compose(|outer, shape| dp.layout(outer, shape))
        };
        let first = ep.layout(0, &shape).unwrap();
        let left = first.compose(|_, shape| inner(shape)).unwrap();
        let both = first.compose(|_, shape| tp.layout(0, shape)).unwrap();
        let right = both.compose(|outer, shape| dp.layout(outer % tp.ranks, shape)).unwrap();
        prop_assert_eq!(&left, &right);
        let mut seen = Vec::new();
        for e in 0..ep.ranks {
            for t in 0..tp.ranks {
                for d in 0..dp.ranks {
                    let rank = left.rank(&[(DP, d), ("pp", 7), ("ep", e), (TP, t)]);
                    seen.push(rank);
                    // step by step, each in what the one before left
                    let by_ep = ep.layout(0, &shape).unwrap().region(e);
                    let by_tp = tp.layout(0, &by_ep.local_shape()).unwrap().region(t);
                    let by_dp = dp.layout(t, &by_tp.local_shape()).unwrap().region(d);
                    prop_assert_eq!(left.region(rank), by_ep.select(&by_tp).select(&by_dp));
                }
            }
        }
        prop_assert_eq!(seen, (0..left.ranks()).collect::<Vec<_>>());
    }

    /// A part of a part is found in the whole, and again in the part.
    #[test]
    fn local_and_global_ranges_are_inverse(
        shape in prop::collection::vec(0usize..8, 1..4), tp in axis(TP), dp in axis(DP),
    ) {
        let layout = tp.layout(0, &shape).unwrap();
        let all = numbers(&shape);
        for rank in 0..layout.ranks() {
            let held = layout.region(rank);
            let inner = dp.layout(rank, &held.local_shape()).unwrap();
            for own in 0..inner.ranks() {
                let part = inner.region(own);
                let global = held.select(&part);
                prop_assert_eq!(held.locate(&global).elements(), part.elements());
                prop_assert_eq!(part.read(&held.read(&all)), global.read(&all));
                let mut placed = vec![0; all.len()];
                global.place(&global.read(&all), &mut placed);
                let mut copied = vec![0; all.len()];
                part.copy_to(&held.read(&all), &global, &mut copied);
                prop_assert_eq!(&placed, &copied);
                let bytes: Vec<u8> = all.iter().flat_map(|n| n.to_le_bytes()).collect();
                let read: Vec<u8> = global.read(&all).iter().flat_map(|n| n.to_le_bytes()).collect();
                prop_assert_eq!(global.read_units(&bytes, 4), read);
            }
        }
    }

    /// Ranks that save what they hold some rows at a time save every row once, where it belongs.
    #[test]
    fn rows_are_saved_once_in_any_portions(
        rows in 0usize..12, columns in 1usize..4, tp in axis(TP), dp in axis(DP), cut in 0usize..12,
    ) {
        let by_rows = |axis: AxisCase| AxisCase { dim: 0, ..axis };
        let layout = composed(&[rows, columns], &[by_rows(tp), by_rows(dp)]);
        let all = numbers(&[rows, columns]);
        let mut found = vec![0; all.len()];
        for rank in 0..layout.ranks() {
            let part = layout.shard(&all, rank);
            let own = layout.local_shape(rank)[0];
            let cut = cut.min(own);
            for given in [0..cut, cut..own] {
                for (here, there) in layout.saved_rows(rank, &given) {
                    prop_assert!(given.start <= here.start && here.end <= given.end);
                    prop_assert_eq!(here.len(), there.len());
                    let to = &mut found[there.start * columns..there.end * columns];
                    prop_assert!(to.iter().all(|&n| n == 0), "twice");
                    to.copy_from_slice(&part[here.start * columns..here.end * columns]);
                }
            }
        }
        prop_assert_eq!(found, all);
    }

    /// Flattened to a matrix a region has the same elements.
    #[test]
    fn a_region_of_a_batch_is_one_of_a_matrix(
        shape in prop::collection::vec(1usize..6, 1..5), tp in axis(TP), dp in axis(DP),
    ) {
        let layout = composed(&shape, &[tp, dp]);
        let all = numbers(&shape);
        for rank in 0..layout.ranks() {
            let matrix = layout.region(rank).as_matrix();
            prop_assert_eq!(matrix.shape().len(), 2);
            matrix.check().unwrap();
            prop_assert_eq!(matrix.read(&all), layout.shard(&all, rank));
        }
    }

    #[test]
    fn loads_stay_within_a_row(
        ranks in 1usize..9, tensors in prop::collection::vec((0usize..17, 0usize..9), 0..20),
    ) {
        let mut loads = vec![0; ranks];
        let mut widest = 0;
        for &(rows, row) in &tensors {
            let before = loads.clone();
            let split = Split::by_load(rows, row, &mut loads).unwrap();
            prop_assert_eq!(&split, &Split::by_load(rows, row, &mut before.clone()).unwrap());
            let mut next = 0;
            for rank in 0..ranks {
                let own = split.range(rank).unwrap();
                prop_assert_eq!(own.start, next);
                prop_assert!(own.len().abs_diff(rows / ranks) <= 1);
                prop_assert_eq!(loads[rank] - before[rank], own.len() * row);
                next = own.end;
            }
            prop_assert_eq!(next, rows);
            widest = widest.max(row);
            let (low, high) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            prop_assert!(high - low <= widest, "loads {loads:?}, widest row {widest}");
        }
    }
}

/// A fourth axis is one more layout: experts over `ep`, their columns over `tp`, rows over `dp`, and `cp` has all.
#[test]
fn an_axis_more_is_a_layout_more() {
    let experts = Layout::sharded(&[8, 6, 4], "ep", 0, Split::balanced(8, 2).unwrap()).unwrap();
    let columns = |_, shape: &[usize]| Layout::sharded(shape, TP, 2, Split::balanced(shape[2], 2)?);
    let rows = |_, shape: &[usize]| Layout::sharded(shape, DP, 1, Split::balanced(shape[1], 3)?);
    let whole = |_, shape: &[usize]| Ok(Layout::replicated(shape, "cp", 2));
    let layout = experts.compose(columns).unwrap().compose(rows).unwrap().compose(whole).unwrap();
    assert_eq!(layout.axes().collect::<Vec<_>>(), [("ep", 2), ("tp", 2), ("dp", 3), ("cp", 2)]);
    let rank = layout.rank(&[("ep", 1), ("tp", 0), ("dp", 2), ("cp", 1)]);
    let region = layout.region(rank);
    assert_eq!(
        (region.ranges(0), region.ranges(1), region.ranges(2)),
        (&[4..8][..], &[4..6][..], &[0..2][..])
    );
    assert_eq!(layout.local_shape(rank), [4, 2, 2]);
    assert!(layout.primary(rank).is_empty(), "the other rank of `cp` saves it");
    assert_eq!(layout.primary(layout.rank(&[("ep", 1), ("tp", 0), ("dp", 2), ("cp", 0)])), region);
    let all = numbers(&[8, 6, 4]);
    let parts: Vec<Vec<u32>> = (0..layout.ranks()).map(|rank| layout.shard(&all, rank)).collect();
    assert_eq!(layout.unshard(&parts), all);
}

#[test]
fn rows_of_a_part_are_found_in_the_whole() {
    let pieces = [4..8, 20..24];
    let split = Split::of(24, [pieces.clone()]);
    assert_eq!(split.global(0, &(0..8)), pieces);
    assert_eq!(split.global(0, &(2..6)), [6..8, 20..22]);
    assert!(split.global(0, &(5..6)).into_iter().eq(std::iter::once(21..22)));
    assert!(split.global(0, &(0..0)).is_empty());
}

#[test]
fn the_remaining_rows_go_where_least_is() {
    let mut loads = [0; 4];
    let first = Split::by_load(5, 3, &mut loads).unwrap();
    assert_eq!((0..4).map(|r| first.len(r)).collect::<Vec<_>>(), [2, 1, 1, 1]);
    let second = Split::by_load(6, 1, &mut loads).unwrap();
    assert_eq!((0..4).map(|r| second.range(r).unwrap()).collect::<Vec<_>>(), [0..1, 1..3, 3..5, 5..6]);
    assert_eq!(loads, [7, 5, 5, 4]);
}

#[test]
fn an_owner_has_everything() {
    let layout = Layout::sharded(&[4, 2], DP, 0, Split::owned(4, 3, 1)).unwrap();
    assert_eq!((0..3).map(|r| layout.elements(r)).collect::<Vec<_>>(), [0..0, 0..8, 8..8]);
    assert_eq!(layout.owner(), Some(1));
    assert_eq!(Layout::sharded(&[0, 7], DP, 0, Split::owned(0, 3, 1)).unwrap().owner(), None);
}

#[test]
fn scalars_and_nothing_have_rows_too() {
    let mut loads = [0; 3];
    let mut rows = |shape: &[usize]| {
        let shape = Region::whole(shape).shape().to_vec();
        let row = shape[1..].iter().product();
        Layout::sharded(&shape, DP, 0, Split::by_load(shape[0], row, &mut loads).unwrap()).unwrap()
    };
    let scalar = rows(&[]);
    assert_eq!((scalar.shape(), scalar.elements(0), scalar.owner()), (&[1][..], 0..1, Some(0)));
    let none = rows(&[0, 7]);
    assert_eq!((none.elements(2), none.owner()), (0..0, None));
    let thin = rows(&[7, 0]);
    assert_eq!((thin.rows(2), thin.elements(2)), (5..7, 0..0));
    assert_eq!(loads, [1, 0, 0]);
}

#[test]
fn what_does_not_fit_is_told() {
    let split = || Split::balanced(10, 2).unwrap();
    let told = |error: LayoutError| error.to_string();
    let length = told(Layout::sharded(&[4, 5], TP, 1, split()).unwrap_err());
    assert!(length.contains("the split is of 10, but dimension 1 of shape [4, 5] is 5"), "{length}");
    let flat = told(Layout::sharded(&[10], TP, 1, split()).unwrap_err());
    assert!(flat.contains("has no dimension 1"), "{flat}");
    let rows = Layout::sharded(&[10, 3], TP, 0, split()).unwrap();
    let same = told(rows.compose(|_, shape| Ok(Layout::replicated(shape, TP, 2))).unwrap_err());
    assert!(same.contains("[(\"tp\", 2)], expected []"), "{same}");
    let uneven = |rank: usize, shape: &[usize]| Ok(Layout::replicated(shape, DP, rank + 1));
    let uneven = told(rows.compose(uneven).unwrap_err());
    assert!(
        uneven.contains("rank 1 is divided further over [(\"dp\", 2)], expected [(\"dp\", 1)]"),
        "{uneven}"
    );
    let global = told(rows.compose(|_, _| Ok(Layout::replicated(&[10, 3], DP, 1))).unwrap_err());
    assert!(global.contains("rank 0 holds shape [5, 3]") && global.contains("[10, 3]"), "{global}");
    let mixed = told(Region::new(&[4], vec![vec![2..3, 0..1]]).unwrap_err());
    assert!(mixed.contains("[2..3, 0..1] of dimension 0") && mixed.contains("within 0..4"), "{mixed}");
    assert!(matches!(Split::packed(&[]), Err(LayoutError::NoRanks)));
    assert!(matches!(Split::balanced(3, 0), Err(LayoutError::NoRanks)));
    assert!(matches!(Split::from_rank(3, 0, 1), Err(LayoutError::NoRanks)));
}
