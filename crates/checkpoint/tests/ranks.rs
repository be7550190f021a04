//! Several ranks write one checkpoint: all of it appears, or none.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burnish_checkpoint::{
    Attempt, Checkpoint, CheckpointError, CheckpointWriter, Share, TrainerState, Written, latest,
};
use burnish_core::Dtype;
use burnish_weight_files::{
    Disk, Filesystem, FullDisk, HostTensor, TensorSpec, WeightFileError, clean_unfinished,
};

use crate::{save, tensor};

/// Rows of a tensor.
pub(crate) fn piece(whole: &HostTensor, rows: &Range<usize>) -> HostTensor {
    let row = whole.shape.iter().skip(1).product::<usize>() * whole.dtype.bytes();
    let mut shape = whole.shape.clone();
    match shape.first_mut() {
        Some(first) => *first = rows.len(),
        None if rows.is_empty() => shape.push(0),
        None => {}
    }
    HostTensor::new(whole.dtype, &shape, whole.bytes[rows.start * row..rows.end * row].to_vec()).unwrap()
}

fn state(step: u64) -> TrainerState {
    TrainerState { global_step: step, ..Default::default() }
}

/// Writers of all ranks, the lead's first.
fn writers(dir: &Path, step: u64, ranks: usize) -> Vec<CheckpointWriter> {
    let attempt = Attempt::fresh();
    (0..ranks)
        .map(|rank| CheckpointWriter::shared(dir, step, Share { attempt, rank, ranks }).unwrap())
        .collect()
}

/// One rank's part: its third of each tensor, of the model too.
fn write(mut writer: CheckpointWriter, step: u64, rows: Range<usize>) -> Result<Written, CheckpointError> {
    let whole = tensor(step, 48);
    writer.slots(serde_json::json!({"m": "float32"}));
    writer.rows("w", "m", &[12, 4], rows.clone(), piece(&whole, &rows).view())?;
    let specs = [TensorSpec::new("w", Dtype::F32, &[12, 4])];
    writer.folder().tensor_rows::<WeightFileError>(
        "model",
        &specs,
        |_| rows.clone(),
        |_, rows| Ok(piece(&whole, &rows).bytes.into()),
    )?;
    writer.file("config.json", b"{}")?;
    writer.trainer_state(&state(step))?;
    writer.finish()
}

const THIRDS: [Range<usize>; 3] = [0..5, 5..5, 5..12];

fn save_by_three(dir: &Path, step: u64) -> PathBuf {
    let writers = writers(dir, step, 3);
    let written: Vec<Written> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            writers.into_iter().zip(THIRDS).map(|(w, r)| scope.spawn(move || write(w, step, r))).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    });
    let paths: Vec<PathBuf> = written.into_iter().map(|w| w.commit().unwrap()).collect();
    assert!(paths.iter().all(|p| *p == paths[0]));
    paths[0].clone()
}

fn only(dir: &Path, name: &str) {
    let names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [name]);
}

#[test]
fn three_ranks_and_one_leave_the_same() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let three = save_by_three(a.path(), 7);
    let one = write(CheckpointWriter::new(b.path(), 7).unwrap(), 7, 0..12).unwrap().commit().unwrap();
    only(a.path(), "checkpoint-7");
    for file in ["model.safetensors", "config.json", "trainer_state.json"] {
        assert_eq!(fs::read(three.join(file)).unwrap(), fs::read(one.join(file)).unwrap(), "{file}");
    }
    let (three, one) = (Checkpoint::open(three).unwrap(), Checkpoint::open(one).unwrap());
    three.verify().unwrap();
    one.verify().unwrap();
    assert_eq!(three.read("w", "m").unwrap(), one.read("w", "m").unwrap());
    assert_eq!(three.slots(), one.slots());
    let files = |c: &Checkpoint| c.files().filter(|f| f.starts_with("state/")).count();
    // The rank without rows has no file.
    assert_eq!((files(&three), files(&one)), (2, 1));
    assert!(
        fs::read_dir(three.path()).unwrap().all(|e| !e
            .unwrap()
            .file_name()
            .as_encoded_bytes()
            .starts_with(b"."))
    );
}

