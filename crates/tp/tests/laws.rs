//! Splits and placements, whatever the numbers.

use burnish_core::{Layout, LayoutError};
use burnish_tp::{Gradient, HeadSplit, LinearPart, Split, Style, TpError, TpLayout};
use proptest::prelude::*;

const STYLES: [Style; 10] = [
    Style::Colwise,
    Style::ColwiseGather,
    Style::Rowwise,
    Style::RowwiseSplitInput,
    Style::EmbeddingRowwise,
    Style::EmbeddingColwise,
    Style::PackedColwise,
    Style::PackedRowwise,
    Style::Replicated,
    Style::ReplicatedWithGradAllreduce,
];

/// The tensors of a layer of `style` with `inputs` and `outputs` features and an adapter of `rank`.
fn parts(style: Style, inputs: usize, outputs: usize, rank: usize) -> Vec<(LinearPart, Vec<usize>)> {
    if matches!(style, Style::EmbeddingRowwise | Style::EmbeddingColwise) {
        return vec![
            (LinearPart::Weight, vec![inputs, outputs]),
            (LinearPart::LoraA, vec![rank, inputs]),
            (LinearPart::LoraB, vec![outputs, rank]),
            (LinearPart::Magnitude, vec![outputs]),
        ];
    }
    vec![
        (LinearPart::Weight, vec![outputs, inputs]),
        (LinearPart::Bias, vec![outputs]),
        (LinearPart::LoraA, vec![rank, inputs]),
        (LinearPart::LoraB, vec![outputs, rank]),
        (LinearPart::LoraBBias, vec![outputs]),
        (LinearPart::Magnitude, vec![outputs]),
    ]
}

/// Every element is held, is saved by one rank, and comes back from its parts.
fn holds(layout: &Layout) {
    let elements: usize = layout.shape().iter().product();
    let all: Vec<u32> = (0..elements as u32).map(|i| i * 3 + 1).collect();
    let parts: Vec<Vec<u32>> = (0..layout.ranks()).map(|rank| layout.shard(&all, rank)).collect();
    for (rank, part) in parts.iter().enumerate() {
        assert_eq!(part.len(), layout.local_shape(rank).iter().product::<usize>());
    }
    let parts: Vec<&[u32]> = parts.iter().map(Vec::as_slice).collect();
    assert_eq!(layout.unshard(&parts), all, "{layout:?}");

    let length = layout.shape()[layout.dim().unwrap_or(0)];
    let (mut saved, mut counted) = (vec![0; length], 0);
    for rank in 0..layout.ranks() {
        for row in layout.primary(rank).ranges(layout.dim().unwrap_or(0)).iter().cloned().flatten() {
            saved[row] += 1;
        }
        let local = layout.counted(rank);
        let local = local.ranges(layout.dim().unwrap_or(0));
        let own = layout.local_shape(rank)[layout.dim().unwrap_or(0)];
        assert!(local.iter().all(|range| range.end <= own));
        counted += local.iter().map(ExactSizeIterator::len).sum::<usize>();
    }
    assert!(saved.iter().all(|&times| times == 1), "{layout:?}: {saved:?}");
    assert_eq!(counted, length);
    match layout.split() {
        Some((dim, split)) if !split.is_packed() => {
            for rank in 0..layout.ranks() {
                let range = split.range(rank).unwrap();
                assert_eq!(range.len(), layout.local_shape(rank)[dim]);
                assert!(range.end <= layout.shape()[dim]);
            }
        }
        Some((dim, split)) => {
            let pieces: Vec<_> = (0..layout.ranks()).map(|rank| split.pieces(rank)).collect();
            assert!(pieces.iter().any(|own| own.len() > 1));
            for (rank, own) in pieces.iter().enumerate() {
                let length: usize = own.iter().map(ExactSizeIterator::len).sum();
                assert_eq!(length, layout.local_shape(rank)[dim]);
                assert!(own.iter().all(|range| range.end <= layout.shape()[dim]));
            }
        }
        None => assert!(layout.is_replicated()),
    }
    saves_rows_in_parts(layout, &parts);
}

