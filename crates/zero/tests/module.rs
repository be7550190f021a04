//! Modules of one's own: wrapped, and the same on any number of ranks at every stage.

mod adapters;
mod checkpoint;
mod dropout;
mod faults;
#[path = "../examples/mlp.rs"]
mod mlp;
mod on_use;
mod state;
mod zoo;

use burnish_ops::Parameters;
use burnish_zero::comm::{Op, local};
use burnish_zero::module::{Dtype, Initial, ModuleError, Reduce, Stepped, Wrap, Wrapped};
use burnish_zero::optim::Variant;
use burnish_zero::{Policy, ReduceWhen, Stage};

use zoo::{Run, Zoo, device};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

/// The example: it learns, and N ranks are one rank, at every stage.
#[test]
fn the_example_trains_as_on_one_rank() {
    let _drawing = zoo::DRAWING.lock();
    let one = mlp::run(1, Stage::Zero).remove(0);
    let (first, last) = (one.losses[0], one.losses[one.losses.len() - 1]);
    assert!(last < 0.1 * first, "{first} -> {last}");
    for ranks in [1, 2, 4] {
        for stage in STAGES {
            for (rank, trained) in mlp::run(ranks, stage).into_iter().enumerate() {
                let what = format!("stage {stage} over {ranks}, rank {rank}");
                let close = |a: f64, b: f64| (a - b).abs() < 1e-4 * (1.0 + a.abs());
                assert!(one.losses.iter().zip(&trained.losses).all(|(&a, &b)| close(a, b)), "{what}");
                let mut weights = one.weight.iter().zip(&trained.weight);
                assert!(weights.all(|(&a, &b)| close(a.into(), b.into())), "{what}");
                // f32: 4 bytes of weight and gradient, 8 of moments; what is sharded is near its share.
                let all = one.memory.weights;
                assert_eq!(one.memory.gradients, all);
                let parts = |sharded: bool| if sharded { ranks as u64 } else { 1 };
                let near = |bytes: u64, parts: u64| bytes.abs_diff(all / parts) <= all / 50;
                assert!(near(trained.memory.weights, parts(stage >= Stage::Three)), "{what}");
                assert!(near(trained.memory.gradients, parts(stage >= Stage::One)), "{what}");
                assert!(near(trained.memory.optimizer / 2, parts(stage >= Stage::One)), "{what}");
            }
        }
    }
}

/// One step at learning rate 1 without decay moves each element by g / (|g| + eps): checked against gradients of the
/// module as Burn has it, without any wrapping.
#[test]
fn a_step_is_adamw_on_burns_own_gradients() {
    let run = Run { steps: 1, lr: 0.25, ..Run::new(Stage::Zero) };
    let expected = zoo::by_hand(&run);
    for stage in STAGES {
        for blocks in [false, true] {
            let left = Run { stage, blocks, ..run.clone() }.alone();
            for (path, values) in &expected {
                let got = &left.weights[path];
                // bf16 weights are rounded.
                let within = if path.ends_with("half") { 1.0 / 128.0 } else { 1e-4 };
                let ok = values.iter().zip(got).all(|(a, b)| (a - b).abs() <= within);
                assert!(ok, "stage {stage}, blocks {blocks}, {path}: {values:?} {got:?}");
            }
        }
    }
}

/// Odd shapes, bf16, four dimensions, frozen, tied within and across blocks, unused on all ranks or on one: each stage
/// over each world gives the bits of one rank that takes the ranks' shares one after the other.
#[test]
fn every_stage_over_every_world_equals_one_rank() {
    for world in [1, 2, 3, 4] {
        let one = Run { micro_batches: world, ..Run::new(Stage::Zero) }.alone();
        assert_eq!(one.losses.len(), 4);
        for stage in STAGES {
            let run = Run { stage, ..Run::new(stage) };
            run.over(world).assert_same(&one, &format!("stage {stage} over {world}"));
            // A tied parameter has several gradients then: they are added in another order.
            let blocks = Run { blocks: true, ..run };
            blocks.over(world).assert_close(&one, &format!("stage {stage} over {world} by blocks"));
        }
    }
}

/// Muon for matrices and AdamW for the rest: each matrix is orthogonalised whole, wherever its rows are.
#[test]
fn muon_over_every_world_equals_one_rank() {
    for variant in [Variant::Muon, Variant::NorMuon] {
        let settings: fn(Policy) -> Wrap = match variant {
            Variant::Muon => |p| zoo::muon(p, Variant::Muon),
            _ => |p| zoo::muon(p, Variant::NorMuon),
        };
        let base = Run { settings: Some(settings), ..Run::new(Stage::Zero) };
        let adamw = Run { micro_batches: 3, settings: None, ..base.clone() }.alone();
        let one = Run { micro_batches: 3, ..base.clone() }.alone();
        let momentum =
            |(path, slot): &&(String, &str)| path == "layers.0.up.weight" && *slot == "momentum_buffer";
        assert_eq!(one.slots.keys().filter(momentum).count(), 1);
        assert_ne!(one.weights["layers.0.up.weight"], adamw.weights["layers.0.up.weight"]);
        for stage in STAGES {
            for blocks in [false, true] {
                let left = Run { stage, blocks, ..base.clone() }.over(3);
                left.assert_close(&one, &format!("{variant}, stage {stage}, blocks {blocks}"));
            }
        }
    }
}

