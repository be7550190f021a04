//! Owners of matrices: longest processing time first over ranks, with a cap on elements.

use serde::{Deserialize, Serialize};

/// What one matrix costs the rank that owns it: numbers of the logical matrix, whatever a rank holds of it, so that ranks
/// with other parts of the model deal matrices alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrthoCost {
    /// Floating-point operations per step.
    pub flops: f64,
    /// Elements: what its state costs.
    pub elements: usize,
}

/// How much more than the mean of elements a rank may own.
const CAP: f64 = 1.3;

/// One owner out of `world` ranks for each matrix.
///
/// Longest processing time first (Graham 1969): matrices in falling order of operations, each to the rank with the
/// fewest operations so far, of those that stay within 1.3 times the mean of elements; where none does, to the rank
/// with the fewest elements. Ties go to the first matrix and the lowest rank.
///
/// Where the cap turns no rank away, no rank has more than the mean of operations and one matrix. Where every matrix has
/// at most 0.3 times the mean of elements, the cap holds.
///
/// ```
/// use burnish_zero::{OrthoCost, owners};
/// let work = |flops, elements| OrthoCost { flops, elements };
/// assert_eq!(owners(&[work(4.0, 2), work(9.0, 3), work(5.0, 2)], 2), [1, 0, 1]);
/// ```
///
/// # Panics
/// If there are no ranks.
#[must_use]
pub fn owners(work: &[OrthoCost], world: usize) -> Vec<usize> {
    let every: Vec<usize> = (0..world).collect();
    owners_among(work, world, |_| &every)
}

