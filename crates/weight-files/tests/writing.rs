use std::fs;
use std::path::Path;

use burnish_core::Dtype;
use burnish_weight_files::{
    FolderWriter, WeightFileError, WeightFolder, clean_unfinished, is_unfinished, remove_folder, write_atomic,
};
use serde_json::json;

use crate::ramp;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_new_folder_is_invisible_until_committed() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("deep/er/out");
    let mut writer = FolderWriter::new_folder(&target).unwrap();
    writer.file("state/a.txt", b"a").unwrap();
    writer.json("b.json", &json!({"z": 1, "a": {"y": [1.5, null], "b": "ü"}})).unwrap();
    assert!(!target.exists());
    writer.commit().unwrap();
    assert_eq!(names(&root.path().join("deep/er")), ["out"]);
    assert_eq!(names(&target), ["b.json", "state"]);
    let text = fs::read_to_string(target.join("b.json")).unwrap();
    assert_eq!(
        text,
        "{\n  \"a\": {\n    \"b\": \"ü\",\n    \"y\": [\n      1.5,\n      null\n    ]\n  },\n  \"z\": 1\n}\n"
    );
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new_folder(root.path().join("out")).unwrap();
    writer.file("a", b"a").unwrap();
    drop(writer);
    assert_eq!(names(root.path()), [""; 0]);
    fs::write(root.path().join("keep"), b"k").unwrap();
    let mut writer = FolderWriter::in_place(root.path()).unwrap();
    writer.file("keep", b"changed").unwrap();
    drop(writer);
    assert_eq!(names(root.path()), ["keep"]);
    assert_eq!(fs::read(root.path().join("keep")).unwrap(), b"k");
}

#[test]
fn existing_folders_are_refused_replaced_or_filled() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("out");
    fs::create_dir(&target).unwrap();
    FolderWriter::new_folder(&target).unwrap().commit().unwrap();
    fs::write(target.join("old"), b"old").unwrap();
    let refused = FolderWriter::new_folder(&target).unwrap_err();
    assert!(
        refused.to_string().ends_with("already exists and is not empty; remove it or choose another name")
    );

    let mut writer = FolderWriter::in_place(&target).unwrap();
    writer.file("new", b"new").unwrap();
    writer.commit().unwrap();
    assert_eq!(names(&target), ["new", "old"]);

    let mut writer = FolderWriter::replacing(&target).unwrap();
    writer.file("only", b"only").unwrap();
    writer.commit().unwrap();
    assert_eq!(names(&target), ["only"]);
    assert_eq!(names(root.path()), ["out"]);
}

#[test]
fn shards_have_an_index_and_older_sets_go() {
    let root = tempfile::tempdir().unwrap();
    let t = ramp(Dtype::F32, &[10]);
    let tensors = ["c", "a", "b"].map(|n| (n.to_owned(), t.view()));
    let write = |max: u64| {
        let mut writer = FolderWriter::in_place(root.path()).unwrap().max_shard_size(max);
        writer.tensors("model", &tensors).unwrap();
        writer.commit().unwrap();
        assert_eq!(WeightFolder::open(root.path()).unwrap().read("c").unwrap(), t);
        names(root.path())
    };
    fs::write(root.path().join("model-card.md"), b"").unwrap();
    assert_eq!(
        write(80),
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model-card.md",
            "model.safetensors.index.json"
        ]
    );
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(root.path().join("model.safetensors.index.json")).unwrap()).unwrap();
    assert_eq!(
        index,
        json!({"metadata": {"total_parameters": 30, "total_size": 120}, "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00001-of-00002.safetensors",
            "c": "model-00002-of-00002.safetensors"}})
    );
    assert_eq!(write(1000), ["model-card.md", "model.safetensors"]);
    assert_eq!(write(1).len(), 5);
}

