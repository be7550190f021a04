//! Partial gradients: what is summed, what is counted, what travels.

use burn::tensor::Device;
use burnish_comm::{Op, local};
use burnish_ops::AnyTensor;
use burnish_tp::{Gradient, HeadSplit, PartialGrad, Split, Tp, TpError, TpLayout};

fn tensor(values: Vec<f32>, shape: &[usize]) -> AnyTensor {
    AnyTensor::from_elements(values, shape, &Device::flex())
}

/// Rank r's gradient: the element's place in the whole tensor, plus 1000 r.
fn gradient(placement: &TpLayout, rank: usize) -> AnyTensor {
    let all: Vec<f32> = (0..placement.layout().shape().iter().product::<usize>()).map(|i| i as f32).collect();
    let own = placement.layout().shard(&all, rank).into_iter().map(|v| v + 1000.0 * rank as f32).collect();
    tensor(own, &placement.layout().local_shape(rank))
}

fn placements(ranks: usize) -> Vec<(&'static str, TpLayout)> {
    let heads = HeadSplit::new(4, 2, ranks).unwrap();
    let packed = Split::packed(&[heads.q(2), heads.kv(2), heads.kv(2)]).unwrap();
    vec![
        ("norm", TpLayout::replicated(&[5], ranks, Gradient::Partial)),
        ("k_proj", TpLayout::sharded(&[4, 3], 0, heads.kv(2)).unwrap()),
        ("head", TpLayout::sharded(&[7, 2], 0, Split::balanced(7, ranks).unwrap()).unwrap()),
        ("lora_A", TpLayout::replicated(&[2, 6], ranks, Gradient::Partial)),
        ("final_norm", TpLayout::replicated(&[3], ranks, Gradient::Complete)),
        ("qkv", TpLayout::sharded(&[packed.length(), 3], 0, packed).unwrap()),
        ("down", TpLayout::sharded(&[2, 7], 1, Split::balanced(7, ranks).unwrap()).unwrap()),
    ]
}

/// Against sums taken by hand over the whole tensor, whatever the buckets.
#[test]
fn addends_are_summed_and_the_rest_is_left() {
    for ranks in 1..=4 {
        for cap in [1, 13, 1 << 20] {
            let table = placements(ranks);
            let ends = local::run(ranks, |world| {
                let tp = Tp::new(&world.group());
                let mut addends: Vec<PartialGrad<'_>> = table
                    .iter()
                    .map(|(name, placement)| PartialGrad {
                        name,
                        layout: placement,
                        rows: 0..placement.layout().local_shape(tp.rank())[0],
                        gradient: gradient(placement, tp.rank()),
                    })
                    .collect();
                tp.sum_partial_in(&mut addends, cap)?;
                let squares = addends.iter().map(|a| a.squares(tp.rank())).sum::<f64>();
                let traffic = tp.group().traffic();
                let calls = traffic.calls(Op::AllReduce);
                let own: Vec<Vec<f32>> = addends.iter().map(|a| a.gradient.to_f32()).collect();
                Ok::<_, TpError>((
                    own,
                    tp.sum_f64(&[squares], "norm")?[0],
                    calls,
                    traffic.elements(Op::AllReduce),
                ))
            });
            let ends: Vec<_> = ends.into_iter().map(|end| end.unwrap().unwrap()).collect();
            let mut squares = 0.0;
            for (index, (name, placement)) in table.iter().enumerate() {
                let elements: usize = placement.layout().shape().iter().product();
                let mut sum = vec![0.0; elements];
                let places: Vec<usize> = (0..elements).collect();
                for rank in 0..ranks {
                    let own = gradient(placement, rank).to_f32();
                    for (at, value) in placement.layout().shard(&places, rank).into_iter().zip(own) {
                        sum[at] += value;
                    }
                }
                for (rank, end) in ends.iter().enumerate() {
                    let expected = if *name == "final_norm" {
                        gradient(placement, rank).to_f32()
                    } else {
                        placement.layout().shard(&sum, rank)
                    };
                    assert_eq!(end.0[index], expected, "{name}, rank {rank} of {ranks}, cap {cap}");
                }
                let counted = if *name == "final_norm" { gradient(placement, 0).to_f32() } else { sum };
                squares += counted.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
            }
            for end in &ends {
                assert!((end.1 - squares).abs() <= 1e-12 * squares, "{ranks} ranks: {} not {squares}", end.1);
            }
            // key and value rows travel only where they are shared: heads 4 over 2, by rank
            let shared = [0, 0, 0, 2 * 3, 4 * 3][ranks];
            let elements = if ranks == 1 { 0 } else { 5 + 12 + 3 * shared };
            assert_eq!(ends[0].3, elements as u64, "{ranks} ranks");
            if cap > 100 && ranks > 1 {
                assert_eq!(ends[0].2, 1, "one bucket");
            }
        }
    }
}

