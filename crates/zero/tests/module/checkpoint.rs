//! Checkpoints in folders: written by some ranks at one stage, taken up by others at another.

use burnish_checkpoint::{Checkpoint, rotate};
use burnish_zero::comm::{Group, local};
use burnish_zero::module::{ModuleError, Wrap};
use burnish_zero::optim::Variant;
use burnish_zero::{Policy, Stage};

use super::state::empty;
use super::zoo::{self, Left, Run};

fn normuon(policy: Policy) -> Wrap {
    zoo::muon(policy, Variant::NorMuon)
}

/// Two steps, a folder, and two steps over other ranks are four steps: with AdamW alone, and with an optimizer whose
/// second moments are their owner's.
#[test]
fn a_folder_is_taken_up_by_other_ranks_at_another_stage() {
    for settings in [None, Some(normuon as fn(Policy) -> Wrap)] {
        let whole = Run { micro_batches: 4, settings, ..Run::new(Stage::Zero) }.alone();
        for (from, to) in [(Stage::Three, Stage::One), (Stage::Zero, Stage::Three), (Stage::Two, Stage::Two)]
        {
            let dir = tempfile::tempdir().unwrap();
            let before = Run { micro_batches: 1, settings, ..Run::new(from) };
            let saved = local::run(4, |world| {
                let mut model = before.wrapped(&world.group())?;
                assert_eq!(model.resume(dir.path())?, None);
                for step in 0..2 {
                    before.step(&mut model, &world.group(), step, &mut empty())?;
                    model.save(dir.path(), step as u64 + 1)?;
                }
                Ok::<_, ModuleError>(())
            });
            saved.into_iter().for_each(|rank| rank.unwrap().unwrap());
            let checkpoint = Checkpoint::open(dir.path().join("checkpoint-2")).unwrap();
            assert_eq!(checkpoint.info("layers.0.up.weight", "weight").unwrap().shape, [6, 8]);
            let after = Run { micro_batches: 2, settings, ..Run::new(to) };
            let left = local::run(2, |world| {
                let mut model = after.wrapped(&world.group())?;
                assert_eq!(model.resume(dir.path())?, Some(2));
                assert_eq!(model.optimizer().steps(), 2);
                let mut left: Left = empty();
                for step in 2..4 {
                    after.step(&mut model, &world.group(), step, &mut left)?;
                }
                after.finish(&model, &mut left)?;
                Ok::<_, ModuleError>(left)
            });
            for left in left {
                let mut left = left.unwrap().unwrap();
                left.slots.clone_from(&whole.slots);
                left.assert_close(&whole, &format!("{from} to {to}"));
            }
            assert_eq!(rotate(dir.path(), None, Some(1), None).unwrap().len(), 1);
        }
    }
}

/// What is damaged on the disk is passed over, and a folder that is no folder is every rank's error.
#[test]
fn damage_is_passed_over_and_failure_is_everybodys() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::new(Stage::Two);
    let mut model = run.wrapped(&Group::alone()).unwrap();
    for step in 1..=2 {
        run.step(&mut model, &Group::alone(), 0, &mut empty()).unwrap();
        model.save(dir.path(), step).unwrap();
    }
    let data = std::fs::read_dir(dir.path().join("checkpoint-2/state")).unwrap().map(|e| e.unwrap().path());
    let data = data.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).min().unwrap();
    let mut bytes = std::fs::read(&data).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    assert_eq!(run.wrapped(&Group::alone()).unwrap().resume(dir.path()).unwrap(), Some(1));

    let file = dir.path().join("file");
    std::fs::write(&file, b"in the way").unwrap();
    let errors = local::run(2, |world| run.wrapped(&world.group())?.save(&file, 1).map(drop));
    let errors: Vec<ModuleError> = errors.into_iter().map(|rank| rank.unwrap().unwrap_err()).collect();
    assert!(matches!(errors[0], ModuleError::Checkpoint(_)), "{errors:?}");
    assert!(matches!(errors[1], ModuleError::OtherRanks { .. }), "{errors:?}");
}