/// Ranks that give what they hold some rows at a time give every row of the whole once, where it belongs.
fn saves_rows_in_parts(layout: &Layout, parts: &[&[u32]]) {
    if layout.dim().is_some_and(|dim| dim > 0) {
        return;
    }
    let row: usize = layout.shape()[1..].iter().product();
    let mut whole = vec![u32::MAX; layout.shape().iter().product()];
    for (rank, part) in parts.iter().enumerate() {
        let rows = layout.local_shape(rank)[0];
        let cut = rows * 2 / 5;
        for rows in [0..cut, cut..rows] {
            for (own, at) in layout.saved_rows(rank, &rows) {
                assert!(rows.start <= own.start && own.end <= rows.end && !own.is_empty());
                let to = &mut whole[at.start * row..at.end * row];
                assert!(to.iter().all(|&v| v == u32::MAX), "{layout:?}: {at:?} twice");
                to.copy_from_slice(&part[own.start * row..own.end * row]);
            }
        }
    }
    assert_eq!(whole, layout.unshard(parts), "{layout:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_tensor_of_every_style_comes_back(
        ranks in 1usize..=8, inputs in 0usize..19, outputs in 0usize..19, rank in 1usize..4, blocks in 1usize..4,
    ) {
        for style in STYLES {
            let divided = if style.is_colwise() { outputs } else { inputs };
            let packed = matches!(style, Style::PackedColwise | Style::PackedRowwise);
            let block = Split::balanced(divided, ranks).unwrap();
            let split = if packed { Split::packed(&vec![block; blocks]).unwrap() } else { block };
            let (inputs, outputs) = match (packed, style.is_colwise()) {
                (true, true) => (inputs, outputs * blocks),
                (true, false) => (inputs * blocks, outputs),
                (false, _) => (inputs, outputs),
            };
            for (part, shape) in parts(style, inputs, outputs, rank) {
                let placement = TpLayout::of(style, part, &shape, &split).unwrap();
                holds(placement.layout());
                let expected = match style {
                    Style::Replicated => Gradient::Complete,
                    _ if placement.layout().dim().is_some() => Gradient::Own,
                    _ => Gradient::Partial,
                };
                prop_assert_eq!(placement.gradient(), expected);
            }
        }
    }

    #[test]
    fn heads_cover_and_stay_with_their_keys(
        kv_heads in 1usize..7, each in 1usize..7, ranks in 1usize..=8, head_dim in 1usize..5, hidden in 1usize..4,
    ) {
        let heads = kv_heads * each;
        let split = HeadSplit::new(heads, kv_heads, ranks);
        if ranks > heads {
            let told = matches!(split, Err(TpError::Heads { .. }));
            prop_assert!(told);
            return Ok(());
        }
        let split = split.unwrap();
        prop_assert_eq!(split.shared(), ranks > kv_heads);
        let mut q = 0;
        let mut primaries = vec![0; kv_heads];
        for rank in 0..ranks {
            let own = split.of(rank);
            prop_assert_eq!(own.q.start, q);
            q = own.q.end;
            prop_assert!(!own.q.is_empty() && !own.kv.is_empty());
            // as attention computes it on a rank: the same number of query heads for each of its key and value heads
            prop_assert_eq!(own.q.len() % own.kv.len(), 0);
            for (at, head) in own.q.clone().enumerate() {
                prop_assert_eq!(head / each, own.kv.start + at / (own.q.len() / own.kv.len()));
            }
            if own.primary {
                own.kv.clone().for_each(|kv| primaries[kv] += 1);
            }
        }
        prop_assert_eq!(q, heads);
        prop_assert!(primaries.iter().all(|&p| p == 1));
        let (sizes, kv_sizes): (Vec<usize>, Vec<usize>) =
            (0..ranks).map(|r| (split.of(r).q.len(), split.of(r).kv.len())).unzip();
        prop_assert!(kv_sizes.iter().max().unwrap() - kv_sizes.iter().min().unwrap() <= 1);
        prop_assert!(sizes.iter().max().unwrap() <= &(heads.div_ceil(ranks) + each));

        let (q, kv) = (split.q(head_dim), split.kv(head_dim));
        prop_assert_eq!(kv.overlaps(), split.shared());
        for (rows, style) in [(&q, Style::Colwise), (&kv, Style::Colwise), (&q, Style::Rowwise)] {
            let (inputs, outputs) =
                if style == Style::Colwise { (hidden, rows.length()) } else { (rows.length(), hidden) };
            for (part, shape) in parts(style, inputs, outputs, 2) {
                holds(TpLayout::of(style, part, &shape, rows).unwrap().layout());
            }
        }
        // queries, keys and values in one matrix
        let packed = Split::packed(&[q, kv.clone(), kv]).unwrap();
        let shape = [packed.length(), hidden];
        let placement = TpLayout::of(Style::PackedColwise, LinearPart::Weight, &shape, &packed).unwrap();
        prop_assert_eq!(placement.gradient(), if split.shared() { Gradient::Shared } else { Gradient::Own });
        holds(placement.layout());
    }

    #[test]
    fn local_ranges_are_where_shard_puts_them(ranks in 1usize..=8, length in 0usize..30, from in 0usize..30, n in 0usize..30) {
        let block = Split::balanced(length, ranks).unwrap();
        let split = Split::packed(&[block.clone(), block]).unwrap();
        let all: Vec<usize> = (0..2 * length).collect();
        let placement = TpLayout::sharded(&[2 * length], 0, split.clone()).unwrap();
        let asked = from.min(2 * length)..(from + n).min(2 * length);
        let mut found = Vec::new();
        for rank in 0..ranks {
            let own = placement.layout().shard(&all, rank);
            for range in split.local(rank, std::slice::from_ref(&asked)) {
                found.extend_from_slice(&own[range]);
            }
        }
        found.sort_unstable();
        prop_assert_eq!(found, asked.collect::<Vec<_>>());
    }
}

