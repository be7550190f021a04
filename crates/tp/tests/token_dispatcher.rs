//! Tokens sent to experts on other ranks and back: values, gradients, traffic, ranks without tokens.

use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::{Op, local};
use burnish_core::{Dtype, ELSEWHERE};
use burnish_ops::AnyTensor;
use burnish_tp::{Split, TokenDispatcher, Tp};
use proptest::prelude::*;

const FEATURES: usize = 3;
const EXPERTS: usize = 5;

fn tensor(values: Vec<f32>, columns: usize) -> AnyTensor {
    AnyTensor::from_elements(values.clone(), &[values.len() / columns, columns], &Device::flex())
}

/// Feature f of token t of rank r.
fn value(rank: usize, token: usize, feature: usize) -> f32 {
    ((7 * rank + 3 * token + feature) as f32 * 0.37).sin()
}

/// What expert e makes of a feature: a number times it.
fn factor(expert: usize) -> f32 {
    1.0 + expert as f32 * 0.5
}

/// The sums over each token's experts of `factor * x`, and their gradients where each output is pulled by its number.
fn forth_and_back(experts: &[Vec<u32>], each: usize, ranks: usize) -> Vec<(Vec<f32>, Vec<f32>, [u64; 2])> {
    let owners = Arc::new(Split::balanced(EXPERTS, ranks).unwrap());
    let ends = local::run(ranks, |world| {
        let tp = Tp::new(&world.group());
        let own = &experts[tp.rank()];
        let tokens = own.len() / each;
        let x: Vec<f32> =
            (0..tokens * FEATURES).map(|i| value(tp.rank(), i / FEATURES, i % FEATURES)).collect();
        let x = tensor(x, FEATURES).leaf();
        let there = TokenDispatcher::new(&tp, own, each, &owners, "mixture").unwrap();
        let came = there.dispatch(&x).unwrap();
        let first = owners.range(tp.rank()).map_or(0, |own| own.start);
        let scale = |experts: &[u32]| -> f32 {
            let own = experts.iter().filter(|&&e| e != ELSEWHERE);
            own.map(|&e| factor(first + e as usize)).sum()
        };
        let scales: Vec<f32> = there.experts().chunks(each).flat_map(|of| [scale(of); FEATURES]).collect();
        let rows = scales.len() / FEATURES;
        let made = match rows {
            0 => came,
            _ => AnyTensor::new(came.rank::<2>().unwrap() * tensor(scales, FEATURES).rank::<2>().unwrap()),
        };
        let back = there.combine(&made).unwrap();
        let pull = (0..tokens * FEATURES).map(|i| i as f32 + 1.0).collect();
        let (found, gradient) = if tokens == 0 {
            // Backward runs all the same: others wait for it.
            let nothing = AnyTensor::new(back.rank::<2>().unwrap().sum());
            drop(nothing.rank::<1>().unwrap().backward());
            (back.to_f32(), Vec::new())
        } else {
            let pulled = back.rank::<2>().unwrap() * tensor(pull, FEATURES).rank::<2>().unwrap();
            (back.to_f32(), x.take_gradient(&mut pulled.sum().backward()).unwrap().to_f32())
        };
        tp.check().unwrap();
        let row = tp.group().traffic().of(Op::AllToAll, Dtype::F32);
        (found, gradient, [row.calls, row.elements])
    });
    ends.into_iter().map(Result::unwrap).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_token_gets_what_all_its_experts_make_of_it(
        ranks in 1usize..5, each in 1usize..4, seed in any::<u64>(),
        tokens in prop::collection::vec(0usize..5, 4),
    ) {
        let mut at = seed;
        let mut next = || { at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); at >> 33 };
        // Different experts of one token.
        let of_token = |start: u64| (0..each).map(move |i| ((start as usize + 2 * i) % EXPERTS) as u32);
        let experts: Vec<Vec<u32>> =
            tokens.iter().take(ranks).map(|&n| (0..n).flat_map(|_| of_token(next())).collect()).collect();
        let owners = Split::balanced(EXPERTS, ranks).unwrap();
        let rows = |own: &[u32], rank: usize| {
            let there = owners.range(rank).unwrap();
            own.chunks(each).filter(|of| of.iter().any(|&e| there.contains(&(e as usize)))).count()
        };
        let ends = forth_and_back(&experts, each, ranks);
        for (rank, (found, gradient, traffic)) in ends.into_iter().enumerate() {
            let own = &experts[rank];
            prop_assert_eq!(found.len(), own.len() / each * FEATURES);
            for (token, of) in own.chunks(each).enumerate() {
                let scale: f32 = of.iter().map(|&e| factor(e as usize)).sum();
                for feature in 0..FEATURES {
                    let at = token * FEATURES + feature;
                    prop_assert!((found[at] - scale * value(rank, token, feature)).abs() < 1e-5);
                    prop_assert!((gradient[at] - scale * (at as f32 + 1.0)).abs() < 1e-3);
                }
            }
            // There and back in forward, and again in backward.
            let sent: usize = (0..ranks).map(|to| rows(own, to)).sum();
            let came: usize = experts.iter().map(|from| rows(from, rank)).sum();
            prop_assert_eq!(traffic, [4, (2 * FEATURES * (sent + came)) as u64]);
        }
    }
}

#[test]
fn what_is_not_there_is_told() {
    for end in local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let owners = Split::balanced(4, 2).unwrap();
        let of_three = TokenDispatcher::new(&tp, &[0], 1, &Split::balanced(4, 3).unwrap(), "m").unwrap_err();
        let unknown = TokenDispatcher::new(&tp, &[4], 1, &owners, "m").unwrap_err();
        let there = TokenDispatcher::new(&tp, &[0, 3], 2, &owners, "m").unwrap();
        let tokens = there.dispatch(&tensor(vec![0.0; 6], 3)).unwrap_err();
        [of_three, unknown, tokens].map(|error| error.to_string())
    }) {
        let [of_three, unknown, tokens] = end.unwrap();
        assert!(of_three.contains("[3]") && of_three.contains("[2]"), "{of_three}");
        assert!(unknown.contains('4'), "{unknown}");
        assert!(tokens.contains("[2, 3]") && tokens.contains("[1, 3]"), "{tokens}");
    }
}
