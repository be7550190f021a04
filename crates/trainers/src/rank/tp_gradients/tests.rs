//! Ranks that drifted apart: every save refuses, on all of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burnish_comm::{World, local};
use burnish_config::{Command, SftOptions};

use crate::run::Run;
use crate::run::beginning::Beginning;
use crate::run::training::{Outcome, Training};
use crate::{Ranks, Sft, Trainer};

use super::*;

/// How long a rank waits for one that does not come.
const DEADLINE: Duration = Duration::from_secs(20);

/// A run with LoRA on two ranks that share layers, `nproc` ranks in all.
fn prepared(nproc: usize, out: &Path) -> Run<Sft> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let words = [
        format!("--model_name_or_path={}", fixtures.join("models/llama").display()),
        format!("--dataset_name={}", fixtures.join("data/text.jsonl").display()),
        format!("--output_dir={}", out.display()),
        format!("--nproc={nproc}"),
        "--tp_size=2".to_owned(),
        "--use_peft".to_owned(),
        "--lora_target_modules=all-linear".to_owned(),
        "--lora_r=4".to_owned(),
        "--max_steps=1".to_owned(),
        "--disable_tqdm=true".to_owned(),
        "--report_to=none".to_owned(),
    ];
    let options = SftOptions::parse(words).unwrap().run().unwrap().options;
    Sft::prepare(options, &Ranks::threads(nproc), &Device::flex(), &mut |_| ()).unwrap()
}

/// `nproc` ranks that wait for each other, but not for ever.
fn ranks(nproc: usize) -> Ranks {
    Ranks::Threads { ranks: nproc, deadline: DEADLINE, cores: Vec::new() }
}

/// The trained parameter called so.
fn index_of(rank: &Rank<'_>, name: &str) -> usize {
    let index = rank.plan.registry().iter().position(|p| p.name.ends_with(name)).unwrap();
    assert!(rank.plan.registry().at(index).trainable);
    index
}

/// Changes an element of `name` on ranks with number `changed` of those that share layers with them.
fn change(rank: &Rank<'_>, name: &str, changed: usize, to: f32) {
    if rank.axes.all.rank() == changed {
        let mut value = rank.store.write(index_of(rank, name)).unwrap();
        value.edit(|elements| elements[1] = to);
        value.commit(0, |_, _| ()).unwrap();
    }
}

fn outcome() -> Outcome {
    Outcome { steps: 0, interrupted: None, records: vec![], time: Duration::ZERO, sample: None }
}

/// What is in an output folder beside the log and the lock: checkpoints, models, beginnings of them.
fn left(out: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(out) else { return vec![] };
    entries
        .map(|e| e.unwrap().path())
        .filter(|path| !path.ends_with("metrics.jsonl") && !path.ends_with(".burnish-lock"))
        .collect()
}

/// Whole on each rank: A of a column-parallel layer, B of a row-parallel one.
const WHOLE: [&str; 2] = ["layers.0.self_attn.q_proj.lora_A.weight", "layers.1.mlp.down_proj.lora_B.weight"];

/// What each of two ranks says of a save when `name` is `to` on rank `changed` alone.
fn saved(
    name: &str,
    changed: usize,
    to: f32,
    save: impl Fn(&Rank<'_>, &Sft) -> Result<(), TrainError> + Sync,
) {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let Run { setup, task, .. } = prepared(2, &out);
    let worlds = World::local(2).into_iter().map(|w| w.with_deadline(DEADLINE)).collect();
    let started = Instant::now();
    let results = local::run_worlds(worlds, |world| {
        let rank = Rank::new(&setup, &world, None).unwrap();
        rank.check_replicas().unwrap();
        change(&rank, name, changed, to);
        save(&rank, &task)
    });
    assert!(started.elapsed() < DEADLINE, "nobody waits");
    for (on, result) in results.into_iter().enumerate() {
        match result.unwrap() {
            Err(TrainError::Drifted { parameter, ranks }) => {
                assert!(parameter.ends_with(name), "{parameter}, not {name}");
                assert_eq!(ranks, [1], "rank 0 is what the others are compared with");
            }
            other => panic!("{name} on rank {on}: {other:?}"),
        }
    }
    assert!(left(&out).is_empty(), "nothing is saved: {:?}", left(&out));
}

#[test]
fn a_checkpoint_of_ranks_that_drifted_apart_is_refused_on_all_of_them() {
    for name in WHOLE {
        for changed in [0, 1] {
            saved(name, changed, 0.5, |rank, task| {
                Training::new(rank, task, None, Beginning::default())?.save(None, true)
            });
        }
    }
}

#[test]
fn a_final_model_of_ranks_that_drifted_apart_is_refused_on_all_of_them() {
    for name in WHOLE {
        saved(name, 1, 0.5, |rank, _| rank.leave(&mut outcome()));
    }
}

/// B starts at zero: minus zero is equal to it and is another value in the file.
#[test]
fn replicas_are_compared_bit_for_bit() {
    saved(WHOLE[1], 1, -0.0, |rank, task| {
        Training::new(rank, task, None, Beginning::default())?.save(None, true)
    });
}

#[test]
fn what_ranks_hold_their_own_part_of_may_differ() {
    let root = tempfile::tempdir().unwrap();
    let setup = prepared(2, &root.path().join("out")).setup;
    let checked = ranks(2).run(|world| {
        let rank = Rank::new(&setup, world, None)?;
        change(&rank, "layers.0.self_attn.q_proj.lora_B.weight", 1, 0.5);
        rank.check_replicas()
    });
    checked.unwrap();
}

/// On a mesh the other group has nothing to say against its save, and hears of it while it waits.
#[test]
fn one_group_that_drifted_apart_ends_the_job() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let Run { setup, task, .. } = prepared(4, &out);
    let started = Instant::now();
    let failed = ranks(4).run(|world| {
        let rank = Rank::new(&setup, world, None)?;
        // One rank alone, outside any exchange: the last element is among the rows that it saves.
        if world.rank() == 3 {
            let index = index_of(&rank, WHOLE[0]);
            let value = burnish_optim::ParamStorage::take(&*rank.store, index);
            let shape = value.shape();
            let mut elements = value.to_f32();
            *elements.last_mut().unwrap() += 1.0;
            let value = AnyTensor::from_elements(elements, &shape, setup.devices.of(0).1);
            burnish_optim::ParamStorage::put(&*rank.store, index, value);
        }
        Training::new(&rank, &task, None, Beginning::default())?.save(None, true)
    });
    assert!(matches!(&failed, Err(TrainError::Drifted { ranks, .. }) if *ranks == [1]), "{failed:?}");
    assert!(started.elapsed() < DEADLINE, "nobody waits");
    assert!(left(&out).is_empty(), "{:?}", left(&out));
}
