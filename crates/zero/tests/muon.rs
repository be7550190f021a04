//! Muon at every stage over every world equals one rank bit by bit, orthogonalises each whole matrix once a step, and moves
//! what was said.

use std::collections::BTreeMap;

use burn::tensor::Device;
use burnish_comm::Op;
use burnish_core::{Compute, Dtype, Parameter, Registry, Role};
use burnish_ops::{NewtonSchulz, Stacked, orthogonalize};
use burnish_optim::{AdamWOptions, MomentumDtype, MuonOptions, Optimizer, OptimizerKind, Variant};
use burnish_zero::{ReduceWhen, Stage, Unit};

use crate::toy_model::{Run, STAGES, gradient, initial, registry, trained};

const WORLDS: [usize; 4] = [1, 2, 3, 4];

/// Matrices that do not divide, fused, of experts, of one row, in bf16; and what AdamW takes.
fn model() -> (Registry, Vec<Unit>) {
    let of = |name, shape: &[usize], role| Parameter { role, ..trained(name, shape) };
    registry(vec![
        vec![of("embed", &[13, 6], Role::Embedding)],
        vec![
            Parameter { blocks: vec![6, 2, 2], ..trained("a.qkv", &[10, 6]) },
            trained("a.o", &[6, 6]),
            of("a.norm", &[6], Role::Norm),
            half(trained("a.up", &[9, 6])),
            half(trained("a.down", &[6, 9])),
        ],
        vec![
            of("b.experts", &[3, 4, 6], Role::Expert),
            of("b.router", &[3, 6], Role::Router),
            trained("b.thin", &[1, 7]),
            trained("b.prime", &[17, 3]),
            of("b.adapter", &[2, 6], Role::Adapter),
        ],
        vec![of("norm", &[6], Role::Norm), of("head", &[13, 6], Role::Head)],
    ])
}

/// In `model`: three of queries, keys and values, three experts, and five more.
const MATRICES: usize = 3 + 3 + 5;

fn half(parameter: Parameter) -> Parameter {
    let Parameter { name, shape, role, .. } = parameter;
    Parameter { trainable: true, ..Parameter::new(name, &shape, role, Dtype::Bf16) }
}

fn options() -> MuonOptions {
    MuonOptions { weight_decay: 0.01, ..MuonOptions::default() }
}

fn muon(stage: Stage) -> Run {
    let (registry, units) = model();
    Run { muon: Some(options()), steps: 4, ..Run::new(registry, units, stage) }
}

