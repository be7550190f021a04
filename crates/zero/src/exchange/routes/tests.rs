#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn part(name: &str, shape: &[usize], rows: Range<usize>, columns: Range<usize>) -> Matrix {
    let flops = shape.iter().product::<usize>() as f64;
    Matrix::new(0, name, flops, &Region::announced(shape, vec![vec![rows], vec![columns]]))
}

fn numbered(mut matrices: Vec<Matrix>) -> Vec<Matrix> {
    matrices.iter_mut().enumerate().for_each(|(i, m)| m.index = i);
    matrices
}

/// `count` square matrices by rows over `world` ranks.
fn by_rows(count: usize, side: usize, world: usize) -> Vec<Vec<Matrix>> {
    let rows = |rank: usize| rank * side / world..(rank + 1) * side / world;
    let of = |rank| (0..count).map(|i| part(&format!("m{i}"), &[side, side], rows(rank), 0..side)).collect();
    (0..world).map(|rank| numbered(of(rank))).collect()
}

/// Twice the matrices' elements over the ranks, less what the owner has already: `2 (N - 1) / N²` of them.
#[test]
fn rows_move_two_nths_of_the_matrices() {
    for world in [2, 3, 4, 8] {
        let (count, side) = (5 * world, 24);
        let routes = AllToAllPlan::new(&by_rows(count, side, world), 1 << 20).unwrap();
        let all = (count * side * side) as u64;
        for rank in 0..world {
            let sent = routes.traffic(rank).of(Op::AllToAll, Dtype::F32);
            let n = world as u64;
            assert_eq!(
                (sent.calls, sent.elements),
                (2, 2 * all * (n - 1) / (n * n)),
                "rank {rank} of {world}"
            );
            assert!(sent.elements <= 2 * all / n);
            assert_eq!(routes.assembled(rank), all as usize / world);
        }
    }
}

#[test]
fn a_round_is_as_large_as_allowed() {
    let holdings = by_rows(12, 8, 2);
    let once = AllToAllPlan::new(&holdings, usize::MAX).unwrap();
    assert_eq!((once.rounds.len(), once.staged(0, 2)), (1, 2 * 6 * 32));
    let routes = AllToAllPlan::new(&holdings, 64).unwrap();
    assert!(routes.rounds.len() >= 3, "{:?}", routes.rounds);
    for rank in 0..2 {
        assert!(routes.staged(rank, 1) <= 2 * 64);
        assert_eq!(
            routes.traffic(rank).elements(Op::AllToAll),
            once.traffic(rank).elements(Op::AllToAll),
            "rounds move the same"
        );
    }
    // A matrix that is too large goes alone.
    assert_eq!(AllToAllPlan::new(&holdings, 1).unwrap().rounds.len(), 12);
}

#[test]
fn what_is_whole_stays_where_it_is() {
    let whole = |mine: [bool; 3]| {
        let of = |(i, &here): (usize, &bool)| {
            let end = if here { 4 } else { 0 };
            part(&format!("m{i}"), &[4, 3], 0..end, 0..3)
        };
        numbered(mine.iter().enumerate().map(of).collect())
    };
    let routes = AllToAllPlan::new(&[whole([true, false, true]), whole([false, true, false])], 64).unwrap();
    assert_eq!([0, 1, 2].map(|i| routes.owner(i)), [Some(0), Some(1), Some(0)]);
    assert_eq!(routes.owner(3), None);
    assert!(!routes.moves());
    assert_eq!(routes.traffic(0), Traffic::default());
    assert_eq!(routes.assembled(0), 0);
}

/// A rank that has it all is the owner, and only sends; the copies elsewhere get the result.
#[test]
fn replicas_get_the_result_of_one() {
    let rank = || vec![part("m", &[4, 3], 0..4, 0..3)];
    let routes = AllToAllPlan::new(&[rank(), rank(), vec![part("m", &[4, 3], 1..2, 0..3)]], 64).unwrap();
    let route = &routes.routes[0];
    assert_eq!((route.owner, route.inward, route.outward), (0, 0, 12 + 3));
    assert_eq!(routes.traffic(0).of(Op::AllToAll, Dtype::F32).calls, 1);
    assert_eq!(routes.traffic(0).elements(Op::AllToAll), 15);
    assert_eq!(routes.traffic(1).elements(Op::AllToAll), 0);
}

/// Shared rows are sent by the lowest holder, unless the owner has them.
#[test]
fn overlapping_rows_come_from_one_holder() {
    let rank = |rows| vec![part("m", &[6, 2], rows, 0..2)];
    let routes = AllToAllPlan::new(&[rank(0..3), rank(2..5), rank(2..6)], 64).unwrap();
    let route = &routes.routes[0];
    assert_eq!(route.owner, 0);
    let cells: Vec<_> =
        route.cells.iter().map(|c| (c.region.ranges(0)[0].clone(), c.sender, c.holders.clone())).collect();
    assert_eq!(
        cells,
        [(0..2, 0, vec![0]), (2..3, 0, vec![0, 1, 2]), (3..5, 1, vec![1, 2]), (5..6, 2, vec![2])]
    );
    assert_eq!((route.inward, route.outward), (6, 4 + 8 + 2));
}

#[test]
fn faults_name_the_matrix_and_the_ranks() {
    let two = |a: Matrix, b: Matrix| AllToAllPlan::new(&[vec![a], vec![b]], 64).unwrap_err();
    let error = two(part("w", &[4, 2], 0..2, 0..2), part("w", &[4, 3], 2..4, 0..3));
    assert_eq!(
        error.clone().named(|r| r + 10).to_string(),
        "matrix `w` has shape [4, 3] on ranks [11], expected [4, 2] as on the first rank"
    );
    let error = two(part("w", &[4, 2], 0..2, 0..2), part("w", &[4, 2], 3..4, 0..2));
    assert!(
        error
            .to_string()
            .starts_with("matrix `w`: no rank holds rows 2..3 of columns 0..2 (ranks [0, 1] hold other"),
        "{error}"
    );
    // Rows and columns are covered, but not their corner.
    let error = two(part("w", &[4, 2], 0..4, 0..1), part("w", &[4, 2], 0..3, 1..2));
    assert!(matches!(error, ExchangeError::Uncovered { rows: Range { start: 3, end: 4 }, .. }), "{error}");
    let error = two(part("w", &[4, 2], 0..2, 0..2), part("w", &[4, 2], 2..5, 0..2));
    assert!(error.to_string().starts_with("matrix `w`: rank 1 holds rows [2..5], expected"), "{error}");
    let mut unordered = part("w", &[4, 2], 0..2, 0..2);
    unordered.region = Region::announced(&[4, 2], vec![vec![0..2], vec![1..2, 0..1]]);
    let error = two(unordered, part("w", &[4, 2], 2..4, 0..2));
    assert!(matches!(error, ExchangeError::Ranges { what: "columns", rank: 0, .. }), "{error}");
    let error = two(part("w", &[4, 2], 0..2, 0..2), part("v", &[4, 2], 2..4, 0..2));
    assert!(
        error.to_string().starts_with("ranks [1] list other matrices than the first rank, which has `w`")
    );
    let one = || part("w", &[4, 2], 0..4, 0..2);
    let error = AllToAllPlan::new(&[vec![one()], vec![]], 64).unwrap_err();
    assert!(matches!(&error, ExchangeError::Unlike { ranks, position: 0, .. } if *ranks == [1]), "{error}");
    let error = AllToAllPlan::new(&[vec![one(), one()]], 64).unwrap_err();
    assert!(matches!(error, ExchangeError::Order { index: 0, after: 0, .. }), "{error}");
}
