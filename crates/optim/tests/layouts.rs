//! The bits of a step do not depend on where rows, columns and blocks lie.

use std::collections::BTreeMap;
use std::thread;

use burn::tensor::DType;
use burnish_core::random::Stream;
use burnish_core::{Dtype, Orientation, Registry, Role};
use burnish_ops::AnyTensor;
use burnish_optim::{
    AdamWOptions, LearningRates, LocalMatrices, MatrixGather, MomentumDtype, MuonOptions, Optimizer,
    SlotScope, Variant,
};
use proptest::prelude::*;

use crate::ranks::{Board, Cuts, Rank};
use crate::store::{Store, normal, registry, rounded, step_with, tensor};

const RATES: LearningRates = LearningRates { adam: 0.01, muon: 0.02 };
const STEPS: usize = 3;

type Bits = Vec<u32>;
/// By (parameter, slot, held).
type State = BTreeMap<(String, &'static str, SlotScope), Bits>;

fn bits(values: Vec<f32>) -> Bits {
    values.into_iter().map(f32::to_bits).collect()
}

fn state(optimizer: &Optimizer) -> State {
    let slots = optimizer.slots().into_iter();
    slots.map(|s| ((s.parameter, s.slot, s.held), bits(s.tensor.to_f32()))).collect()
}

/// The elements of the whole tensor that are here, of parameter `index`.
fn value(index: usize, elements: &[usize], shape: &[usize], dtype: Dtype) -> AnyTensor {
    let stream = Stream::new(3, &format!("w{index}"));
    let values: Vec<f32> = elements.iter().map(|&i| stream.normal(i as u64)).collect();
    if dtype == Dtype::Bf16 { rounded(&values, shape, DType::BF16) } else { tensor(&values, shape) }
}

fn gradient(index: usize, k: usize, elements: &[usize], shape: &[usize]) -> AnyTensor {
    let stream = Stream::new(4, &format!("g{index}/{k}"));
    tensor(&elements.iter().map(|&i| stream.normal(i as u64)).collect::<Vec<_>>(), shape)
}

/// Runs some steps over what `held` says is here; values and state.
fn run<A: MatrixGather>(
    global: &Registry,
    held: &dyn Fn(usize) -> (Vec<usize>, Vec<usize>),
    owned: &dyn Fn(usize) -> bool,
    assembly: &mut A,
    options: MuonOptions,
) -> (Vec<Bits>, State)
where
    A::Error: std::fmt::Debug,
{
    let mut local = global.clone();
    for (index, parameter) in local.iter_mut().enumerate() {
        parameter.shape = held(index).1;
    }
    let mut optimizer = Optimizer::muon(&local, global, options, AdamWOptions::default(), owned).unwrap();
    let all: Vec<_> = (0..global.len()).map(held).collect();
    let store = Store::new(
        all.iter().enumerate().map(|(i, (at, shape))| value(i, at, shape, global.at(i).precision.store)),
    );
    for k in 0..STEPS {
        // Every other step the last parameter has no gradient.
        let last = global.len() - k % 2;
        let gradients = all[..last]
            .iter()
            .enumerate()
            .filter(|(_, (at, _))| !at.is_empty())
            .map(|(i, (at, shape))| (i, gradient(i, k, at, shape)));
        step_with(&mut optimizer, &store, gradients.collect(), None, RATES, assembly).unwrap();
    }
    ((0..global.len()).map(|i| bits(store.f32(i))).collect(), state(&optimizer))
}

fn whole(global: &Registry, options: MuonOptions) -> (Vec<Bits>, State) {
    let held = |index: usize| {
        let p = global.at(index);
        ((0..p.elements()).collect(), p.shape.clone())
    };
    run(global, &held, &|_| true, &mut LocalMatrices::new(global), options)
}

/// Every rank's part put together, which must be the whole.
fn on_ranks(global: &Registry, cuts: Vec<Cuts>, options: MuonOptions) -> (Vec<Bits>, State) {
    let world = cuts.len();
    let board = Board::new(global, cuts);
    let results: Vec<(Vec<Bits>, State)> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let (board, global) = (&board, &global);
                scope.spawn(move || {
                    let held = |index: usize| (board.elements(rank, index), board.shape(rank, index));
                    let owned = |index: usize| board.owner(index) == rank;
                    run(global, &held, &owned, &mut Rank { board, rank }, options)
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let mut values: Vec<Bits> = global.iter().map(|p| vec![0; p.elements()]).collect();
    let mut state = State::new();
    for (rank, (some, slots)) in results.into_iter().enumerate() {
        for (index, bits) in some.into_iter().enumerate() {
            board.elements(rank, index).into_iter().zip(bits).for_each(|(at, b)| values[index][at] = b);
        }
        for ((name, slot, held), bits) in slots {
            let index = global.index_of(&name).unwrap();
            match held {
                SlotScope::Whole => {
                    assert_eq!(board.owner(index), rank, "{slot} of {name} is its owner's alone");
                    assert!(state.insert((name, slot, held), bits).is_none());
                }
                SlotScope::Rows => {
                    let all = state
                        .entry((name, slot, held))
                        .or_insert_with(|| vec![0; global.at(index).elements()]);
                    board.elements(rank, index).into_iter().zip(bits).for_each(|(at, b)| all[at] = b);
                }
            }
        }
    }
    (values, state)
}

/// Boundaries of `world` parts of `0..n` in units, any of them empty.
fn cut(n: usize, world: usize, chance: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut at: Vec<usize> = (0..world - 1).map(|i| chance[i % chance.len()] % (n + 1)).collect();
    at.sort_unstable();
    at.insert(0, 0);
    at.push(n);
    at.windows(2).map(|w| w[0]..w[1]).collect()
}

fn variant() -> impl Strategy<Value = Variant> {
    prop_oneof![Just(Variant::Muon), Just(Variant::NorMuon), Just(Variant::AdaMuon)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Rows or columns of matrices, some of them `[in, out]`, rows of experts and of fused projections, on 2 or 3 ranks,
    /// some with nothing.
    #[test]
    fn ranks_have_the_bits_of_one(
        (rows, columns, experts) in (1_usize..9, 1_usize..9, 1_usize..4),
        world in 2_usize..4,
        chance in proptest::collection::vec(0_usize..1000, 4),
        by_columns in any::<bool>(),
        narrow in any::<bool>(),
        turned in any::<bool>(),
        stochastic in any::<bool>(),
        variant in variant(),
    ) {
        let stored = if narrow { Dtype::Bf16 } else { Dtype::F32 };
        let mut global = registry(&[
            (Role::Matrix, &[rows, columns], stored),
            (Role::Expert, &[experts, rows, columns], stored),
            (Role::Matrix, &[rows + 3, columns], stored),
            (Role::Norm, &[columns], Dtype::F32),
            (Role::Matrix, &[columns, rows + 1], stored),
        ]);
        global.get_mut("p2").unwrap().blocks = vec![rows, 1, 2];
        if turned {
            global.get_mut("p1").unwrap().orientation = Orientation::InOut;
            global.get_mut("p4").unwrap().orientation = Orientation::InOut;
        }
        let cuts: Vec<Cuts> = {
            let parts: Vec<Vec<_>> = (0..5).map(|i| match i {
                1 => cut(experts, world, &chance).into_iter().map(|e| (e.start * rows..e.end * rows, 0..columns)).collect(),
                3 => cut(columns, world, &chance).into_iter().map(|c| (0..1, c)).collect(),
                4 if by_columns => cut(rows + 1, world, &chance).into_iter().map(|c| (0..columns, c)).collect(),
                _ => {
                    let p = global.at(i);
                    cut(p.shape[0], world, &chance[i % 2..]).into_iter().map(|r| (r, 0..p.shape[1])).collect()
                }
            }).collect();
            (0..world).map(|rank| parts.iter().map(|p: &Vec<_>| p[rank].clone()).collect()).collect()
        };
        let momentum_dtype = if stochastic { MomentumDtype::Bf16Stochastic } else { MomentumDtype::F32 };
        let options = MuonOptions { variant, momentum_dtype, weight_decay: 0.1, seed: 9, ..MuonOptions::default() };
        let (values, state) = whole(&global, options);
        let (there, state_there) = on_ranks(&global, cuts, options);
        prop_assert_eq!(values, there);
        prop_assert_eq!(state, state_there);
    }

    /// Fused projections, heads and experts are orthogonalised and scaled as if they were parameters of their own.
    #[test]
    fn blocks_are_the_separate_matrices(
        blocks in proptest::collection::vec(1_usize..7, 1..5),
        columns in 1_usize..9,
        variant in variant(),
    ) {
        let rows: usize = blocks.iter().sum();
        let mut fused = registry(&[(Role::Matrix, &[rows, columns], Dtype::F32)]);
        fused.get_mut("p0").unwrap().blocks = blocks.clone();
        let shapes: Vec<[usize; 2]> = blocks.iter().map(|&b| [b, columns]).collect();
        let parameters: Vec<_> = shapes.iter().map(|s| (Role::Matrix, &s[..], Dtype::F32)).collect();
        let separate = registry(&parameters);
        let options = MuonOptions { variant, ..MuonOptions::default() };
        let muon = |r: &Registry| Optimizer::muon(r, r, options, AdamWOptions::default(), &|_| true).unwrap();
        let (mut one, mut many) = (muon(&fused), muon(&separate));
        let split = |all: &[f32]| {
            let mut at = 0;
            shapes.iter().map(|s| {
                let n = s[0] * columns;
                at += n;
                tensor(&all[at - n..at], s)
            }).collect::<Vec<_>>()
        };
        let start = normal("w", rows * columns);
        let (a, b) = (Store::new([tensor(&start, &[rows, columns])]), Store::new(split(&start)));
        for k in 0..STEPS {
            let g = normal(&format!("g{k}"), rows * columns);
            let fused_g = vec![(0, tensor(&g, &[rows, columns]))];
            let x = step_with(&mut one, &a, fused_g, None, RATES, &mut LocalMatrices::new(&fused)).unwrap();
            let parts = split(&g).into_iter().enumerate().collect();
            let y = step_with(&mut many, &b, parts, None, RATES, &mut LocalMatrices::new(&separate)).unwrap();
            prop_assert_eq!((x.orthogonalised, y.orthogonalised), (blocks.len(), blocks.len()));
        }
        let together: Bits = (0..blocks.len()).flat_map(|i| bits(b.f32(i))).collect();
        prop_assert_eq!(bits(a.f32(0)), together);
    }
}
