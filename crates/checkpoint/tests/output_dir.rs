use std::fs;
use std::process::Command;

use burnish_checkpoint::{CheckpointError, prepare_output_dir};

use crate::save;

#[test]
fn empty_new_and_own_folders_are_fine() {
    let dir = tempfile::tempdir().unwrap();
    prepare_output_dir(dir.path(), false, &[], &[]).unwrap();
    prepare_output_dir(dir.path().join("a/b"), false, &[], &[]).unwrap();
    let own = dir.path().join("own");
    save(&own, 3);
    for name in
        ["adapter_config.json", "adapter_model.safetensors", "metrics.jsonl", "README.md", ".gitattributes"]
    {
        fs::write(own.join(name), b"").unwrap();
    }
    fs::create_dir(own.join("runs")).unwrap();
    fs::create_dir(own.join("my_adapter")).unwrap();
    fs::write(own.join("my_adapter/adapter_config.json"), b"{}").unwrap();
    fs::create_dir(own.join("checkpoint-9.partial-4194999")).unwrap();
    let before = fs::read_dir(&own).unwrap().count();
    prepare_output_dir(&own, false, &[], &[]).unwrap();
    assert_eq!(fs::read_dir(&own).unwrap().count(), before - 1, "only the leftover is gone");
}

#[test]
fn foreign_folders_are_refused_unless_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), b"").unwrap();
    fs::write(dir.path().join("README.md"), b"").unwrap();
    let error = prepare_output_dir(dir.path(), false, &[], &[]).unwrap_err();
    assert!(matches!(&error, CheckpointError::Foreign { files, .. } if files == &["thesis.tex"]), "{error}");
    assert!(
        error.to_string().contains("(thesis.tex); choose an empty folder, or pass --overwrite_output_dir")
    );
    prepare_output_dir(dir.path(), true, &[], &[]).unwrap();
    prepare_output_dir(dir.path(), false, &[], &["thesis.tex"]).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn inputs_are_never_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), b"{}").unwrap();
    let roundabout = dir.path().join("model/../model");
    let error = prepare_output_dir(&roundabout, true, &[&model], &[]).unwrap_err().to_string();
    assert!(error.contains("is also the input"), "{error}");
    prepare_output_dir(dir.path().join("out"), false, &[&model], &[]).unwrap();
}

#[test]
fn files_and_unwritable_places() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for path in [file.clone(), file.join("inside")] {
        let error = prepare_output_dir(&path, false, &[], &[]).unwrap_err().to_string();
        assert!(error.contains("is not a directory; choose another output folder"), "{error}");
    }
    // Root may write anywhere but on a read-only mount; everyone else is stopped by permissions.
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(&locked).output();
    let mounted = mounted.is_ok_and(|o| o.status.success());
    if !mounted {
        let mut permissions = fs::metadata(&locked).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&locked, permissions).unwrap();
    }
    let result = prepare_output_dir(&locked, false, &[], &[]);
    if mounted {
        assert!(Command::new("umount").arg(&locked).status().unwrap().success());
    } else if fs::write(locked.join("probe"), b"").is_ok() {
        println!("permissions do not bind this user and mounts are not allowed: nothing here is unwritable");
        result.unwrap();
        return;
    }
    let error = result.unwrap_err().to_string();
    assert!(error.contains("cannot be written") && error.contains("choose another output folder"), "{error}");
}
