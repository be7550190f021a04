//! Columns to rows and back: the same matrix whatever the ranks, dtypes, uneven and empty parts.

use burn::tensor::Device;
use burnish_comm::{Op, local};
use burnish_ops::{AnyTensor, Scalar};
use burnish_tp::{HeadSplit, Split, Tp, TpError, TpLayout};
use half::{bf16, f16};
use proptest::prelude::*;

/// All columns of `rows` on every rank, to whole rows and back.
fn there_and_back<E: Scalar + Default + PartialEq>(
    split: &Split,
    rows: std::ops::Range<usize>,
    of: impl Fn(usize) -> E + Sync,
) {
    let (n, ranks) = (rows.len(), split.ranks());
    let placement = TpLayout::sharded(&[n, split.length()], 1, split.clone()).unwrap();
    let all: Vec<E> = (0..n * split.length()).map(&of).collect();
    let ends = local::run(ranks, |world| {
        let tp = Tp::new(&world.group());
        let columns = placement.layout().shard(&all, tp.rank());
        let columns =
            AnyTensor::from_elements(columns, &placement.layout().local_shape(tp.rank()), &Device::flex());
        let (own, values) = tp.columns_to_rows(&columns, rows.clone(), split, "o_proj")?;
        assert_eq!(values.shape(), [own.len(), split.length()]);
        let sent = tp.group().traffic().elements(Op::AllToAll);
        assert_eq!(sent, if ranks == 1 { 0 } else { (n * split.len(tp.rank())) as u64 });
        let back = tp.rows_to_columns(&values, rows.clone(), split, "o_proj")?;
        assert_eq!(back.shape(), columns.shape());
        let (back, before) = (back.elements::<E>().unwrap(), columns.elements::<E>().unwrap());
        assert!(back.as_ref() == before.as_ref());
        let values: Vec<E> = values.elements::<E>().unwrap().to_vec();
        Ok::<_, TpError>((own, values))
    });
    let mut next = rows.start;
    let mut found = Vec::new();
    for end in ends {
        let (own, values) = end.unwrap().unwrap();
        assert_eq!(own.start, next);
        next = own.end;
        found.extend(values);
    }
    assert_eq!(next, rows.end);
    assert!(found == all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_matrix_comes_back(ranks in 1usize..=6, columns in 0usize..14, first in 0usize..4, n in 0usize..12, packed: bool) {
        let block = Split::balanced(columns, ranks).unwrap();
        let split = if packed { Split::packed(&[block.clone(), block]).unwrap() } else { block };
        there_and_back(&split, first..first + n, |i| i as f32);
        there_and_back(&split, first..first + n, |i| bf16::from_bits(i as u16));
        there_and_back(&split, first..first + n, |i| f16::from_bits(i as u16));
    }
}

#[test]
fn shared_columns_come_back_too() {
    there_and_back(&HeadSplit::new(6, 2, 5).unwrap().kv(3), 2..9, |i| i as f32);
}

#[test]
fn wrong_matrices_are_told() {
    let split = Split::balanced(6, 2).unwrap();
    local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let x = AnyTensor::from_elements(vec![0.0_f32; 8], &[4, 2], &Device::flex());
        let message = tp.columns_to_rows(&x, 0..4, &split, "w").unwrap_err().to_string();
        assert!(message.contains("`w`: got shape [4, 2], expected [4, 3]"), "{message}");
        let message = tp.rows_to_columns(&x, 0..4, &split, "w").unwrap_err().to_string();
        assert!(message.contains("expected [2, 6]"), "{message}");
        let other = Split::balanced(6, 3).unwrap();
        assert!(matches!(tp.columns_to_rows(&x, 0..4, &other, "w"), Err(TpError::Ranks { .. })));
    })
    .into_iter()
    .for_each(Result::unwrap);
}

/// Ranks that hold other rows are told, not mixed up.
#[test]
fn ranks_with_other_rows_disagree() {
    let split = Split::balanced(4, 2).unwrap();
    let ends = local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let x = AnyTensor::from_elements(vec![0.0_f32; 8], &[4, 2], &Device::flex());
        let rows = tp.rank()..tp.rank() + 4;
        let error = tp.columns_to_rows(&x, rows, &split, "w").unwrap_err();
        assert_eq!(tp.check().unwrap_err().to_string(), error.to_string());
        error.to_string()
    });
    for end in ends {
        let message = end.unwrap();
        assert!(message.contains("rows 0..4") && message.contains("rows 1..5"), "{message}");
    }
}