#[test]
fn accumulation_and_clipping_equal_one_rank() {
    let base = Run { settings: Some(|p| Wrap::new(p).clip(0.05)), ..Run::new(Stage::Zero) };
    let one = Run { micro_batches: 6, ..base.clone() }.alone();
    let free = Run { micro_batches: 6, settings: None, ..base.clone() }.alone();
    assert_ne!(one.slots, free.slots, "clipping changes moments");
    for stage in STAGES {
        for reduce in [ReduceWhen::Step, ReduceWhen::MicroBatch] {
            for blocks in [false, true] {
                let run = Run { stage, reduce: Some(reduce), blocks, micro_batches: 2, ..base.clone() };
                run.over(3).assert_close(&one, &format!("stage {stage}, {reduce:?}, blocks {blocks}"));
            }
        }
    }
}

/// Uneven shares of one sum.
#[test]
fn sums_of_uneven_shares_equal_one_rank() {
    let base =
        Run { settings: Some(|p| Wrap::new(p).reduce(Reduce::Sum)), uneven: true, ..Run::new(Stage::Two) };
    let one = Run { micro_batches: 3, ..base.clone() }.alone();
    for stage in STAGES {
        let left = Run { stage, blocks: stage == Stage::Three, ..base.clone() }.over(3);
        left.assert_close(&one, &format!("stage {stage}"));
    }
}

/// What travels in a step is what the plan said, call by call and element by element.
#[test]
fn a_step_moves_what_the_plan_says() {
    for (stage, blocks, micro_batches) in
        STAGES.into_iter().flat_map(|s| [(s, false, 1), (s, true, 1), (s, true, 3)])
    {
        let ranks = local::run(3, |world| {
            let run = Run { blocks, micro_batches, ..Run::new(stage) };
            let group = world.group();
            let mut model = run.wrapped(&group)?;
            let mut traffic = Vec::new();
            for step in 0..2 {
                group.clear_traffic();
                run.step(&mut model, &group, step, &mut state::empty())?;
                traffic.push(group.clear_traffic());
            }
            Ok::<_, ModuleError>((traffic.remove(1), model.plan().traffic(micro_batches)))
        });
        for rank in ranks {
            let (moved, mut planned) = rank.unwrap().unwrap();
            // The loss, by `Wrapped::mean`.
            planned.add(Op::AllReduce, Dtype::F64, 1, 1);
            assert_eq!(moved, planned, "stage {stage}, blocks {blocks}, {micro_batches} micro-batches");
        }
    }
}

/// Where the weights are kept, nothing else holds them between passes: an update is in place.
#[test]
fn weights_are_kept_once() {
    for stage in STAGES {
        for blocks in [false, true] {
            let ranks = local::run(2, |world| {
                let run = Run { blocks, ..Run::new(stage) };
                let mut model = run.wrapped(&world.group())?;
                let index = model.registry().index_of("layers.1.up.weight").unwrap();
                let at = |model: &Wrapped<Zoo>| {
                    let kept = match stage {
                        Stage::Three => model.store().saved_rows(index).unwrap().1,
                        _ => model.store().read(index),
                    };
                    kept.elements::<f32>().unwrap().as_ptr() as usize
                };
                let before = at(&model);
                for step in 0..3 {
                    run.step(&mut model, &world.group(), step, &mut state::empty())?;
                    assert_eq!(at(&model), before, "stage {stage}, blocks {blocks}, step {step}");
                }
                Ok::<_, ModuleError>(())
            });
            ranks.into_iter().for_each(|rank| rank.unwrap().unwrap());
        }
    }
}