/// The same where the matrix at `i` may only go to the ranks `among(i)`, of which there is at least one.
pub(crate) fn owners_among<'a>(
    work: &[OrthoCost],
    world: usize,
    among: impl Fn(usize) -> &'a [usize],
) -> Vec<usize> {
    assert!(world > 0, "invariant: at least one rank");
    let all: usize = work.iter().map(|w| w.elements).sum();
    let cap = CAP * all as f64 / world as f64;
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by(|&a, &b| work[b].flops.total_cmp(&work[a].flops));
    let (mut flops, mut elements) = (vec![0.0_f64; world], vec![0_usize; world]);
    let mut owners = vec![0; work.len()];
    for matrix in order {
        let OrthoCost { flops: cost, elements: size } = work[matrix];
        let ranks = among(matrix).iter().copied();
        let owner = ranks
            .clone()
            .filter(|&r| (elements[r] + size) as f64 <= cap)
            .min_by(|&a, &b| flops[a].total_cmp(&flops[b]).then(elements[a].cmp(&elements[b])))
            .or_else(|| ranks.min_by_key(|&r| elements[r]))
            .expect("invariant: a rank may own each matrix");
        flops[owner] += cost;
        elements[owner] += size;
        owners[matrix] = owner;
    }
    owners
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    /// Newton–Schulz on an `m` by `n` matrix, five steps.
    fn matrix(m: usize, n: usize) -> OrthoCost {
        let (short, long) = (m.min(n) as f64, m.max(n) as f64);
        OrthoCost { flops: 20.0 * long * short * short + 10.0 * short.powi(3), elements: m * n }
    }

    fn sums(work: &[OrthoCost], owners: &[usize], world: usize) -> (Vec<f64>, Vec<usize>) {
        let (mut flops, mut elements) = (vec![0.0; world], vec![0; world]);
        for (w, &owner) in work.iter().zip(owners) {
            flops[owner] += w.flops;
            elements[owner] += w.elements;
        }
        (flops, elements)
    }

    /// A model of 28 blocks of hidden size 1024 (Qwen3-0.6B): 1.02 of the mean on 8 ranks in operations, 1.04 in elements.
    #[test]
    fn blocks_of_a_language_model_are_balanced() {
        let block = [
            (2048, 1024),
            (1024, 1024),
            (1024, 1024),
            (1024, 2048),
            (3072, 1024),
            (3072, 1024),
            (1024, 3072),
        ];
        let work: Vec<OrthoCost> = (0..28).flat_map(|_| block).map(|(m, n)| matrix(m, n)).collect();
        for (world, near) in [(2, 1.001), (3, 1.01), (4, 1.005), (8, 1.02), (28, 1.12)] {
            let (flops, elements) = sums(&work, &owners(&work, world), world);
            let over = |most: f64, sum: f64| most * world as f64 / sum;
            let flops = over(flops.iter().copied().fold(0.0, f64::max), flops.iter().sum());
            let elements =
                over(*elements.iter().max().unwrap() as f64, elements.iter().sum::<usize>() as f64);
            assert!(flops <= near, "{world}: {flops}");
            assert!(elements <= 1.3, "{world}: {elements}");
        }
    }

    /// One costly matrix and many cheap ones of many elements: without the cap one rank would keep nearly all state.
    #[test]
    fn memory_is_capped_where_operations_alone_would_not() {
        let mut work = vec![OrthoCost { flops: 1000.0, elements: 10 }];
        work.extend((0..20).map(|_| OrthoCost { flops: 1.0, elements: 10 }));
        let (_, elements) = sums(&work, &owners(&work, 2), 2);
        assert!(elements.iter().all(|&e| e as f64 <= 1.3 * 105.0), "{elements:?}");
    }

    #[test]
    fn only_those_that_may_own_do() {
        let work = vec![OrthoCost { flops: 1.0, elements: 1 }; 6];
        let (first, last) = ([0, 1], [2]);
        let owners = owners_among(&work, 3, |i| if i < 4 { &first[..] } else { &last[..] });
        assert_eq!(owners, [0, 1, 0, 1, 2, 2]);
    }

    proptest! {
        #[test]
        fn every_matrix_has_one_owner_and_the_same_again(
            world in 1usize..10,
            sizes in prop::collection::vec((0usize..40, 0usize..40), 0..60),
        ) {
            let work: Vec<OrthoCost> = sizes.iter().map(|&(m, n)| matrix(m, n)).collect();
            let first = owners(&work, world);
            prop_assert_eq!(first.len(), work.len());
            prop_assert!(first.iter().all(|&owner| owner < world));
            prop_assert_eq!(owners(&work, world), first);
        }

        #[test]
        fn the_cap_holds_where_matrices_are_small(
            world in 1usize..10,
            sizes in prop::collection::vec((1usize..40, 1usize..40), 0..90),
        ) {
            let work: Vec<OrthoCost> = sizes.iter().map(|&(m, n)| matrix(m, n)).collect();
            let mean = work.iter().map(|w| w.elements).sum::<usize>() as f64 / world as f64;
            let largest = work.iter().map(|w| w.elements).max().unwrap_or(0) as f64;
            let (_, elements) = sums(&work, &owners(&work, world), world);
            let most = elements.into_iter().max().unwrap() as f64;
            // Whatever the sizes: a rank over the cap got its last matrix with the fewest elements of all.
            prop_assert!(most <= (1.3 * mean).max(mean + largest) + 1e-9, "{most}, mean {mean}");
            if largest <= 0.3 * mean {
                prop_assert!(most <= 1.3 * mean + 1e-9, "{most}, mean {mean}");
            }
        }

        /// Operations in proportion to elements: whom the cap turns away has the most operations too.
        #[test]
        fn no_rank_has_more_than_the_mean_and_one_matrix(
            world in 1usize..10,
            sizes in prop::collection::vec(0usize..1000, 0..60),
        ) {
            let work: Vec<OrthoCost> = sizes.iter().map(|&n| OrthoCost { flops: n as f64, elements: n }).collect();
            let (flops, _) = sums(&work, &owners(&work, world), world);
            let mean = flops.iter().sum::<f64>() / world as f64;
            let largest = sizes.iter().max().map_or(0.0, |&n| n as f64);
            let bound = mean + largest * (1.0 - 1.0 / world as f64);
            prop_assert!(flops.iter().all(|&f| f <= bound + 1e-9), "{flops:?}, bound {bound}");
        }
    }
}
