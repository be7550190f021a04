//! Saving while the run goes on.

use std::sync::mpsc;
use std::time::Duration;

use burnish_checkpoint::{CheckpointError, CheckpointWriter, Saving, TrainerState, Written, latest};

use crate::tensor;

fn written(dir: &std::path::Path, step: u64) -> Result<Written, CheckpointError> {
    let mut writer = CheckpointWriter::new(dir, step)?;
    writer.tensor("w", "m", tensor(step, 64).view())?;
    writer.trainer_state(&TrainerState { global_step: step, ..Default::default() })?;
    writer.finish()
}

#[test]
fn a_save_in_flight_holds_the_next_one_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_path_buf();
    let mut saving: Saving<Written> = Saving::idle();
    assert!(saving.is_done() && saving.poll().is_none() && saving.join().is_none());
    let (release, wait) = mpsc::channel();
    let path = folder.clone();
    saving
        .start(1, move || {
            wait.recv().unwrap();
            written(&path, 1)
        })
        .unwrap();
    assert_eq!((saving.step(), saving.is_done()), (Some(1), false));
    assert!(saving.poll().is_none());
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        release.send(()).unwrap();
    });
    // Waits; the first is then on the disk, and committed before the second begins.
    saving.join().unwrap().unwrap().commit().unwrap();
    saving.start(2, move || written(&folder, 2)).unwrap();
    assert_eq!(latest(dir.path()).unwrap().checkpoint.unwrap().step(), 1);
    saving.join().unwrap().unwrap().commit().unwrap();
    assert_eq!(latest(dir.path()).unwrap().checkpoint.unwrap().step(), 2);
}

#[test]
fn failures_surface_at_the_next_poll() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_path_buf();
    let mut saving: Saving<Written> = Saving::idle();
    saving.start(3, || Err(CheckpointError::NoTrainerState { step: 3 })).unwrap();
    while !saving.is_done() {
        std::thread::yield_now();
    }
    assert!(matches!(saving.poll(), Some(Err(CheckpointError::NoTrainerState { step: 3 }))));
    assert!(saving.poll().is_none(), "each result is given once");

    saving.start(4, || panic!("the disk is on fire")).unwrap();
    let error = saving.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("saving step 4 in the background panicked: the disk is on fire"), "{error}");

    // A failure that nobody took is the next start's.
    saving.start(5, || Err(CheckpointError::NoTrainerState { step: 5 })).unwrap();
    let path = folder.clone();
    let error = saving.start(6, move || written(&path, 6)).unwrap_err();
    assert!(matches!(error, CheckpointError::NoTrainerState { step: 5 }), "{error}");

    // What is never committed is gone; dropping waits for the thread.
    saving.start(7, move || written(&folder, 7)).unwrap();
    drop(saving);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
