//! Gathering and scattering columns: values, gradients, traffic.

use burn::tensor::Device;
use burnish_comm::{Op, local};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, OpsError};
use burnish_tp::{HeadSplit, Split, Tp, TpLayout};

fn splits(ranks: usize) -> Vec<Split> {
    let uneven = Split::balanced(7, ranks).unwrap();
    let packed = Split::packed(&[uneven.clone(), Split::balanced(2, ranks).unwrap()]).unwrap();
    vec![uneven, packed, HeadSplit::new(4, 1, ranks).unwrap().kv(3)]
}

fn values(n: usize, by: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * by).sin()).collect()
}

fn tensor(values: Vec<f32>, shape: &[usize]) -> AnyTensor {
    AnyTensor::from_elements(values, shape, &Device::flex())
}

/// Gradient of `sum(y * c)`.
fn pulled(x: &AnyTensor, y: &AnyTensor, c: &AnyTensor) -> Vec<f32> {
    let mut gradients = (y.rank::<2>().unwrap() * c.rank::<2>().unwrap()).sum().backward();
    x.take_gradient(&mut gradients).unwrap().to_f32()
}

const ROWS: usize = 5;

#[test]
fn gathered_columns_are_whole_and_gradients_are_slices() {
    for ranks in 2..=4 {
        for split in splits(ranks) {
            let all = values(ROWS * split.length(), 0.7);
            let upstream = values(ROWS * split.length(), 1.3);
            let columns = TpLayout::sharded(&[ROWS, split.length()], 1, split.clone()).unwrap();
            let ends = local::run(ranks, |world| {
                let tp = Tp::new(&world.group());
                let x =
                    tensor(columns.layout().shard(&all, tp.rank()), &columns.layout().local_shape(tp.rank()))
                        .leaf();
                let y = tp.gather_columns(&x, &split, "head").unwrap();
                assert_eq!(y.to_f32(), all);
                let row = tp.group().traffic().of(Op::AllGather, Dtype::F32);
                let held: usize = (0..ranks).map(|r| split.len(r)).sum();
                assert_eq!((row.calls, row.elements), (1, (ROWS * held) as u64));
                let gradient = pulled(&x, &y, &tensor(upstream.clone(), &[ROWS, split.length()]));
                assert_eq!(tp.group().traffic().rows().count(), 1, "backward is a slice");
                // inference costs the same and records nothing
                assert!(!tp.gather_columns(&x.plain(), &split, "head").unwrap().is_tracked());
                tp.check().unwrap();
                gradient
            });
            let ends: Vec<Vec<f32>> = ends.into_iter().map(Result::unwrap).collect();
            // addends where ranks share columns: their sum is the gradient
            let mut sum = vec![0.0; all.len()];
            for (rank, end) in ends.iter().enumerate() {
                let index: Vec<usize> = columns.layout().shard(&(0..all.len()).collect::<Vec<_>>(), rank);
                for (at, value) in index.into_iter().zip(end) {
                    sum[at] += value;
                }
            }
            assert_eq!(sum, upstream);
        }
    }
}

#[test]
fn scattered_columns_are_slices_and_gradients_are_whole() {
    for ranks in 2..=4 {
        for split in splits(ranks) {
            let all = values(ROWS * split.length(), 0.9);
            let columns = TpLayout::sharded(&[ROWS, split.length()], 1, split.clone()).unwrap();
            let ends = local::run(ranks, |world| {
                let tp = Tp::new(&world.group());
                let x = tensor(all.clone(), &[ROWS, split.length()]).leaf();
                let y = tp.scatter_columns(&x, &split, "down").unwrap();
                assert_eq!(y.to_f32(), columns.layout().shard(&all, tp.rank()));
                assert_eq!(tp.group().traffic().rows().count(), 0, "forward is a slice");
                let local = columns.layout().local_shape(tp.rank());
                // integers, so that sums are exact
                let c =
                    tensor((0..local[0] * local[1]).map(|i| (i + 100 * tp.rank()) as f32).collect(), &local);
                let gradient = pulled(&x, &y, &c);
                assert_eq!(tp.group().traffic().rows().count(), 1);
                tp.check().unwrap();
                (gradient, c.to_f32())
            });
            let ends: Vec<(Vec<f32>, Vec<f32>)> = ends.into_iter().map(Result::unwrap).collect();
            let mut expected = vec![0.0; all.len()];
            for (rank, (_, c)) in ends.iter().enumerate() {
                let index: Vec<usize> = columns.layout().shard(&(0..all.len()).collect::<Vec<_>>(), rank);
                for (at, value) in index.into_iter().zip(c) {
                    expected[at] += value;
                }
            }
            for (gradient, _) in ends {
                assert_eq!(gradient, expected);
            }
        }
    }
}

#[test]
fn other_columns_and_dtypes_are_told() {
    let split = Split::balanced(6, 2).unwrap();
    local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let x = tensor(vec![0.0; 8], &[2, 4]);
        for wrong in [tp.gather_columns(&x, &split, "x"), tp.scatter_columns(&x, &split, "x")] {
            assert!(matches!(wrong, Err(OpsError::Shape { .. })), "{wrong:?}");
        }
        let half = AnyTensor::from_elements(vec![half::f16::ONE; 6], &[2, 3], &Device::flex());
        for wrong in [
            tp.gather_columns(&half, &split, "x"),
            tp.reduce_from_tp(&half, "x"),
            tp.copy_to_tp(&half.leaf(), "x"),
        ] {
            assert!(matches!(wrong, Err(OpsError::Dtype { .. })), "{wrong:?}");
        }
        assert!(matches!(
            tp.reduce_from_tp_add(&x, &tensor(vec![0.0; 4], &[2, 2]), "x"),
            Err(OpsError::Shape { .. })
        ));
        let other = Split::balanced(6, 3).unwrap();
        assert!(matches!(
            tp.scatter_columns(&tensor(vec![0.0; 6], &[1, 6]), &other, "x"),
            Err(OpsError::Shape { .. })
        ));
        assert_eq!(tp.group().traffic().rows().count(), 0);
    })
    .into_iter()
    .for_each(Result::unwrap);
}

/// Plain tensors: `copy_to_tp` is nothing, `reduce_from_tp` is one sum, nothing is recorded.
#[test]
fn scoring_records_nothing() {
    local::run(3, |world| {
        let tp = Tp::new(&world.group());
        let x = tensor(vec![tp.rank() as f32 + 1.0; 4], &[2, 2]);
        let through = tp.copy_to_tp(&x, "x").unwrap();
        assert_eq!((through.to_f32(), through.is_tracked()), (x.to_f32(), false));
        assert_eq!(tp.group().traffic().rows().count(), 0);
        let sum = tp.reduce_from_tp(&x, "x").unwrap();
        assert_eq!((sum.to_f32(), sum.is_tracked()), (vec![6.0; 4], false));
        let sum = tp.reduce_from_tp_add(&x, &tensor(vec![0.5; 4], &[2, 2]), "x").unwrap();
        assert_eq!((sum.to_f32(), sum.is_tracked()), (vec![6.5; 4], false));
        assert_eq!(tp.group().traffic().calls(Op::AllReduce), 2);
        tp.check().unwrap();
    })
    .into_iter()
    .for_each(Result::unwrap);
}
