use std::fs;
use std::path::Path;

use burnish_checkpoint::{
    Checkpoint, CheckpointError, CheckpointWriter, Damage, TrainerState, latest, resume, rotate,
};

use crate::{save, tensor};

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn files(checkpoint: &Path) -> Vec<String> {
    let c = Checkpoint::open(checkpoint).unwrap();
    c.files().map(str::to_owned).chain(["state/index.json".into()]).collect()
}

/// Each kind of damage to each file: named, the older checkpoint suggested, and `latest` falls back to it.
#[test]
fn every_file_missing_cut_or_changed() {
    let dir = tempfile::tempdir().unwrap();
    let old = save(dir.path(), 1);
    let names = files(&save(dir.path(), 2));
    assert_eq!(names.len(), 4);
    for name in &names {
        for kind in ["missing", "cut", "changed"] {
            let new = save(dir.path(), 2);
            let file = new.join(name);
            match kind {
                "missing" => fs::remove_file(&file).unwrap(),
                "cut" => {
                    let bytes = fs::read(&file).unwrap();
                    fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
                }
                _ => {
                    let middle = fs::read(&file).unwrap().len() / 2;
                    flip(&file, middle);
                }
            }
            let error = Checkpoint::open(&new).and_then(|c| c.verify()).unwrap_err();
            let CheckpointError::Damaged { path, damage, previous } = &error else { panic!("{error}") };
            assert_eq!((path, previous.as_deref()), (&new, Some(old.as_path())), "{name} {kind}");
            let fits = match kind {
                "missing" => matches!(&**damage, Damage::Missing { file } if file == name),
                "cut" => {
                    matches!(&**damage, Damage::Size { file, .. } | Damage::Corrupt { file, .. } if file == name)
                }
                _ => {
                    matches!(&**damage, Damage::Checksum { file, .. } | Damage::Corrupt { file, .. } if file == name)
                }
            };
            assert!(fits, "{name} {kind}: {error}");
            let text = error.to_string();
            let suggestion = format!("the newest complete checkpoint beside it is `{}`", old.display());
            assert!(text.contains(name) && text.contains(&suggestion), "{text}");

            let found = latest(dir.path()).unwrap();
            assert_eq!(found.checkpoint.unwrap().step(), 1);
            assert_eq!(found.skipped.len(), 1);
            assert!(found.skipped[0].1.to_string().contains(&suggestion));
        }
    }
}

#[test]
fn a_changed_block_is_seen_when_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    // 2 MiB and 16 KiB: in leaves of their own.
    let (long, short) = (tensor(1, 1 << 19), tensor(2, 1 << 12));
    let mut writer = CheckpointWriter::new(dir.path(), 1).unwrap();
    writer.tensor("a.weight", "exp_avg", long.view()).unwrap();
    writer.tensor("b.weight", "exp_avg", short.view()).unwrap();
    writer.trainer_state(&TrainerState { global_step: 1, ..Default::default() }).unwrap();
    let path = writer.commit().unwrap();
    let file = path.join("state/data-00000-00000.safetensors");
    let last = fs::read(&file).unwrap().len() - 1;
    flip(&file, last);
    // The length is right, so it opens; one tensor is intact, the other is not.
    let c = Checkpoint::open(&path).unwrap();
    assert_eq!(c.read_range("a.weight", "exp_avg", 0..100_000).unwrap().to_f32(), long.to_f32()[..400_000]);
    let error = c.read("b.weight", "exp_avg").unwrap_err().to_string();
    assert!(error.contains("the checksum of bytes 2097152.."), "{error}");
    assert!(error.contains("in `state/data-00000-00000.safetensors` is"), "{error}");
    assert!(error.contains("no other complete checkpoint is beside it"), "{error}");
    fs::remove_dir_all(&path).unwrap();

    let path = save(dir.path(), 1);
    let text = fs::read_to_string(path.join("trainer_state.json")).unwrap();
    fs::write(path.join("trainer_state.json"), text.replace("500", "501")).unwrap();
    let state = Checkpoint::open(&path).unwrap().trainer_state().unwrap_err().to_string();
    assert!(state.contains("the checksum of bytes 0..550 in `trainer_state.json`"), "{state}");
}