/// Whatever goes wrong on whichever rank: an error that says so, and what was there before.
#[test]
fn a_rank_that_fails_leaves_the_old_checkpoint() {
    type Attack = fn(&Path, Vec<CheckpointWriter>) -> CheckpointError;
    let attacks: [(&str, Attack); 7] = [
        ("rank 1 of 3 did not finish writing", |_, mut w| {
            let last = write(w.remove(2), 7, 5..12).unwrap();
            let lead = write(w.remove(0), 7, 0..5).unwrap();
            last.commit().unwrap();
            lead.commit().unwrap_err()
        }),
        ("rank 2 of 3 did not finish writing", |dir, mut w| {
            // Its disk is full.
            let attempt = Attempt::from_words(w[0].folder().share().attempt.to_words());
            let full: Arc<dyn Filesystem> = Arc::new(FullDisk::with_room_for(100));
            let share = Share { attempt, rank: 2, ranks: 3 };
            let poor = CheckpointWriter::shared_on(full, dir, 7, share).unwrap();
            let error = write(poor, 7, 5..12).unwrap_err();
            assert!(matches!(error, CheckpointError::Store(WeightFileError::DiskFull { .. })), "{error}");
            drop(w.pop());
            drop(write(w.pop().unwrap(), 7, 5..5).unwrap());
            write(w.pop().unwrap(), 7, 0..5).unwrap().commit().unwrap_err()
        }),
        ("its part of the index cannot be parsed", |dir, mut w| {
            drop(write(w.remove(2), 7, 5..12).unwrap());
            drop(write(w.remove(1), 7, 5..5).unwrap());
            let folder = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
            let folder = { folder }.find(|p| p.display().to_string().contains(".partial-")).unwrap();
            let part = folder.join(".part-00001.json");
            let text = fs::read(&part).unwrap();
            fs::write(&part, &text[..text.len() / 2]).unwrap();
            write(w.remove(0), 7, 0..5).unwrap().commit().unwrap_err()
        }),
        (
            "`m` of `w` was given in pieces that do not make up its shape [12, 4]: rows never given at row 5",
            |_, mut w| {
                let mut last = w.remove(2);
                let whole = tensor(7, 48);
                last.rows("w", "m", &[12, 4], 6..12, piece(&whole, &(6..12)).view()).unwrap();
                // The model is whole, the state is not.
                let specs = [TensorSpec::new("w", Dtype::F32, &[12, 4])];
                let rest = piece(&whole, &(5..12)).bytes;
                last.folder()
                    .tensor_rows::<WeightFileError>(
                        "model",
                        &specs,
                        |_| 5..12,
                        |_, _| Ok(rest.clone().into()),
                    )
                    .unwrap();
                drop(last.finish().unwrap());
                drop(write(w.remove(1), 7, 5..5).unwrap());
                write(w.remove(0), 7, 0..5).unwrap().commit().unwrap_err()
            },
        ),
        ("(of `w`) was written by two ranks; nothing was replaced", |_, mut w| {
            drop(write(w.remove(2), 7, 4..12).unwrap());
            drop(write(w.remove(1), 7, 5..5).unwrap());
            write(w.remove(0), 7, 0..5).unwrap().commit().unwrap_err()
        }),
        ("another dtype or shape on another rank", |_, mut w| {
            let mut last = w.remove(2);
            last.rows("w", "m", &[12, 3], 0..0, HostTensor::zeros(Dtype::F32, &[0, 3]).view()).unwrap();
            drop(last.finish().unwrap());
            drop(write(w.remove(1), 7, 5..12).unwrap());
            write(w.remove(0), 7, 0..5).unwrap().commit().unwrap_err()
        }),
        ("the unfinished folder of", |_, mut w| {
            // The lead gives up; the others learn it when they write, and leave nothing behind.
            drop(w.remove(0));
            write(w.remove(0), 7, 5..5).and_then(|_| write(w.remove(0), 7, 5..12)).unwrap_err()
        }),
    ];
    for (words, attack) in attacks {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 7);
        let error = attack(dir.path(), writers(dir.path(), 7, 3)).to_string();
        assert!(error.contains(words), "{words}: {error}");
        only(dir.path(), "checkpoint-7");
        let kept = latest(dir.path()).unwrap().checkpoint.unwrap();
        assert_eq!(kept.read("a.weight", "exp_avg").unwrap(), tensor(7, 64), "{words}");
    }
}

#[test]
fn ranks_of_another_step_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let attempt = Attempt::fresh();
    let lead = CheckpointWriter::shared(dir.path(), 7, Share { attempt, rank: 0, ranks: 2 }).unwrap();
    let other = CheckpointWriter::shared(dir.path(), 8, Share { attempt, rank: 1, ranks: 2 }).unwrap_err();
    assert!(matches!(other, CheckpointError::Store(WeightFileError::Abandoned { .. })), "{other}");
    // A rank that thinks that there are more of them.
    let other = CheckpointWriter::shared(dir.path(), 7, Share { attempt, rank: 1, ranks: 3 }).unwrap();
    drop(write(other, 7, 5..12).unwrap());
    let error = write(lead, 7, 0..5).unwrap().commit().unwrap_err().to_string();
    assert!(error.contains("it says that it is rank 1 of 3"), "{error}");
}

/// Two runs in one folder: the second to commit the same step hears of the first, whose checkpoint stays.
#[test]
fn runs_in_one_folder_do_not_destroy_each_other_silently() {
    let dir = tempfile::tempdir().unwrap();
    for replaces in [false, true] {
        if replaces {
            save(dir.path(), 7);
        }
        let (mut first, mut second) = (writers(dir.path(), 7, 1), writers(dir.path(), 7, 1));
        // Each one's leftovers are looked for while both write.
        clean_unfinished(dir.path()).unwrap();
        assert!(latest(dir.path()).unwrap().skipped.is_empty());
        let first = write(first.remove(0), 7, 0..12).unwrap();
        let second = write(second.remove(0), 7, 0..12).unwrap();
        let path = first.commit().unwrap();
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        let error = second.commit().unwrap_err();
        assert!(matches!(error, CheckpointError::Store(WeightFileError::Overtaken { .. })), "{error}");
        assert!(error.to_string().contains("give each run its own output folder"));
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        only(dir.path(), "checkpoint-7");
        Checkpoint::open(&path).unwrap().verify().unwrap();
    }
    // One after the other is no conflict.
    save(dir.path(), 7);
    let disk: Arc<dyn Filesystem> = Arc::new(Disk);
    let again = CheckpointWriter::new_on(disk, dir.path(), 7).unwrap();
    write(again, 7, 0..12).unwrap().commit().unwrap();
}

#[test]
fn a_member_needs_the_leads_folder() {
    let dir = tempfile::tempdir().unwrap();
    let share = Share { attempt: Attempt::fresh(), rank: 1, ranks: 2 };
    let error = CheckpointWriter::shared(dir.path(), 1, share).unwrap_err().to_string();
    assert!(error.contains("is gone: the lead rank gave up"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
