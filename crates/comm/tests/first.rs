use burnish_comm::{Bucket, Reduction, local};

#[test]
fn large_and_small_all_reduces_and_gathers() {
    for ranks in [1, 2, 3, 4, 8] {
        for elements in [0, 1, 5, 10_000] {
            let results = local::run(ranks, |world| {
                let group = world.group();
                let mine: Vec<f32> = (0..elements).map(|i| (i * (group.rank() + 1)) as f32 * 0.1).collect();
                let sum = group.all_reduce(Bucket::new(mine.clone()), Reduction::Sum, "x").wait().unwrap();
                let all = group.all_gather_v(Bucket::new(mine), &vec![elements; ranks], "y").wait().unwrap();
                (sum.into_vec(), all.concat().into_vec())
            });
            let expected: Vec<f32> = (0..elements)
                .map(|i| (0..ranks).map(|r| (i * (r + 1)) as f32 * 0.1).reduce(|a, b| a + b).unwrap())
                .collect();
            for result in results {
                let (sum, all) = result.unwrap();
                assert_eq!(sum, expected);
                assert_eq!(all.len(), ranks * elements);
            }
        }
    }
}
