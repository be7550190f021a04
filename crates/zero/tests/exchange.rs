//! Matrices in pieces come together at one rank each and go back, whatever the pieces are; what travels is what was said.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use burn::tensor::Device;
use burnish_comm::local::{links, run, run_worlds};
use burnish_comm::transport::{Fault, FaultPlan, Faulty};
use burnish_comm::{Op, Traffic, World};
use burnish_core::Dtype;
use burnish_ops::AnyTensor;
use burnish_optim::MatrixGather;
use burnish_zero::{ExchangeError, Matrix, MatrixAllToAll, Region, ZeroError};
use proptest::prelude::*;

const WORLDS: [usize; 5] = [1, 2, 3, 4, 8];

/// A matrix: its shape, and the rows and columns that each rank holds.
#[derive(Clone, Debug)]
struct Dealt {
    shape: Vec<usize>,
    held: Vec<[Vec<Range<usize>>; 2]>,
}

impl Dealt {
    fn new(shape: &[usize], held: impl Fn(usize) -> [Range<usize>; 2], world: usize) -> Self {
        Self { shape: shape.to_vec(), held: (0..world).map(|r| held(r).map(|range| vec![range])).collect() }
    }

    fn columns(&self) -> usize {
        *self.shape.last().unwrap()
    }

    fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// As announced by a rank; parameters have even indices.
    fn matrix(&self, number: usize, rank: usize) -> Matrix {
        let flops = (self.rows() * self.columns()) as f64;
        let region = Region::announced(&[self.rows(), self.columns()], self.held[rank].to_vec());
        let (name, shape) = (format!("m{number}"), self.shape.clone());
        Matrix { index: 2 * number, name, shape, flops, region }
    }

    /// The elements that a rank holds of the matrix with these values.
    fn piece(&self, rank: usize, value: impl Fn(usize) -> f32) -> Option<AnyTensor> {
        let [rows, columns] = &self.held[rank];
        let (rows, columns) = (flat(rows), flat(columns));
        if rows.is_empty() || columns.is_empty() {
            return None;
        }
        let mut values = Vec::new();
        for row in &rows {
            values.extend(columns.iter().map(|column| value(row * self.columns() + column)));
        }
        Some(AnyTensor::from_elements(values, &[rows.len(), columns.len()], &Device::flex()))
    }
}

fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

fn flat(ranges: &[Range<usize>]) -> Vec<usize> {
    ranges.iter().cloned().flatten().collect()
}

fn before(number: usize) -> impl Fn(usize) -> f32 {
    move |element| (1000 * number + element) as f32
}

fn after(number: usize) -> impl Fn(usize) -> f32 {
    move |element| -2.0 * (1000 * number + element) as f32
}

/// What a rank saw: matrices that it owned, what it communicated, and what it was told beforehand that it would.
type Seen = (Vec<usize>, Traffic, Traffic);