#[test]
fn the_order_given_does_not_matter() {
    let root = tempfile::tempdir().unwrap();
    let (x, y) = (ramp(Dtype::F32, &[3]), ramp(Dtype::Bf16, &[5]));
    let bytes = |tensors: &[(String, burnish_weight_files::TensorView<'_>)]| {
        let mut writer = FolderWriter::in_place(root.path()).unwrap();
        writer.tensors("model", tensors).unwrap();
        writer.commit().unwrap();
        fs::read(root.path().join("model.safetensors")).unwrap()
    };
    let a = bytes(&[("x".into(), x.view()), ("y".into(), y.view()), ("z".into(), x.view())]);
    let b = bytes(&[("z".into(), x.view()), ("y".into(), y.view()), ("x".into(), x.view())]);
    assert_eq!(a, b);
}

#[test]
fn bad_names_and_duplicates() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new_folder(root.path().join("out")).unwrap();
    for name in ["../escape", "/etc/x", "", "a/../b", "."] {
        assert!(matches!(writer.file(name, b""), Err(WeightFileError::BadFileName { .. })), "{name}");
    }
    writer.file("a", b"").unwrap();
    assert!(writer.file("a", b"").unwrap_err().to_string().contains("`a` would be written twice"));
    let t = ramp(Dtype::F32, &[1]);
    let twice = writer.tensors("model", &[("w".into(), t.view()), ("w".into(), t.view())]).unwrap_err();
    assert!(twice.to_string().contains("`w` would be written twice"));
    let spec = burnish_weight_files::TensorSpec::new("w", Dtype::F32, &[2]);
    let short: Result<(), WeightFileError> =
        writer.tensors_from("short", &[spec], |_| Ok(vec![0_u8; 4].into()));
    assert!(short.unwrap_err().to_string().contains("takes 8 bytes, got 4"));
}

#[test]
fn leftovers_of_dead_processes_are_cleaned() {
    let root = tempfile::tempdir().unwrap();
    // Process numbers end below 2^22 on Linux: this one is not running.
    let dead = 4_194_999;
    let live = std::process::id();
    for name in
        [format!("a.partial-{dead}"), format!("b.replaced-{dead}"), format!("c.replaced-{dead}"), "c".into()]
    {
        fs::create_dir(root.path().join(&name)).unwrap();
        fs::write(root.path().join(&name).join("f"), &name).unwrap();
    }
    fs::write(root.path().join(format!("d.json.partial-{dead}")), b"").unwrap();
    fs::create_dir(root.path().join("my.partial-notes")).unwrap();
    fs::create_dir(root.path().join("e.partial-1")).unwrap();
    // Older than process 1: its number was another process's then.
    fs::create_dir(root.path().join("f.partial-1")).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
    fs::File::open(root.path().join("f.partial-1")).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(clean_unfinished(root.path()).unwrap().len(), 5);
    // Process 1 runs, so its work stays; b's replacement was cut off, so the old b is back.
    assert_eq!(names(root.path()), ["b", "c", "e.partial-1", "my.partial-notes"]);
    assert_eq!(fs::read(root.path().join("c/f")).unwrap(), b"c");
    assert!(is_unfinished("checkpoint-5.partial-77") && !is_unfinished("my.partial-notes"));

    fs::create_dir(root.path().join(format!("out.partial-{live}"))).unwrap();
    fs::write(root.path().join(format!("out.partial-{live}/stale")), b"").unwrap();
    FolderWriter::new_folder(root.path().join("out")).unwrap().commit().unwrap();
    assert_eq!(names(&root.path().join("out")), [""; 0]);
}

#[test]
fn removing_takes_the_name_first() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new_folder(root.path().join("out")).unwrap();
    writer.file("a", b"a").unwrap();
    assert_eq!(
        writer.written().map(|(n, p)| (n.to_owned(), p.exists())).collect::<Vec<_>>(),
        [("a".into(), true)]
    );
    writer.commit().unwrap();
    remove_folder(root.path().join("out")).unwrap();
    assert_eq!(names(root.path()), [""; 0]);
    assert!(remove_folder(root.path().join("out")).is_err());
}

#[test]
fn atomic_files() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("sub/metrics.json");
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(names(&root.path().join("sub")), ["metrics.json"]);
}

#[test]
fn a_file_where_a_folder_is_needed() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, b"").unwrap();
    for target in [file.clone(), file.join("out")] {
        for error in
            [FolderWriter::new_folder(&target).unwrap_err(), FolderWriter::in_place(&target).unwrap_err()]
        {
            assert!(error.to_string().contains("is not a directory"), "{error}");
        }
    }
    assert!(write_atomic(file.join("x"), b"").unwrap_err().to_string().contains("is not a directory"));
}