/// Rank 0's values are everybody's; modules of other ranks are not even initialized.
#[test]
fn ranks_begin_with_the_values_of_rank_zero() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use burn::module::{Module, Param, ParamId};
    use burn::tensor::Tensor;

    #[derive(Module, Debug)]
    struct Late {
        w: Param<Tensor<2>>,
    }
    static INITIALIZED: AtomicUsize = AtomicUsize::new(0);
    let late = |rank: usize| {
        let init = move |device: &_, grad: bool| {
            INITIALIZED.fetch_add(1, Ordering::Relaxed);
            Tensor::<2>::full([5, 3], rank as f32 + 0.5, device).set_require_grad(grad)
        };
        Late { w: Param::uninitialized(ParamId::new(), init, device(), true, [5, 3].into()) }
    };
    let weights = local::run(3, |world| {
        let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
        let mut model = Wrap::new(policy).over(&world.group(), late(world.rank()))?;
        assert!(model.registry().at(0).trainable);
        let index = model.registry().index_of("w").unwrap();
        assert_eq!(model.store().saved_rows(index)?.0.len(), [2, 2, 1][world.rank()]);
        // The same again, where each rank has its own.
        let own = Wrap::stage(Stage::One).initial(Initial::Verified).over(&world.group(), late(0));
        assert!(own.is_ok(), "{own:?}");
        let pass = model.evaluation()?;
        assert!(!pass.w.val().is_autodiff());
        drop(pass);
        Ok::<_, ModuleError>(model.read("w")?.to_f32())
    });
    for w in weights {
        assert_eq!(w.unwrap().unwrap(), [0.5; 15]);
    }
    assert_eq!(INITIALIZED.load(Ordering::Relaxed), 1 + 3);
}

/// A gradient that is not finite on one rank skips the step on all, and changes nothing.
#[test]
fn infinity_on_one_rank_skips_on_all() {
    for stage in STAGES {
        let ranks = local::run(2, |world| {
            let policy = Policy { persist_below: 0, ..Policy::new(stage) };
            let mut model = Wrap::new(policy).over(&world.group(), Zoo::new(&device()))?;
            let before = model.read("layers.0.up.weight")?.to_f32();
            let (mut stepped, mut weights) = (Vec::new(), Vec::new());
            for factor in [f32::INFINITY, 1.0] {
                let factor = if world.rank() == 1 { factor } else { 1.0 };
                let pass = model.micro_batch(true)?;
                let loss = zoo::loss(&pass, 0..2, 8.0) * factor;
                pass.backward(loss)?;
                stepped.push(model.step(0.1)?);
                weights.push(model.read("layers.0.up.weight")?.to_f32());
            }
            assert!(matches!(stepped[0], Stepped::Skipped { norm } if !norm.is_finite()), "{stepped:?}");
            assert!(matches!(stepped[1], Stepped::Applied(a) if a.grad_norm > 0.0), "{stepped:?}");
            assert_eq!(model.optimizer().steps(), 1);
            assert_eq!(weights[0], before);
            assert_ne!(weights[1], before);
            Ok::<_, ModuleError>(())
        });
        ranks.into_iter().for_each(|rank| rank.unwrap().unwrap());
    }
}

/// A loss scale that is a power of two changes no bit.
#[test]
fn a_loss_scale_is_divided_out() {
    let ranks = local::run(2, |world| {
        let mut all = Vec::new();
        for scale in [1.0_f32, 1024.0] {
            let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
            let mut model = Wrap::new(policy).clip(0.1).over(&world.group(), Zoo::new(&device()))?;
            for _ in 0..2 {
                let pass = model.micro_batch(true)?;
                let loss = zoo::loss(&pass, 4..6, 2.0) * scale;
                pass.backward(loss)?;
                model.step_scaled(0.01, scale)?;
            }
            all.push((model.read("layers.0.half")?.to_f32(), model.read("head")?.to_f32()));
        }
        assert_eq!(all[0], all[1]);
        Ok::<_, ModuleError>(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap().unwrap());
}

/// Burn's `Linear` holds `[in, out]`: a parameter says so, and a matrix of one's own says what it is told to.
#[test]
fn parameters_declare_their_orientation() {
    use burn::module::{Module, Param};
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Tensor;
    use burnish_zero::module::Orientation;

    #[derive(Module, Debug)]
    struct Mixed {
        up: Linear,
        own: Param<Tensor<2>>,
    }
    let ranks = local::run(1, |world| {
        let mixed = || Mixed {
            up: LinearConfig::new(3, 8).init(&device()),
            own: Param::from_tensor(Tensor::ones([2, 3], &device())),
        };
        let orientations = |wrap: Wrap| {
            let model = wrap.over(&world.group(), mixed())?;
            let of = |path| model.registry().get(path).unwrap().orientation;
            Ok::<_, ModuleError>([of("up.weight"), of("own")])
        };
        let plain = orientations(Wrap::stage(Stage::Zero))?;
        let declared = orientations(Wrap::stage(Stage::Zero).orientation("own", Orientation::OutIn))?;
        let error =
            orientations(Wrap::stage(Stage::Zero).orientation("won", Orientation::OutIn)).unwrap_err();
        assert!(error.to_string().starts_with("orientation `won` matches no parameter"), "{error}");
        Ok::<_, ModuleError>((plain, declared))
    });
    for rank in ranks {
        let (plain, declared) = rank.unwrap().unwrap();
        assert_eq!(plain, [Orientation::InOut, Orientation::Undeclared]);
        assert_eq!(declared, [Orientation::InOut, Orientation::OutIn]);
    }
}
