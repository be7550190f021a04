//! Checkpoints of several runs in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use burnish_checkpoint::{
    Checkpoint, CheckpointError, CheckpointWriter, SetAside, TrainerState, latest, rotate, set_aside,
};

fn save_of(run: &str, dir: &Path, step: u64) -> PathBuf {
    let mut writer = CheckpointWriter::new(dir, step).unwrap();
    writer.run(run);
    writer.trainer_state(&TrainerState { global_step: step, ..Default::default() }).unwrap();
    writer.commit().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn rotation_removes_what_its_own_run_wrote() {
    let dir = tempfile::tempdir().unwrap();
    for step in [20, 30] {
        save_of("old", dir.path(), step);
    }
    for step in 1..=3 {
        save_of("new", dir.path(), step);
        rotate(dir.path(), Some("new"), Some(1), None).unwrap();
    }
    assert_eq!(names(dir.path()), ["checkpoint-20", "checkpoint-3", "checkpoint-30"]);
    assert_eq!(Checkpoint::open(dir.path().join("checkpoint-3")).unwrap().run(), Some("new"));
}

#[test]
fn the_newest_of_several_runs_is_nobodys_guess() {
    let dir = tempfile::tempdir().unwrap();
    save_of("old", dir.path(), 9);
    assert_eq!(latest(dir.path()).unwrap().checkpoint.unwrap().step(), 9);
    save_of("new", dir.path(), 2);
    let error = latest(dir.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::SeveralRuns { .. }));
    let said = error.to_string();
    assert!(said.contains("2 runs (new: checkpoint-2; old: checkpoint-9)"), "{said}");
}

#[test]
fn a_new_run_sets_all_aside_and_one_that_goes_on_what_is_later_or_anothers() {
    let dir = tempfile::tempdir().unwrap();
    for step in [2, 4] {
        save_of("a", dir.path(), step);
    }
    let moved = set_aside(dir.path(), "b", None, &[]).unwrap().unwrap();
    let folder = dir.path().join("earlier-1");
    assert_eq!(
        moved,
        SetAside { folder: folder.clone(), names: vec!["checkpoint-2".into(), "checkpoint-4".into()] }
    );
    assert_eq!(Checkpoint::open(folder.join("checkpoint-4")).unwrap().step(), 4);
    assert_eq!(set_aside(dir.path(), "b", None, &[]).unwrap(), None);

    for (run, step) in [("b", 1), ("a", 2), ("b", 3), ("b", 5)] {
        save_of(run, dir.path(), step);
    }
    let moved = set_aside(dir.path(), "b", Some(3), &[]).unwrap().unwrap();
    assert_eq!(moved.names, ["checkpoint-2", "checkpoint-5"]);
    assert_eq!(names(dir.path()), ["checkpoint-1", "checkpoint-3", "earlier-1", "earlier-2"]);
}

#[test]
fn an_input_is_never_moved() {
    let dir = tempfile::tempdir().unwrap();
    let input = save_of("a", dir.path(), 2);
    let error = set_aside(dir.path(), "b", None, &[&input]).unwrap_err();
    assert!(matches!(error, CheckpointError::InputWouldMove { .. }), "{error}");
    assert!(input.is_dir());
}
