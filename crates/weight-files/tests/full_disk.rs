use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use burnish_core::Dtype;
use burnish_weight_files::{
    FolderWriter, FullDisk, WeightFileError, WeightFolder, write_atomic, write_atomic_on,
};

use crate::ramp;

#[test]
fn nothing_is_lost_at_any_room() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("out");
    let old = ramp(Dtype::F32, &[4]);
    let new = ramp(Dtype::F32, &[64]);
    let mut writer = FolderWriter::new_folder(&target).unwrap();
    writer.tensors("model", &[("w".into(), old.view())]).unwrap();
    writer.commit().unwrap();
    let mut fitted = false;
    for room in (0..600).step_by(7) {
        for in_place in [false, true] {
            let disk = Arc::new(FullDisk::with_room_for(room));
            let made = if in_place {
                FolderWriter::in_place_on(disk, &target)
            } else {
                FolderWriter::folder_on(disk, &target, true)
            };
            let mut writer = made.unwrap();
            match writer.tensors("model", &[("w".into(), new.view())]) {
                Ok(()) => fitted = true,
                Err(WeightFileError::DiskFull { path, bytes }) => {
                    assert_eq!(path, target.join("model.safetensors"));
                    assert!(bytes > 256 && bytes > room, "{bytes}");
                }
                Err(other) => panic!("{other}"),
            }
            drop(writer);
            assert_eq!(WeightFolder::open(&target).unwrap().read("w").unwrap(), old);
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
            assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        }
    }
    assert!(fitted, "the largest room must hold the file");

    let note = root.path().join("note");
    write_atomic(&note, b"old").unwrap();
    let full = write_atomic_on(&FullDisk::with_room_for(2), &note, b"newer").unwrap_err();
    assert_eq!(
        full.to_string(),
        format!(
            "no space left for `{}` (5 bytes); nothing was replaced: free space on that disk or choose another output folder",
            note.display()
        )
    );
    assert_eq!(fs::read(&note).unwrap(), b"old");
}

/// A real file system of 256 KiB, where the machine lets us mount one.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k,mode=777", "tmpfs"])
            .arg(dir.path())
            .output()
            .is_ok_and(|o| o.status.success());
        mounted.then(|| Self(dir))
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

fn overfill(folder: &Path) -> WeightFileError {
    let big = ramp(Dtype::F32, &[1 << 18]);
    let mut writer = FolderWriter::in_place(folder).unwrap();
    writer.tensors("model", &[("w".into(), big.view())]).unwrap_err()
}

#[test]
fn a_real_full_file_system() {
    let Some(tiny) = Tiny::mount() else {
        // The kernel's own full device gives the same error code without a mount.
        println!("no right to mount: checking the kernel's error through /dev/full");
        use std::io::Write as _;
        let error =
            fs::OpenOptions::new().write(true).open("/dev/full").unwrap().write_all(b"x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        return;
    };
    let dir = tiny.0.path();
    let old = ramp(Dtype::F32, &[4]);
    let mut writer = FolderWriter::in_place(dir).unwrap();
    writer.tensors("model", &[("w".into(), old.view())]).unwrap();
    writer.commit().unwrap();
    for _ in 0..3 {
        let error = overfill(dir);
        assert!(
            matches!(&error, WeightFileError::DiskFull { path, bytes } if path.ends_with("model.safetensors") && *bytes > 1 << 20),
            "{error}"
        );
        assert_eq!(WeightFolder::open(dir).unwrap().read("w").unwrap(), old);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    }
    // The space is free again: a small save still works.
    write_atomic(dir.join("note"), b"fits").unwrap();
}

/// Root may write anywhere, so the refusal is provoked by a read-only mount, or by permissions for everyone else.
#[test]
fn unwritable_folders() {
    let Some(tiny) = Tiny::mount() else {
        let dir = tempfile::tempdir().unwrap();
        let locked = dir.path().join("locked");
        fs::create_dir(&locked).unwrap();
        let mut permissions = fs::metadata(&locked).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&locked, permissions).unwrap();
        if fs::write(locked.join("probe"), b"").is_ok() {
            println!("permissions do not bind this user and mounts are not allowed");
            let error = FolderWriter::new_folder("/proc/burnish").unwrap_err();
            assert!(!matches!(error, WeightFileError::TargetExists { .. }), "{error}");
            return;
        }
        return refuses(&locked);
    };
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(tiny.0.path()).status().unwrap();
    assert!(remounted.success());
    refuses(tiny.0.path());
}

fn refuses(folder: &Path) {
    for error in [
        FolderWriter::in_place(folder).unwrap_err(),
        FolderWriter::new_folder(folder.join("out")).unwrap_err(),
        write_atomic(folder.join("x"), b"").unwrap_err(),
    ] {
        assert!(error.to_string().contains("cannot be written"), "{error}");
        assert!(
            error.to_string().contains("change its permissions or choose another output folder"),
            "{error}"
        );
    }
}