#[test]
fn muon_at_every_stage_over_every_world_equals_one_rank_bit_by_bit() {
    let reference = muon(Stage::Zero).alone();
    assert!(reference.reports.iter().all(|r| r.orthogonalised == MATRICES));
    let momenta = reference.slots.keys().filter(|(_, slot)| *slot == "momentum_buffer").count();
    assert_eq!(momenta, 7);
    for stage in STAGES {
        for world in WORLDS {
            assert_eq!(muon(stage).over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// Second moments are their owner's; rounding by chance goes by elements, not by ranks.
#[test]
fn variants_and_narrow_momentum_equal_one_rank_bit_by_bit() {
    let plain = muon(Stage::Zero).alone();
    for (variant, momentum_dtype) in [
        (Variant::NorMuon, MomentumDtype::F32),
        (Variant::AdaMuon, MomentumDtype::F32),
        (Variant::Muon, MomentumDtype::Bf16Stochastic),
    ] {
        let of = |stage| Run {
            muon: Some(MuonOptions { variant, momentum_dtype, seed: 5, ..options() }),
            ..muon(stage)
        };
        let reference = of(Stage::Zero).alone();
        assert_ne!(reference.weights, plain.weights);
        for stage in STAGES {
            for world in [2, 3, 4] {
                assert_eq!(
                    of(stage).over(world),
                    reference,
                    "{variant}, {momentum_dtype}, stage {stage}, {world}"
                );
            }
        }
    }
}

/// With products of bfloat16 too: a matrix is whole where it is orthogonalised.
#[test]
fn products_of_bfloat16_equal_one_rank_bit_by_bit() {
    let newton_schulz = NewtonSchulz { compute: Compute::Bf16, ..NewtonSchulz::default() };
    let of = |stage| Run { muon: Some(MuonOptions { newton_schulz, ..options() }), ..muon(stage) };
    let reference = of(Stage::Zero).alone();
    let rounds = burnish_cpu_kernels::isa().has_bf16_dots();
    assert!(
        (reference != muon(Stage::Zero).alone()) == rounds,
        "rounded where the processor has such products"
    );
    for stage in STAGES {
        for world in WORLDS {
            assert_eq!(of(stage).over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// Small buckets and rounds, whole small matrices at stage 3, sums in every micro-batch: not what comes out.
#[test]
fn policies_do_not_change_muon() {
    let reference = muon(Stage::Zero).alone();
    for stage in STAGES {
        for change in 0..4 {
            let mut run = muon(stage);
            match change {
                0 => run.policy.bucket_elements = 1,
                1 => run.policy.bucket_elements = 40,
                2 => run.policy.persist_below = 50,
                _ => run.policy.reduce = ReduceWhen::Step,
            }
            assert_eq!(run.over(3), reference, "stage {stage}, change {change}");
        }
    }
}

/// Ranks early and late, and messages that overtake each other.
#[test]
fn delays_do_not_change_muon() {
    let run = |stage| Run { steps: 3, micro_batches: 2, ..muon(stage) };
    let reference = run(Stage::Zero).alone();
    for stage in STAGES {
        let delayed = Run { delays: true, ..run(stage) };
        assert_eq!(delayed.over(4), reference, "stage {stage}");
        for seed in 0..2 {
            let late = Run { late: Some(seed), ..run(stage) };
            assert_eq!(late.over(4), reference, "stage {stage}, seed {seed}");
        }
    }
}

/// As many orthogonalisations as steps times matrices, over all ranks, whatever the accumulation.
#[test]
fn accumulation_orthogonalises_once_a_step() {
    let one = muon(Stage::Zero).alone();
    for stage in STAGES {
        for reduce in [ReduceWhen::Step, ReduceWhen::MicroBatch] {
            for world in [1, 3] {
                let mut run = Run { micro_batches: 4, ..muon(stage) };
                run.policy.reduce = reduce;
                let left = run.over(world);
                assert_eq!(left.reports.iter().map(|r| r.orthogonalised).sum::<usize>(), 4 * MATRICES);
                assert_eq!(left, one, "stage {stage}, {reduce:?}, over {world}");
            }
        }
    }
}

/// Matrices that no sample of a step uses, on any rank: neither momentum nor weight decay touches them.
#[test]
fn unused_matrices_are_left_alone() {
    let run = |stage| Run {
        uses: |sample, name| name != "a.o" && (name != "b.prime" || sample == 3),
        ..muon(stage)
    };
    let reference = run(Stage::Zero).alone();
    assert!(!reference.slots.contains_key(&("a.o".to_owned(), "momentum_buffer")));
    assert!(reference.reports.iter().all(|r| r.orthogonalised == MATRICES - 1));
    for stage in STAGES {
        for world in [2, 3, 4] {
            assert_eq!(run(stage).over(world), reference, "stage {stage} over {world}");
        }
    }
}

/// Elements per step: stages 1 and 2 two models, as AdamW; stage 3 as AdamW and the exchange.
#[test]
fn muon_moves_two_models_and_at_stage_3_the_matrices_besides() {
    let (world, sides) = (4, [[8, 12], [16, 8], [24, 24], [12, 8], [8, 8]]);
    let (registry, units) = registry(vec![
        vec![Parameter { role: Role::Embedding, ..trained("embed", &[20, 8]) }],
        sides.iter().enumerate().map(|(i, side)| trained(&format!("m{i}"), side)).collect(),
        vec![Parameter { role: Role::Head, ..trained("head", &[20, 8]) }],
    ]);
    let psi = registry.iter().map(Parameter::elements).sum::<usize>() as u64;
    let matrices = sides.iter().map(|side| side[0] * side[1]).sum::<usize>() as u64;
    for stage in STAGES {
        for micro_batches in [1, 2] {
            let adam = Run { steps: 2, micro_batches, ..Run::new(registry.clone(), units.clone(), stage) };
            let with = Run { muon: Some(options()), ..adam.clone() };
            let (adam, ranks) = (adam.ranks(world), with.ranks(world));
            for (rank, adam) in ranks.iter().zip(&adam) {
                assert_eq!(rank.traffic, rank.expected, "stage {stage}");
                let all: Vec<Op> = rank.traffic.rows().map(|(key, _)| key.op).collect();
                match stage {
                    Stage::Zero => assert_eq!(rank.traffic, adam.traffic),
                    Stage::One | Stage::Two => {
                        assert_eq!(rank.traffic, adam.traffic);
                        assert_eq!(rank.traffic.elements(Op::ReduceScatter), psi);
                        assert_eq!(rank.traffic.elements(Op::AllGather), psi);
                        assert!(!all.contains(&Op::AllToAll));
                    }
                    Stage::Three => {
                        for op in [Op::ReduceScatter, Op::AllGather] {
                            assert_eq!(rank.traffic.elements(op), adam.traffic.elements(op));
                        }
                    }
                }
            }
            let sent: u64 = ranks.iter().map(|rank| rank.traffic.elements(Op::AllToAll)).sum();
            // There and back what is not on the owner already: (N - 1) / N of each matrix. Per rank 2Ψm/N at most, on average.
            let expected = if stage == Stage::Three { 2 * matrices * 3 / 4 } else { 0 };
            assert_eq!(sent, expected, "stage {stage}");
        }
    }
}

/// The change of one step over its rate and scale: what was orthogonalised, by parameter.
fn directions(run: &Run, world: usize) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let run = Run { muon: Some(MuonOptions::default()), steps: 1, ..run.clone() };
    let left = run.over(world);
    let device = Device::flex();
    let matrices = run.registry.iter().filter(|p| options().takes(p) && p.precision.store == Dtype::F32);
    matrices
        .map(|p| {
            let before = initial(p, 0..p.shape[0], &device).to_f32();
            let after =
                left.weights[&p.name].1.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            let [rows, columns] = [p.shape[0], p.shape[1]];
            let scale = 0.02 * 0.2 * (rows.max(columns) as f32).sqrt();
            let direction =
                before.iter().zip(after).map(|(before, after)| (before - after) / scale).collect();
            (p.name.clone(), (p.shape.clone(), direction))
        })
        .collect()
}

/// Newton–Schulz of a parameter's first gradient, in blocks of rows.
fn orthogonal(parameter: &Parameter, blocks: Vec<usize>) -> Vec<f32> {
    let tensor = gradient(parameter, 0, &(0..24).collect::<Vec<_>>());
    let done = orthogonalize(vec![Stacked { tensor, blocks }], &NewtonSchulz::default()).unwrap();
    done[0].to_f32()
}

/// The distance of two matrices, over the size of the second.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
    (squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut b.iter().copied())).sqrt()
}

fn squares(side: usize) -> (Registry, Vec<Unit>) {
    let of = |name: &str| trained(name, &[side, side]);
    registry(vec![vec![of("first")], vec![of("second"), of("third"), of("fourth")], vec![of("last")]])
}

/// DeepSpeed #7807: under reduce-scatter a rank's slice of rows was orthogonalised as if it were the matrix.
#[test]
fn muon_orthogonalises_whole_matrices_under_reduce_scatter() {
    let (registry, units) = squares(16);
    for stage in [Stage::One, Stage::Two, Stage::Three] {
        let found = directions(&Run::new(registry.clone(), units.clone(), stage), 4);
        assert_eq!(found.len(), 5);
        for parameter in registry.iter() {
            let (_, direction) = &found[&parameter.name];
            let (whole, slices) = (orthogonal(parameter, vec![16]), orthogonal(parameter, vec![4; 4]));
            let (right, wrong) = (apart(direction, &whole), apart(direction, &slices));
            assert!(right < 1e-4 && wrong > 0.3, "{} at stage {stage}: {right}, {wrong}", parameter.name);
        }
    }
}

/// DeepSpeed #8441: at stage 0, the default, nothing was orthogonalised.
#[test]
fn stage_0_orthogonalises() {
    let (registry, units) = squares(12);
    for world in WORLDS {
        let found = directions(&Run::new(registry.clone(), units.clone(), Stage::Zero), world);
        for parameter in registry.iter() {
            let (_, direction) = &found[&parameter.name];
            let right = apart(direction, &orthogonal(parameter, vec![12]));
            let raw = gradient(parameter, 0, &(0..24).collect::<Vec<_>>()).to_f32();
            let norm = raw.iter().map(|x| x * x).sum::<f32>().sqrt() / 12_f32.sqrt();
            let plain: Vec<f32> = raw.iter().map(|x| x / norm).collect();
            let wrong = apart(direction, &plain);
            assert!(right < 1e-4 && wrong > 0.2, "{} over {world}: {right}, {wrong}", parameter.name);
        }
    }
}

/// DeepSpeed #8461: flat pieces of one dimension came to the optimizer, which then did plain momentum.
#[test]
fn no_flat_partition_reaches_muon() {
    for stage in STAGES {
        for world in [1, 2, 3, 4, 8] {
            for bucket_elements in [1, 25, 1 << 20] {
                let mut run = muon(stage);
                run.policy.bucket_elements = bucket_elements;
                let plan = run.plan(world);
                for rank in 0..world {
                    let local = plan.local_registry(rank);
                    for (local, global) in local.iter().zip(run.registry.iter()) {
                        assert_eq!(local.shape[1..], global.shape[1..], "whole rows of {}", global.name);
                    }
                    for matrix in plan.matrices(rank) {
                        let shape = &run.registry.at(matrix.index).shape;
                        assert_eq!(
                            (&matrix.shape, matrix.region.ranges(1)[0].clone()),
                            (shape, 0..shape[shape.len() - 1])
                        );
                    }
                }
            }
        }
    }
    let (registry, units) = squares(16);
    let mut run = Run::new(registry.clone(), units, Stage::Two);
    // No bucket holds a matrix, and every rank's part of a bucket ends within one.
    run.policy.bucket_elements = 100;
    for (name, (_, direction)) in directions(&run, 3) {
        let right = apart(&direction, &orthogonal(registry.get(&name).unwrap(), vec![16]));
        assert!(right < 1e-4, "{name}: {right}");
    }
}

/// DeepSpeed #8438: a sharded parameter looked empty, so none was tagged for Muon and all went to AdamW.
#[test]
fn stage_3_tags_matrices_by_logical_shape() {
    let run = muon(Stage::Three);
    let device = Device::flex();
    for world in [2, 4, 8] {
        let plan = run.plan(world);
        for rank in 0..world {
            let local = plan.local_registry(rank);
            let adam = AdamWOptions::default();
            let optimizer = Optimizer::muon(&local, &run.registry, options(), adam, &|_| false).unwrap();
            assert_eq!(optimizer.assignment().count(OptimizerKind::Muon).0, 7, "rank {rank} of {world}");
            assert_eq!(plan.matrices(rank).len(), 7);
        }
        // Among eight ranks most have no row of some matrix.
        let nothing =
            (0..world).filter(|&r| plan.rows(run.registry.index_of("b.thin").unwrap(), r).is_empty());
        assert_eq!(nothing.count(), world - 1);
    }
    let reference = muon(Stage::Zero).alone();
    assert_eq!(run.over(8), reference);
    let adam = Run { muon: None, ..run.clone() }.over(8);
    for parameter in run.registry.iter().filter(|p| options().takes(p)) {
        assert_ne!(adam.weights[&parameter.name], reference.weights[&parameter.name], "{}", parameter.name);
        let before = initial(parameter, 0..parameter.shape[0], &device);
        let before: Vec<u8> = before.to_data().as_bytes().to_vec();
        assert_ne!(before, reference.weights[&parameter.name].1, "{} moved", parameter.name);
    }
}

/// DeepSpeed #8443: at stage 3 momentum and Newton–Schulz ran in every micro-batch.
#[test]
fn stage_3_accumulation_orthogonalises_once() {
    let one = muon(Stage::Three).over(4);
    for micro_batches in [2, 3, 6] {
        for reduce in [ReduceWhen::Step, ReduceWhen::MicroBatch] {
            let mut run = Run { micro_batches, ..muon(Stage::Three) };
            run.policy.reduce = reduce;
            let left = run.over(4);
            assert!(left.reports.iter().all(|r| r.orthogonalised == MATRICES), "{:?}", left.reports);
            assert_eq!(left, one, "{micro_batches} micro-batches, {reduce:?}");
        }
    }
}

/// DeepSpeed #8439: the clip factor divided the orthogonalised update. Before it, it changes next to nothing.
#[test]
fn clipping_comes_before_orthogonalising() {
    let (registry, units) = squares(12);
    for stage in STAGES {
        let free = directions(&Run::new(registry.clone(), units.clone(), stage), 3);
        let clipped = Run { max_norm: Some(0.01), ..Run::new(registry.clone(), units.clone(), stage) };
        for (name, (_, direction)) in directions(&clipped, 3) {
            let moved = apart(&direction, &free[&name].1);
            assert!(moved < 1e-3, "{name} at stage {stage}: {moved}");
        }
    }
}

/// Rows of the momentum are where the weights' are; a second moment is on one rank.
#[test]
fn momentum_is_of_rows_and_second_moments_of_owners() {
    let run =
        Run { muon: Some(MuonOptions { variant: Variant::NorMuon, ..options() }), ..muon(Stage::Three) };
    let ranks = run.ranks(3);
    let of = |name: &str, slot| -> Vec<usize> {
        ranks.iter().map(|r| r.slots.get(&(name.to_owned(), slot)).map_or(0, Vec::len)).collect()
    };
    let rows = of("b.prime", "momentum_buffer");
    assert!(rows.iter().all(|&n| n == 15 || n == 18) && rows.iter().sum::<usize>() == 51, "{rows:?}");
    let mut second = of("b.prime", "second_momentum_buffer");
    second.sort_unstable();
    assert_eq!(second, [0, 0, 17]);
}