/// Two steps over all matrices (in the second only those in `present`), everything checked.
fn there_and_back(world: &World, dealt: &[Dealt], most: usize, present: &[bool]) -> Result<Seen, ZeroError> {
    let (group, device, me) = (world.group(), Device::flex(), world.rank());
    let matrices = dealt.iter().enumerate().map(|(n, d)| d.matrix(n, me)).collect();
    let mut exchange = MatrixAllToAll::new(&group, &device, matrices, most)?;
    let every = vec![true; dealt.len()];
    let mut seen = None;
    for present in [&every[..], present] {
        group.clear_traffic();
        let some = || dealt.iter().enumerate().filter(|(n, _)| present[*n]);
        let pieces = some().filter_map(|(n, d)| Some((2 * n, d.piece(me, before(n))?))).collect();
        let whole = exchange.gather(pieces)?;
        let owned: Vec<usize> = whole.iter().map(|(index, _)| *index).collect();
        let expected = some().filter(|(n, d)| exchange.owns(2 * n) && d.rows() * d.columns() > 0);
        assert_eq!(owned, expected.map(|(n, _)| 2 * n).collect::<Vec<_>>());
        let mut done = Vec::new();
        for (index, value) in whole {
            let (n, d) = (index / 2, &dealt[index / 2]);
            assert_eq!(value.shape(), d.shape);
            let expected: Vec<f32> = (0..d.rows() * d.columns()).map(before(n)).collect();
            assert_eq!(value.to_f32(), expected, "matrix {n} on rank {me}");
            let values = value.to_f32().iter().map(|x| -2.0 * x).collect();
            done.push((index, AnyTensor::from_elements::<f32>(values, &d.shape, &device)));
        }
        let back: BTreeMap<usize, AnyTensor> = exchange.scatter(done)?.into_iter().collect();
        let expected: BTreeMap<usize, AnyTensor> =
            some().filter_map(|(n, d)| Some((2 * n, d.piece(me, after(n))?))).collect();
        assert_eq!(back.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (index, piece) in &back {
            assert_eq!(piece.shape(), expected[index].shape());
            assert_eq!(piece.to_f32(), expected[index].to_f32(), "matrix {index} back on rank {me}");
        }
        seen.get_or_insert_with(|| (owned, group.traffic(), exchange.traffic()));
    }
    Ok(seen.unwrap())
}

fn on(worlds: Vec<World>, dealt: &[Dealt], most: usize, present: &[bool]) -> Vec<Seen> {
    let ends = run_worlds(worlds, |world| there_and_back(&world, dealt, most, present));
    ends.into_iter().map(|end| end.unwrap().unwrap()).collect()
}

fn over(world: usize, dealt: &[Dealt], most: usize) -> Vec<Seen> {
    let ranks = on(World::local(world), dealt, most, &vec![true; dealt.len()]);
    for (_, measured, said) in &ranks {
        assert_eq!(measured, said);
    }
    ranks
}

/// Rows split as evenly as they go, unevenly, and over the first ranks only; columns; both; copies; overlaps.
fn assorted(world: usize) -> Vec<Dealt> {
    let part = |n: usize, rank: usize, of: usize| n * rank / of..n * (rank + 1) / of;
    let across = if world.is_multiple_of(2) { 2 } else { 1 };
    let down = world / across;
    vec![
        Dealt::new(&[13, 6], |r| [part(13, r, world), 0..6], world),
        Dealt::new(&[5, 7], |r| [part(5, r, world), 0..7], world),
        Dealt::new(&[9, 4], |r| [8 * r.min(1)..8 + usize::from(r + 1 == world), 0..4], world),
        Dealt::new(&[4, 11], |r| [0..4, part(11, r, world)], world),
        Dealt::new(&[10, 9], |r| [part(10, r / across, down), part(9, r % across, across)], world),
        // Whole on one rank, on every rank; nothing at all.
        Dealt::new(&[3, 3], |r| [if r + 1 == world { 0..3 } else { 3..3 }, 0..3], world),
        Dealt::new(&[2, 8], |_| [0..2, 0..8], world),
        Dealt::new(&[0, 5], |_| [0..0, 0..5], world),
        // Neighbours share rows, as ranks share key and value heads.
        Dealt::new(&[12, 5], |r| [12 * r / world..(12 * (r + 1) / world + 2).min(12), 0..5], world),
        // Experts: six matrices of four rows.
        Dealt::new(&[6, 4, 3], |r| [4 * (6 * r / world)..4 * (6 * (r + 1) / world), 0..3], world),
    ]
}

#[test]
fn pieces_of_any_kind_come_together_and_go_back() {
    for world in WORLDS {
        let dealt = assorted(world);
        for most in [1, 40, 1 << 20] {
            let ranks = over(world, &dealt, most);
            let mut owned: Vec<usize> = ranks.iter().flat_map(|(owned, ..)| owned.clone()).collect();
            owned.sort_unstable();
            assert_eq!(owned, [0, 2, 4, 6, 8, 10, 12, 16, 18], "every matrix once over {world}");
        }
    }
}

/// Messages that overtake each other, in rounds of few elements: the same on every rank.
#[test]
fn delays_do_not_change_what_comes() {
    for seed in 0..4 {
        let dealt = assorted(4);
        let plan = FaultPlan::new(seed).delays(Duration::from_millis(3));
        let worlds =
            links(4).into_iter().map(|link| World::over(Box::new(Faulty::new(link, plan.clone())))).collect();
        let present: Vec<bool> = (0..dealt.len() as u64).map(|n| (n + seed) % 3 != 0).collect();
        let plain = on(World::local(4), &dealt, 30, &present);
        assert_eq!(on(worlds, &dealt, 30, &present), plain);
    }
}

/// What is whole on its owner and nowhere else: nothing is communicated, not even which matrices there are.
#[test]
fn whole_matrices_are_not_communicated() {
    let dealt: Vec<Dealt> = (0..6)
        .map(|n| Dealt::new(&[5, 4], move |r| [if r == n % 3 { 0..5 } else { 0..0 }, 0..4], 3))
        .collect();
    for (rank, (owned, measured, _)) in over(3, &dealt, 100).into_iter().enumerate() {
        assert_eq!(owned, [2 * rank, 2 * (rank + 3)]);
        assert_eq!(measured, Traffic::default());
    }
}

/// A step without gradients for some matrices, or for all: their elements do not travel.
#[test]
fn absent_matrices_do_not_travel() {
    let dealt = assorted(3);
    let none = vec![false; dealt.len()];
    on(World::local(3), &dealt, 64, &none);
    let one: Vec<bool> = (0..dealt.len()).map(|n| n == 4).collect();
    on(World::local(3), &dealt, 64, &one);
    let ranks = run(3, |world| {
        let (group, me) = (world.group(), world.rank());
        let matrices = dealt.iter().enumerate().map(|(n, d)| d.matrix(n, me)).collect();
        let mut exchange = MatrixAllToAll::new(&group, &Device::flex(), matrices, 64)?;
        group.clear_traffic();
        assert!(exchange.gather(Vec::new())?.is_empty() && exchange.scatter(Vec::new())?.is_empty());
        Ok::<_, ZeroError>(group.traffic())
    });
    for traffic in ranks {
        let traffic = traffic.unwrap().unwrap();
        assert_eq!(traffic.calls(Op::AllToAll), 0);
        assert_eq!(traffic.of(Op::AllReduce, Dtype::U8).elements, 2 * dealt.len() as u64);
    }
}

/// Ψm elements of matrices by rows over N ranks: a rank sends at most 2Ψm/N.
#[test]
fn a_rank_sends_two_nths_of_the_matrices() {
    for world in [2, 3, 4, 8] {
        let dealt: Vec<Dealt> = (0..4 * world)
            .map(|_| Dealt::new(&[24, 10], |r| [24 * r / world..24 * (r + 1) / world, 0..10], world))
            .collect();
        let all = (4 * world * 240) as u64;
        for (owned, measured, _) in over(world, &dealt, 1 << 20) {
            assert_eq!(owned.len(), 4);
            let n = world as u64;
            let sent = measured.of(Op::AllToAll, Dtype::F32);
            assert_eq!((sent.calls, sent.elements), (2, 2 * all * (n - 1) / (n * n)));
        }
    }
}

#[test]
fn held_says_which_rows_and_columns() {
    let dealt = assorted(4);
    let matrices = dealt.iter().enumerate().map(|(n, d)| d.matrix(n, 0)).take(1).collect::<Vec<_>>();
    let alone = run(1, |world| {
        let whole = Matrix {
            region: Region::announced(&[13, 6], vec![vec![0..2, 2..13], one(0..6)]),
            ..matrices[0].clone()
        };
        let exchange = MatrixAllToAll::new(&world.group(), &Device::flex(), vec![whole], 8)?;
        Ok::<_, ZeroError>((exchange.held(0), exchange.held(1), exchange.traffic()))
    });
    for end in alone {
        let (held, none, traffic) = end.unwrap().unwrap();
        assert_eq!(held, (vec![0..2, 2..13], one(0..6)));
        assert_eq!((none, traffic), ((vec![], vec![]), Traffic::default()));
    }
}

/// The errors of two ranks that hold the two halves of a matrix, after `spoil` by each.
fn spoiled(
    spoil: impl Fn(usize, &mut Vec<Matrix>) + Sync,
    bring: impl Fn(usize, &mut Vec<(usize, AnyTensor)>) + Sync,
) -> Vec<String> {
    let dealt = Dealt::new(&[4, 2], |r| [2 * r..2 * r + 2, 0..2], 2);
    let ends = run(2, |world| {
        let me = world.rank();
        let mut matrices = vec![dealt.matrix(0, me)];
        spoil(me, &mut matrices);
        let mut exchange = MatrixAllToAll::new(&world.group(), &Device::flex(), matrices, 64)?;
        let mut pieces = vec![(0, dealt.piece(me, before(0)).unwrap())];
        bring(me, &mut pieces);
        exchange.gather(pieces).map(drop)
    });
    ends.into_iter()
        .map(|end: Result<Result<(), ZeroError>, _>| end.unwrap().unwrap_err().to_string())
        .collect()
}

#[test]
fn faults_are_told_on_every_rank_with_matrix_and_ranks() {
    let started = std::time::Instant::now();
    let errors = spoiled(|rank, m| m[0].shape = vec![4, 2 + rank], |_, _| ());
    assert_eq!(
        errors,
        vec!["matrix `m0` has shape [4, 3] on ranks [1], expected [4, 2] as on the first rank"; 2]
    );
    let errors =
        spoiled(|_, m| m[0].region = Region::announced(&[4, 2], vec![one(1..3), one(0..2)]), |_, _| ());
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].starts_with("matrix `m0`: no rank holds rows 0..1 of columns 0..2 (ranks [0, 1]"),
        "{errors:?}"
    );
    let errors = spoiled(|rank, m| m[0].name.push_str(["", "x"][rank]), |_, _| ());
    assert!(
        errors.iter().all(|e| e.starts_with("ranks [1] list other matrices than the first rank")),
        "{errors:?}"
    );
    let errors = spoiled(
        |_, _| (),
        |rank, pieces| {
            if rank == 1 {
                pieces.clear();
            }
        },
    );
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].starts_with("matrix `m0`: ranks [0] have an update for their part, ranks [1] have none"),
        "{errors:?}"
    );
    let errors = spoiled(
        |_, _| (),
        |rank, pieces| {
            if rank == 0 {
                pieces[0].1 = AnyTensor::from_elements(vec![1.0_f32; 6], &[3, 2], &Device::flex());
            }
        },
    );
    assert!(errors[0].contains("its piece has shape [3, 2] in Some(F32), expected [2, 2]"), "{errors:?}");
    assert!(errors[1].starts_with("matrix `m0`: ranks [0] brought another piece"), "{errors:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "nobody waits for a deadline");
}