/// A data-parallel rank has some rows of each gradient; the shared ones travel by those rows.
#[test]
fn rows_of_gradients_are_summed_too() {
    let heads = HeadSplit::new(4, 2, 4).unwrap();
    let keys = TpLayout::sharded(&[8, 3], 0, heads.kv(4)).unwrap();
    let norm = TpLayout::replicated(&[5, 2], 4, Gradient::Partial);
    let ends = local::run(4, |world| {
        let tp = Tp::new(&world.group());
        let rows = |placement: &TpLayout, from: usize, to: usize| {
            let row: usize = placement.layout().shape()[1..].iter().product();
            gradient(placement, tp.rank()).piece(from * row..to * row, &[to - from, row])
        };
        let mut addends = [
            PartialGrad { name: "keys", layout: &keys, rows: 1..3, gradient: rows(&keys, 1, 3) },
            PartialGrad { name: "norm", layout: &norm, rows: 2..5, gradient: rows(&norm, 2, 5) },
        ];
        tp.sum_partial(&mut addends)?;
        assert_eq!(tp.group().traffic().elements(Op::AllReduce), 2 * 2 * 3 + 3 * 2);
        let squares: Vec<f64> = addends.iter().map(|a| a.squares(tp.rank())).collect();
        Ok::<_, TpError>((addends[0].gradient.to_f32(), addends[1].gradient.to_f32(), squares))
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let (keys, norm, squares) = end.unwrap().unwrap();
        let head = rank / 2;
        let more = [1000.0, 5000.0][head];
        let expected: Vec<f32> = (0..6).map(|i| 2.0 * (head * 12 + 3 + i) as f32 + more).collect();
        assert_eq!(keys, expected);
        let expected: Vec<f32> = (4..10).map(|i| 4.0 * i as f32 + 6000.0).collect();
        assert_eq!(norm, expected);
        let square = |values: &[f32]| values.iter().map(|&v| f64::from(v * v)).sum::<f64>();
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.max(1.0);
        assert!(near(squares[0], if rank % 2 == 0 { square(&keys) } else { 0.0 }));
        assert!(near(squares[1], if rank == 0 { square(&norm) } else { 0.0 }));
    }
}

#[test]
fn wrong_gradients_are_told_before_anything_travels() {
    let norm = TpLayout::replicated(&[5], 2, Gradient::Partial);
    let other = TpLayout::replicated(&[5], 3, Gradient::Partial);
    // shared rows that lie at different places on the ranks: row 1 is the key on one and a query on the other
    let heads = HeadSplit::new(3, 1, 2).unwrap();
    let packed = Split::packed(&[heads.q(1), heads.kv(1)]).unwrap();
    let qkv = TpLayout::sharded(&[4, 1], 0, packed).unwrap();
    local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let try_it = |placement: &TpLayout, rows: std::ops::Range<usize>, gradient: AnyTensor| {
            let message = tp
                .sum_partial(&mut [PartialGrad { name: "n", layout: placement, rows, gradient }])
                .unwrap_err()
                .to_string();
            assert_eq!(tp.group().traffic().rows().count(), 0);
            message
        };
        let message = try_it(&norm, 0..5, tensor(vec![0.0; 4], &[4]));
        assert!(message.contains("`n`: got shape [4], expected [5]"), "{message}");
        let half = AnyTensor::from_elements(vec![half::f16::ONE; 5], &[5], &Device::flex());
        let message = try_it(&norm, 0..5, half);
        assert!(message.contains("expected float32"), "{message}");
        let message = try_it(&other, 0..5, tensor(vec![0.0; 5], &[5]));
        assert!(message.contains("placed on 3 ranks, but the group has 2"), "{message}");
        let message = try_it(&qkv, 1..2, tensor(vec![0.0; 1], &[1, 1]));
        assert!(message.contains("do not hold row 3 on every rank"), "{message}");
    })
    .into_iter()
    .for_each(Result::unwrap);
}
