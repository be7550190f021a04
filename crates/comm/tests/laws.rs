//! Laws over random sizes, deals and values.

use std::sync::Arc;
use std::time::Duration;

use burnish_comm::local::{self, links, run_worlds};
use burnish_comm::transport::{FaultPlan, Faulty};
use burnish_comm::{Bucket, Group, Piece, Reduction, World};
use half::bf16;
use proptest::prelude::*;

fn finite() -> impl Strategy<Value = f32> {
    prop_oneof![-1e3_f32..1e3, -1.0_f32..1.0, Just(0.0), Just(-0.0), -1e30_f32..1e30]
}

/// Counts per rank, and each rank's whole bucket.
fn buckets() -> impl Strategy<Value = (Vec<usize>, Vec<Vec<f32>>)> {
    prop::sample::select(vec![1, 2, 3, 4, 8])
        .prop_flat_map(|ranks| {
            prop::collection::vec(prop_oneof![Just(0), 0..40_usize, 2000..4000_usize], ranks)
        })
        .prop_flat_map(|counts| {
            let (ranks, total) = (counts.len(), counts.iter().sum::<usize>());
            let values = prop::collection::vec(finite(), total);
            (Just(counts), prop::collection::vec(values, ranks))
        })
}

/// What one rank sends each: a square of lists.
fn letters() -> impl Strategy<Value = Vec<Vec<Vec<u64>>>> {
    prop::sample::select(vec![1, 2, 3, 4, 8]).prop_flat_map(|ranks| {
        let letter = prop::collection::vec(any::<u64>(), 0..20);
        prop::collection::vec(prop::collection::vec(letter, ranks), ranks)
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn reduced_twice(group: &Group, counts: &[usize], mine: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let whole = group.all_reduce(Bucket::new(mine.to_vec()), Reduction::Sum, "whole");
    let part =
        group.reduce_scatter_v(Bucket::new(mine.to_vec()), counts, Reduction::Sum, "parts").wait().unwrap();
    let parts = group.all_gather_v(part, counts, "parts").wait().unwrap();
    (whole.wait().unwrap().into_vec(), parts.concat().into_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn reduce_scatter_then_all_gather_is_all_reduce((counts, values) in buckets()) {
        let results = local::run(counts.len(), |world| {
            reduced_twice(&world.group(), &counts, &values[world.rank()])
        });
        let mut expected = values[0].clone();
        for other in &values[1..] {
            expected.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
        }
        for result in results {
            let (whole, parts) = result.unwrap();
            prop_assert_eq!(bits(&whole), bits(&expected));
            prop_assert_eq!(bits(&parts), bits(&expected));
        }
    }

    #[test]
    fn delays_and_reordering_change_no_bit((counts, values) in buckets(), seed in any::<u64>()) {
        let plain = local::run(counts.len(), |world| {
            reduced_twice(&world.group(), &counts, &values[world.rank()])
        });
        let plan = FaultPlan::new(seed).delays(Duration::from_micros(400));
        let worlds = links(counts.len())
            .into_iter()
            .map(|link| World::over(Box::new(Faulty::new(link, plan.clone()))))
            .collect();
        let delayed = run_worlds(worlds, |world| reduced_twice(&world.group(), &counts, &values[world.rank()]));
        for (plain, delayed) in plain.into_iter().zip(delayed) {
            let (plain, delayed) = (plain.unwrap(), delayed.unwrap());
            prop_assert_eq!(bits(&plain.0), bits(&delayed.0));
            prop_assert_eq!(bits(&plain.1), bits(&delayed.1));
        }
    }

    #[test]
    fn all_to_all_there_and_back_is_the_identity(letters in letters()) {
        let results = local::run(letters.len(), |world| {
            let (group, rank) = (world.group(), world.rank());
            let there: Vec<usize> = letters[rank].iter().map(Vec::len).collect();
            let here: Vec<usize> = letters.iter().map(|of| of[rank].len()).collect();
            let mine = Bucket::new(letters[rank].concat());
            let got = group.all_to_all_v(mine, &there, &here, "there").wait().unwrap();
            for (from, part) in got.iter().enumerate() {
                assert_eq!(part, letters[from][rank]);
            }
            group.all_to_all_v(got.concat(), &here, &there, "back").wait().unwrap().concat().into_vec()
        });
        for (rank, result) in results.into_iter().enumerate() {
            prop_assert_eq!(result.unwrap(), letters[rank].concat());
        }
    }

    #[test]
    fn parameters_survive_a_bucket_and_its_parts(
        lengths in prop::collection::vec(0..50_usize, 1..12),
        cuts in prop::collection::vec(0..500_usize, 0..4),
    ) {
        let parameters: Vec<Vec<bf16>> = lengths
            .iter()
            .enumerate()
            .map(|(at, &length)| (0..length).map(|i| bf16::from_f32((at * 50 + i) as f32)).collect())
            .collect();
        let name = |at: usize| format!("layer.{at}.weight");
        let bucket = Bucket::concat(parameters.iter().enumerate().map(|(at, values)| {
            let piece = Piece { parameter: name(at), range: 0..values.len() };
            Bucket::new(values.clone()).with_map(Arc::new([piece]))
        }));
        for (at, values) in parameters.iter().enumerate() {
            prop_assert_eq!(bucket.of(&name(at)).unwrap(), values.as_slice());
        }
        // dealt at random cuts, each rank finds its elements of each parameter; together they are all
        let total = bucket.len();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(total)).collect();
        cuts.sort_unstable();
        let ends: Vec<usize> = cuts.iter().copied().chain([total]).collect();
        let counts: Vec<usize> =
            ends.iter().enumerate().map(|(at, end)| end - if at == 0 { 0 } else { ends[at - 1] }).collect();
        let (all, map) = (bucket.as_slice().to_vec(), Arc::clone(bucket.map().unwrap()));
        let parts = local::run(counts.len(), |world| {
            let mine = Bucket::new(all.clone()).with_map(Arc::clone(&map));
            let part = world.group().reduce_scatter_v(mine, &counts, Reduction::Max, "deal").wait().unwrap();
            (0..parameters.len()).map(|at| part.of(&name(at)).unwrap_or_default().to_vec()).collect::<Vec<_>>()
        });
        let parts: Vec<Vec<Vec<bf16>>> = parts.into_iter().map(Result::unwrap).collect();
        for (at, values) in parameters.iter().enumerate() {
            let whole: Vec<bf16> = parts.iter().flat_map(|part| part[at].iter().copied()).collect();
            prop_assert_eq!(&whole, values);
        }
    }
}