/// A rank that goes silent or loses a message, in any call from the announcement to the last round.
#[test]
fn a_fault_at_any_call_is_told_on_every_rank() {
    let dealt: Vec<Dealt> = (0..3).map(|_| Dealt::new(&[9, 4], |r| [3 * r..3 * r + 3, 0..4], 3)).collect();
    // Two announcements, presence, three rounds there and three back.
    let calls = 2 + 1 + 3 + 3;
    std::thread::scope(|scope| {
        for fault in [Fault::Vanish, Fault::Drop] {
            for call in 0..calls {
                let dealt = &dealt;
                scope.spawn(move || {
                    let plan = FaultPlan::new(1).at(1, call, fault);
                    let worlds = links(3).into_iter().map(|link| {
                        let world = World::over(Box::new(Faulty::new(link, plan.clone())));
                        world.with_deadline(Duration::from_secs(2))
                    });
                    let ends = run_worlds(worlds.collect(), |w| there_and_back(&w, dealt, 1, &[false; 3]));
                    for (rank, end) in ends.into_iter().enumerate() {
                        let error = end.unwrap().unwrap_err();
                        let case = format!("{fault:?} at call {call}, rank {rank}: {error}");
                        assert!(matches!(error, ZeroError::Comm(_)) && case.contains("rank 1"), "{case}");
                    }
                });
            }
        }
    });
}