#[test]
fn balanced_is_within_one() {
    let split = Split::balanced(11, 4).unwrap();
    assert_eq!((0..4).map(|r| split.range(r).unwrap()).collect::<Vec<_>>(), [0..3, 3..6, 6..9, 9..11]);
    let split = Split::balanced(2, 4).unwrap();
    assert_eq!((0..4).map(|r| split.range(r).unwrap()).collect::<Vec<_>>(), [0..1, 1..2, 2..2, 2..2]);
    assert!(matches!(Split::balanced(2, 0), Err(LayoutError::NoRanks)));
}

#[test]
fn wrong_numbers_are_told() {
    let message = |error: TpError| error.to_string();
    let heads = message(HeadSplit::new(4, 2, 5).unwrap_err());
    assert!(heads.contains("4 attention heads cannot be given to 5 ranks"), "{heads}");
    let groups = message(HeadSplit::new(5, 2, 2).unwrap_err());
    assert!(groups.contains("5 attention heads are not a multiple of 2"), "{groups}");
    let split = Split::balanced(10, 2).unwrap();
    // a local shape where the global one belongs: what PEFT's adapters were built from
    let local = message(TpLayout::of(Style::Rowwise, LinearPart::LoraA, &[4, 5], &split).unwrap_err());
    assert!(
        local.contains("`rowwise` lora_A: the split is of 10, but dimension 1 of shape [4, 5] is 5"),
        "{local}"
    );
    let flat = message(TpLayout::of(Style::Rowwise, LinearPart::Weight, &[10], &split).unwrap_err());
    assert!(flat.contains("has no dimension 1"), "{flat}");
    let other = Split::balanced(10, 3).unwrap();
    assert!(matches!(Split::packed(&[split, other]), Err(LayoutError::Ranks { placed: 3, group: 2, .. })));
    let style = "colwise_loss_parallel".parse::<Style>().unwrap_err().to_string();
    assert!(style.contains("`colwise_loss_parallel`, expected one of colwise"), "{style}");
}