#[test]
fn another_format_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 1);
    let file = path.join("state/index.json");
    let mut sealed: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    sealed["index"]["version"] = 3.into();
    sealed["index"]["entries"] = "of another form".into();
    sealed["blake3"] = blake3::hash(sealed["index"].to_string().as_bytes()).to_hex().to_string().into();
    fs::write(&file, sealed.to_string()).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("its state has format 3, this burnish reads up to 2"), "{error}");
}

#[test]
fn checkpoints_of_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    let ours = save(dir.path(), 1);
    let theirs = dir.path().join("checkpoint-2");
    fs::create_dir(&theirs).unwrap();
    for name in ["optimizer.pt", "trainer_state.json", "model.safetensors"] {
        fs::write(theirs.join(name), b"").unwrap();
    }
    let error = Checkpoint::open(&theirs).unwrap_err().to_string();
    assert!(error.contains("another program wrote it (it has `optimizer.pt`)"), "{error}");
    let found = latest(dir.path()).unwrap();
    assert_eq!((found.checkpoint.unwrap().path(), found.skipped.len()), (ours.as_path(), 1));
    rotate(dir.path(), None, Some(1), None).unwrap();
    assert!(theirs.exists() && ours.exists());
}

#[test]
fn nothing_to_resume() {
    let dir = tempfile::tempdir().unwrap();
    let none = resume(dir.path()).unwrap_err().to_string();
    assert!(none.contains("no complete checkpoint in"), "{none}");
    let path = save(dir.path(), 1);
    fs::remove_file(path.join("trainer_state.json")).unwrap();
    let torn = resume(dir.path()).unwrap_err().to_string();
    assert!(torn.contains("skipped:") && torn.contains("`trainer_state.json` is missing"), "{torn}");
    save(dir.path(), 2);
    let (found, skipped) = resume(dir.path()).unwrap();
    assert_eq!((found.step(), skipped.len()), (2, 0));
    assert!(latest(dir.path().join("gone")).unwrap().checkpoint.is_none());
}

#[test]
fn the_newest_is_by_number_not_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for step in [2, 10, 9] {
        save(dir.path(), step);
    }
    fs::create_dir(dir.path().join("checkpoint-best")).unwrap();
    fs::create_dir(dir.path().join("checkpoint-99.partial-4194999")).unwrap();
    assert_eq!(latest(dir.path()).unwrap().checkpoint.unwrap().step(), 10);
    assert!(!dir.path().join("checkpoint-99.partial-4194999").exists());
}

#[test]
fn rotation_keeps_the_newest_and_the_best() {
    let left = |limit: Option<usize>, best: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        for step in [3, 7, 20, 100] {
            save(dir.path(), step);
        }
        // A Transformers checkpoint is not ours to remove.
        fs::create_dir(dir.path().join("checkpoint-1")).unwrap();
        let best = best.map(|b| Path::new("elsewhere").join(format!("checkpoint-{b}")));
        rotate(dir.path(), None, limit, best.as_deref()).unwrap();
        let mut steps: Vec<u64> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| {
                e.unwrap().file_name().to_str().unwrap().strip_prefix("checkpoint-").unwrap().parse().unwrap()
            })
            .collect();
        steps.sort_unstable();
        assert_eq!(steps.remove(0), 1);
        steps
    };
    assert_eq!(left(None, None), [3, 7, 20, 100]);
    assert_eq!(left(Some(0), None), [3, 7, 20, 100]);
    assert_eq!(left(Some(2), None), [20, 100]);
    assert_eq!(left(Some(1), None), [100]);
    assert_eq!(left(Some(1), Some(7)), [7, 100]);
    assert_eq!(left(Some(2), Some(7)), [7, 100]);
    assert_eq!(left(Some(3), Some(3)), [3, 20, 100]);
    assert_eq!(left(Some(9), Some(3)), [3, 7, 20, 100]);
}

#[test]
fn saving_a_step_again_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 4);
    fs::write(path.join("extra"), b"of the first save").unwrap();
    save(dir.path(), 4);
    assert!(!path.join("extra").exists());
    assert_eq!(Checkpoint::open(&path).unwrap().read("a.weight", "exp_avg").unwrap(), tensor(4, 64));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
