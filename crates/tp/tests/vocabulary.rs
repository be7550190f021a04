//! An embedding over a divided vocabulary equals the whole one: values and gradients.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use burnish_comm::{Op, local};
use burnish_core::random::Stream;
use burnish_ops::{AnyTensor, EmbeddingLowRank, OpsError};
use burnish_tp::{LinearPart, PartialGrad, Split, Style, Tp, TpError, TpLayout};

use crate::block::close;

const HIDDEN: usize = 6;
const RANK: usize = 2;

fn random(name: &str, n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| Stream::new(3, name).normal(i)).collect()
}

/// Output, and the gradients of weight, A and B as they are whole.
fn run(ranks: usize, vocab: usize, ids: &[u32]) -> [Vec<f32>; 4] {
    let split = Split::balanced(vocab, ranks).unwrap();
    let place = |part, shape: &[usize]| TpLayout::of(Style::EmbeddingRowwise, part, shape, &split).unwrap();
    let placements = [
        place(LinearPart::Weight, &[vocab, HIDDEN]),
        place(LinearPart::LoraA, &[RANK, vocab]),
        place(LinearPart::LoraB, &[HIDDEN, RANK]),
    ];
    let ids = Arc::new(ids.to_vec());
    let ends = local::run(ranks, |world| {
        let tp = Tp::new(&world.group());
        let leaves: Vec<AnyTensor> = placements
            .iter()
            .enumerate()
            .map(|(i, placement)| {
                let all = random(&format!("p{i}"), placement.layout().shape().iter().product());
                let (own, shape) =
                    (placement.layout().shard(&all, tp.rank()), placement.layout().local_shape(tp.rank()));
                AnyTensor::from_elements(own, &shape, &Device::flex()).leaf()
            })
            .collect();
        let low =
            EmbeddingLowRank { a: leaves[1].clone(), b: leaves[2].clone(), scale: 0.5, magnitude: None };
        let range = split.range(tp.rank()).unwrap();
        let y = tp.embedding(&ids, &leaves[0], Some(&low), &range, vocab, "embed").unwrap();
        // recorded alike on every rank, whether it has some of the tokens or not
        assert!(y.is_tracked());
        let c =
            AnyTensor::from_elements(random("c", ids.len() * HIDDEN), &[ids.len(), HIDDEN], &Device::flex());
        let c: Tensor<2> = c.rank().unwrap();
        let mut gradients = (y.rank::<2>().unwrap() * c).sum().backward();
        let calls = u64::from(ranks > 1);
        assert_eq!(tp.group().traffic().calls(Op::AllReduce), calls);
        assert_eq!(tp.group().traffic().elements(Op::AllReduce), calls * (ids.len() * HIDDEN) as u64);
        let mut addends: Vec<PartialGrad<'_>> = placements
            .iter()
            .zip(&leaves)
            .map(|(placement, leaf)| PartialGrad {
                name: "embed",
                layout: placement,
                rows: 0..leaf.shape()[0],
                gradient: leaf.take_gradient(&mut gradients).unwrap(),
            })
            .collect();
        tp.sum_partial(&mut addends)?;
        tp.check()?;
        Ok::<_, TpError>((y.to_f32(), addends.iter().map(|a| a.gradient.to_f32()).collect::<Vec<_>>()))
    });
    let ends: Vec<_> = ends.into_iter().map(|end| end.unwrap().unwrap()).collect();
    let whole = |i: usize| {
        let parts: Vec<&[f32]> = ends.iter().map(|end| end.1[i].as_slice()).collect();
        placements[i].layout().unshard(&parts)
    };
    assert!(ends.iter().all(|end| end.0 == ends[0].0));
    [ends[0].0.clone(), whole(0), whole(1), whole(2)]
}

#[test]
fn a_divided_vocabulary_equals_the_whole() {
    // all ranks have tokens; one has none; one has them all, repeated
    for (vocab, ids) in
        [(11, vec![0, 10, 4, 4, 7, 3]), (11, vec![1, 2, 1]), (8, vec![7; 4]), (3, vec![2, 0, 1])]
    {
        let one = run(1, vocab, &ids);
        for ranks in 2..=4 {
            let many = run(ranks, vocab, &ids);
            for (what, (got, expected)) in
                ["output", "weight", "A", "B"].into_iter().zip(many.iter().zip(&one))
            {
                close(&format!("{what}, vocabulary {vocab}, {ranks} ranks"), got, expected, 1e-6);
            }
        }
    }
}

#[test]
fn an_id_outside_the_vocabulary_is_told_on_every_rank() {
    local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let weight = AnyTensor::from_elements(vec![0.0_f32; 8], &[4, 2], &Device::flex());
        let range = 4 * tp.rank()..4 * tp.rank() + 4;
        let ids = Arc::new(vec![1, 8]);
        let wrong = tp.embedding(&ids, &weight, None, &range, 8, "embed");
        assert!(matches!(wrong, Err(OpsError::Index { got: 8, limit: 8, .. })));
        let wrong = tp.embedding(&ids, &weight, None, &(0..3), 8, "embed");
        assert!(matches!(wrong, Err(OpsError::Shape { .. })));
    })
    .into_iter()
    .for_each(Result::unwrap);
}
