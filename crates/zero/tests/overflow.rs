//! An overflow on one rank: all ranks skip, and nothing changes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::{Group, local};
use burnish_core::{Dtype, Precision};
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{AdamW, LossScaler, Unscale};
use burnish_zero::{Policy, ShardedParams, Stage, ZeroError};

use crate::net::Net;
use crate::toy_model::{Run, STAGES, bits, initial, odd, options, share};

type State = (Vec<(Option<Dtype>, Vec<u8>)>, BTreeMap<(String, &'static str), Vec<f32>>, u64);

fn state(store: &ShardedParams, optimizer: &AdamW) -> State {
    let weights = (0..store.registry().len()).map(|i| bits(&store.read(i))).collect();
    store.release();
    let slots = optimizer.slots().into_iter().map(|s| ((s.parameter, s.slot), s.tensor.to_f32())).collect();
    (weights, slots, optimizer.steps())
}

/// Three steps with something not finite in the second, on rank `sick` or on none.
fn steps(run: &Run, group: &Group, sick: Option<(usize, f32)>) -> Result<State, ZeroError> {
    let device = Device::flex();
    let store = ShardedParams::new(run.plan(group.size()), group, &device, |i, rows| {
        Ok::<_, Infallible>(initial(run.registry.at(i), rows, &device))
    })?;
    let mut optimizer = AdamW::new(&store.local_registry(), options());
    for step in 0..3 {
        if step == 1 && sick.is_none() {
            continue;
        }
        let before = state(&store, &optimizer);
        store.begin_micro_batch(true);
        run.micro_batch(&store, step, share(run.samples, group.rank(), group.size()));
        if let Some((rank, value)) = sick
            && step == 1
            && rank == group.rank()
        {
            let index = run.registry.index_of("b.prime").unwrap();
            let mut values = vec![0.0_f32; 51];
            values[50] = value;
            store.accumulate(index, AnyTensor::from_elements(values, &[17, 3], &device));
        }
        store.end_micro_batch()?;
        match store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? {
            Unscale::Finite(finite) => {
                assert!(step != 1, "every rank skips");
                optimizer.step(finite.clip(Some(1.0)), &store, 0.01);
                store.all_gather_params()?;
            }
            Unscale::Skipped { norm } => {
                assert!(step == 1 && !norm.is_finite());
                assert_eq!(state(&store, &optimizer), before, "a skipped step changes nothing");
            }
        }
    }
    Ok(state(&store, &optimizer))
}

#[test]
fn an_overflow_on_one_rank_skips_on_all_and_changes_nothing() {
    let (mut registry, units) = odd();
    registry.get_mut("a.wide").unwrap().precision.store = Dtype::Bf16;
    for stage in STAGES {
        let run = Run::new(registry.clone(), units.clone(), stage);
        let of = |sick| -> Vec<State> {
            local::run(3, |w| steps(&run, &w.group(), sick))
                .into_iter()
                .map(|r| r.unwrap().unwrap())
                .collect()
        };
        let healthy = of(None);
        for sick in [(0, f32::INFINITY), (1, f32::NAN), (2, f32::NEG_INFINITY)] {
            assert_eq!(of(Some(sick)), healthy, "stage {stage}, {sick:?}");
        }
    }
}

/// fp16 weights and gradients on the wire under a dynamic scale of 2^16: the first steps overflow on the wire, the scale
/// falls alike on all ranks, and training goes on.
#[test]
fn the_loss_scale_falls_alike_on_all_ranks_and_training_goes_on() {
    let net = Net { store: Dtype::F16, ..Net::default() };
    let (mut registry, units) = net.registry();
    for parameter in registry.iter_mut() {
        parameter.precision = Precision { reduce: Dtype::F16, ..parameter.precision };
    }
    let mut ends = Vec::new();
    for stage in STAGES {
        let policy = Policy { persist_below: 0, ..Policy::new(stage) };
        let plan = Arc::new(burnish_zero::Plan::new(&registry, units.clone(), 2, policy).unwrap());
        let ranks = local::run(2, |w| {
            let (group, device) = (w.group(), Device::flex());
            let store = Arc::new(ShardedParams::new(plan.clone(), &group, &device, |i, rows| {
                Ok::<_, Infallible>(initial(registry.at(i), rows, &device))
            })?);
            let parameters: Arc<dyn Parameters> = store.clone();
            let mut optimizer = AdamW::new(&store.local_registry(), options());
            let mut scaler = LossScaler::dynamic();
            (scaler.window, scaler.hysteresis) = (4, 1);
            let (mut scales, mut losses, mut skipped) = (Vec::new(), Vec::new(), 0);
            for step in 0..12 {
                scales.push(scaler.scale());
                store.begin_micro_batch(true);
                let samples = share(24, group.rank(), 2);
                let loss = net.micro_batch(&parameters, &units, step, samples, scaler.scale()).unwrap();
                losses.push(group.sum_f64(&[loss], "loss")?[0]);
                store.end_micro_batch()?;
                let gradients = store.gradients()?.unscale(scaler.scale(), |s| store.sum_squares(s))?;
                let overflow = matches!(gradients, Unscale::Skipped { .. });
                if let Unscale::Finite(finite) = gradients {
                    optimizer.step(finite.clip(Some(1.0)), &*store, 0.01);
                    store.all_gather_params()?;
                } else {
                    skipped += 1;
                }
                assert!(scaler.update(overflow));
            }
            Ok::<_, ZeroError>((scales, losses, skipped))
        });
        let ranks: Vec<_> = ranks.into_iter().map(|r| r.unwrap().unwrap()).collect();
        assert_eq!(ranks[0], ranks[1], "stage {stage}");
        let (scales, losses, skipped) = &ranks[0];
        assert!(*skipped >= 2 && *skipped < 12, "stage {stage}: {skipped} skipped, scales {scales:?}");
        assert!(scales.last() < scales.first());
        assert!(losses[11] < losses[0], "stage {stage}: {losses:?}");
        ends.push(ranks.into_iter().next());
    }
    assert!(ends.iter().all(|e| *e == ends[0]), "every stage sees the same scales and losses");
    assert_eq!(Stage::default(), Stage::Zero);
}
