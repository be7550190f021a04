//! Writing through a guard reaches weights, masters and every rank; a dropped guard changes nothing and is told.

use std::convert::Infallible;

use burn::tensor::Device;
use burnish_comm::{Group, local};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{AdamW, Unscale};
use burnish_zero::{ShardedParams, ZeroError};

use crate::toy_model::{Run, STAGES, bits, initial, odd, options, share};

fn store(run: &Run, group: &Group) -> Result<ShardedParams, ZeroError> {
    let device = Device::flex();
    ShardedParams::new(run.plan(group.size()), group, &device, |i, rows| {
        Ok::<_, Infallible>(initial(run.registry.at(i), rows, &device))
    })
}

fn step(
    run: &Run,
    store: &ShardedParams,
    optimizer: &mut AdamW,
    group: &Group,
    number: usize,
) -> Result<(), ZeroError> {
    store.begin_micro_batch(true);
    run.micro_batch(store, number, share(run.samples, group.rank(), group.size()));
    store.end_micro_batch()?;
    let Unscale::Finite(finite) = store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? else {
        panic!("integers are finite")
    };
    optimizer.step(finite.clip(None), store, 0.01);
    store.all_gather_params()
}

/// Replaces the master of one parameter.
fn refresh(optimizer: &mut AdamW, name: &str, rows: &AnyTensor) {
    let slots: Vec<_> = optimizer
        .slots()
        .into_iter()
        .map(|s| {
            let master = s.parameter == name && s.slot == "master";
            (
                s.parameter,
                s.slot.to_owned(),
                if master { rows.clone() } else { s.tensor.into_tensor().unwrap() },
            )
        })
        .collect();
    optimizer.restore(optimizer.steps(), slots).unwrap();
}

type Bits = (Option<Dtype>, Vec<u8>);

/// A step, a write by the last rank, and a step: every rank's weights, bit for bit those of one rank.
fn written(run: &Run, group: &Group, name: &str) -> Result<Vec<Bits>, ZeroError> {
    let store = store(run, group)?;
    let mut optimizer = AdamW::new(&store.local_registry(), options());
    step(run, &store, &mut optimizer, group, 0)?;
    let index = run.registry.index_of(name).unwrap();
    let mut guard = store.write(index)?;
    // Only the last rank has the right values.
    let value = if group.rank() + 1 == group.size() { 0.25 } else { 77.0 };
    guard.edit(|values| values.iter_mut().enumerate().for_each(|(i, x)| *x = value * (i + 1) as f32));
    let mut refreshed = 0;
    guard.commit(group.size() - 1, |parameter, rows| {
        assert_eq!((parameter, rows.dtype()), (index, Some(Dtype::F32)));
        assert_eq!(rows.shape()[0], store.rows(index).len());
        refreshed += 1;
        if !store.rows(index).is_empty() {
            refresh(&mut optimizer, name, &rows);
        }
    })?;
    assert_eq!(refreshed, usize::from(run.registry.at(index).trainable));
    let now = store.read(index).to_f32();
    assert!(now.iter().enumerate().all(|(i, &x)| x == 0.25 * (i + 1) as f32), "{now:?}");
    store.release();
    step(run, &store, &mut optimizer, group, 1)?;
    let weights = (0..run.registry.len()).map(|i| bits(&store.read(i))).collect();
    store.check()?;
    Ok(weights)
}

#[test]
fn a_committed_write_is_everybodys_value_and_master() {
    let (mut registry, units) = odd();
    registry.get_mut("a.wide").unwrap().precision.store = Dtype::Bf16;
    registry.get_mut("norm").unwrap().trainable = false;
    for name in ["a.wide", "b.prime", "a.one", "norm"] {
        let reference =
            written(&Run::new(registry.clone(), units.clone(), STAGES[0]), &Group::alone(), name).unwrap();
        for stage in STAGES {
            let run = Run::new(registry.clone(), units.clone(), stage);
            for weights in local::run(3, |w| written(&run, &w.group(), name)) {
                assert_eq!(weights.unwrap().unwrap(), reference, "{name} at stage {stage}");
            }
        }
    }
}

#[test]
fn a_dropped_write_changes_nothing_and_is_told_once() {
    let (registry, units) = odd();
    for stage in STAGES {
        let run = Run::new(registry.clone(), units.clone(), stage);
        let ends = local::run(2, |w| {
            let store = store(&run, &w.group())?;
            let before = bits(&store.read(0));
            let guard = store.write(0)?;
            assert_eq!(bits(guard.value()), before);
            drop(guard);
            store.check()?;
            let mut guard = store.write(0)?;
            guard.edit(|values| values.fill(9.0));
            drop(guard);
            assert_eq!(bits(&store.read(0)), before);
            let told = store.check().unwrap_err().to_string();
            assert!(told.contains("`embed`") && told.contains("`commit`"), "{told}");
            store.check()
        });
        ends.into_iter().for_each(|e| e.unwrap().unwrap());
    }
}

#[test]
fn a_written_value_has_the_declared_shape_and_dtype() {
    let (registry, units) = odd();
    let run = Run::new(registry, units, STAGES[0]);
    let store = store(&run, &Group::alone()).unwrap();
    let mut guard = store.write(0).unwrap();
    let wrong = AnyTensor::from_elements(vec![0.0_f32; 4], &[2, 2], &Device::flex());
    let told = guard.set(wrong).unwrap_err().to_string();
    assert!(told.contains("`embed`") && told.contains("[2, 2]") && told.contains("[13, 5]"), "{told}");
}

/// What was gathered before an update and never let go is gathered again after it: every rank reads what the ranks that own
/// the rows keep, and not what it has seen.
#[test]
fn a_read_after_an_update_is_of_the_update() {
    for stage in STAGES {
        let (registry, units) = odd();
        let run = Run::new(registry, units, stage);
        let ranks = local::run(3, |world| {
            let group = world.group();
            let store = store(&run, &group)?;
            let mut optimizer = AdamW::new(&store.local_registry(), options());
            let index = run.registry.index_of("b.prime").unwrap();
            store.begin_micro_batch(true);
            run.micro_batch(&store, 0, share(run.samples, group.rank(), group.size()));
            store.end_micro_batch()?;
            // Not let go, as by who looks at a weight between backward and the update.
            let before = store.read(index).to_f32();
            let Unscale::Finite(finite) = store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? else {
                panic!("integers are finite")
            };
            optimizer.step(finite.clip(None), &store, 0.5);
            store.all_gather_params()?;
            let after = store.read(index).to_f32();
            let (rows, kept) = store.saved_rows(index)?;
            let row = after.len() / run.registry.at(index).shape[0];
            assert_eq!(after[rows.start * row..rows.end * row], kept.to_f32(), "stage {stage}");
            store.release();
            Ok::<_, ZeroError>((before, after))
        });
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.unwrap().unwrap()).collect();
        assert_ne!(ranks[0].0, ranks[0].1, "stage {stage}: the update changes it");
        assert!(ranks.iter().all(|rank| rank == &ranks[0]), "stage {stage}");
    }
}