#[test]
fn an_exchange_takes_turns() {
    let dealt = Dealt::new(&[4, 2], |_| [0..4, 0..2], 1);
    let ends = run(1, |world| {
        let mut exchange =
            MatrixAllToAll::new(&world.group(), &Device::flex(), vec![dealt.matrix(0, 0)], 64)?;
        let piece = || vec![(0, dealt.piece(0, before(0)).unwrap())];
        let fault = |result: Result<_, ZeroError>| match result.unwrap_err() {
            ZeroError::MatrixAllToAll(error) => error,
            other => panic!("{other}"),
        };
        let early = fault(exchange.scatter(Vec::new()));
        assert!(matches!(early, ExchangeError::Turn { .. }), "{early}");
        exchange.gather(piece())?;
        let forgotten = fault(exchange.scatter(Vec::new()));
        assert!(
            forgotten.to_string().starts_with("matrix `m0` was gathered and not scattered"),
            "{forgotten}"
        );
        exchange.gather(piece())?;
        let thin = AnyTensor::from_elements(vec![0.0_f32; 4], &[2, 2], &Device::flex());
        assert!(matches!(fault(exchange.scatter(vec![(0, thin)])), ExchangeError::Piece { .. }));
        let unknown = fault(exchange.gather(vec![(1, dealt.piece(0, before(0)).unwrap())]));
        assert!(matches!(unknown, ExchangeError::Unknown { index: 1, matrices: 1 }));
        Ok::<_, ZeroError>(())
    });
    ends.into_iter().for_each(|end| end.unwrap().unwrap());
}

/// Whose rows (or columns) are whose: each is one group's, and some are others' too.
fn groups(of: usize, groups: usize, words: &[u8]) -> Vec<Vec<Range<usize>>> {
    let word = |i: usize| usize::from(words[i % words.len()]);
    let has = |group: usize, i: usize| word(i) % groups == group || word(i + 7 * group + 3) % 5 == 0;
    let ranges = |group| {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for i in (0..of).filter(|&i| has(group, i)) {
            match ranges.last_mut() {
                Some(last) if last.end == i => last.end += 1,
                _ => ranges.push(i..i + 1),
            }
        }
        ranges
    };
    (0..groups).map(ranges).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Any rows and columns of any matrices on any ranks, as long as all are somewhere.
    #[test]
    fn gather_then_scatter_is_the_identity_for_any_cover(
        (down, across) in (1usize..4, 1usize..4),
        most in 1usize..300,
        matrices in prop::collection::vec(
            (0usize..12, 0usize..12, prop::collection::vec(any::<u8>(), 30), any::<bool>()),
            0..7,
        ),
    ) {
        let world = down * across;
        let present: Vec<bool> = matrices.iter().map(|(.., present)| *present).collect();
        let dealt: Vec<Dealt> = matrices
            .iter()
            .map(|(rows, columns, words, _)| {
                let (r, c) = (groups(*rows, down, words), groups(*columns, across, &words[11..]));
                let held = (0..world).map(|rank| [r[rank / across].clone(), c[rank % across].clone()]).collect();
                Dealt { shape: vec![*rows, *columns], held }
            })
            .collect();
        let ranks = on(World::local(world), &dealt, most, &present);
        let owned: usize = ranks.iter().map(|(owned, ..)| owned.len()).sum();
        prop_assert_eq!(owned, dealt.iter().filter(|d| d.rows() * d.columns() > 0).count());
        for (_, measured, said) in &ranks {
            prop_assert_eq!(measured, said);
        }
    }
}
