//! `metrics.jsonl` and event files over the life of a run.

use burnish_report::{EventFile, MetricsLog, Record, ReportError, replace};
use tempfile::TempDir;

fn record(step: u64) -> Record {
    Record::new(step, 0.5).with("loss", 1.0 / step as f64)
}

#[test]
fn a_resumed_log_forgets_the_steps_that_come_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut log = MetricsLog::create(&path).unwrap();
    for step in [10, 20, 30, 40] {
        log.append(&record(step)).unwrap();
    }
    drop(log);
    let mut log = MetricsLog::resume(&path, 20).unwrap();
    log.append(&record(30).with("again", 1u64)).unwrap();
    let records = MetricsLog::read(&path).unwrap();
    assert_eq!(records.iter().map(|record| record.step).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(records[2].get("again"), Some(1.0));
}

#[test]
fn a_line_that_was_cut_off_is_dropped() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("metrics.jsonl");
    for torn in ["{\"step\":20,\"lo", "{\"step\":20}", "garbage"] {
        std::fs::write(&path, format!("{}\n{torn}", record(10).to_json())).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap().len(), 1, "{torn}");
        let mut log = MetricsLog::resume(&path, 100).unwrap();
        log.append(&record(20)).unwrap();
        assert_eq!(MetricsLog::read(&path).unwrap().len(), 2, "{torn}");
    }
}

#[test]
fn a_foreign_line_is_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, "{\"step\":1}\nhello\n{\"step\":2}\n").unwrap();
    let error = MetricsLog::resume(&path, 5).unwrap_err();
    assert!(matches!(error, ReportError::Line { line: 2, .. }), "{error}");
    assert!(error.to_string().contains("line 2") && error.to_string().contains("hello"), "{error}");
}

#[test]
fn a_log_that_is_not_there_is_begun() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("metrics.jsonl");
    MetricsLog::resume(&path, 5).unwrap().append(&record(6)).unwrap();
    assert_eq!(MetricsLog::read(&path).unwrap().len(), 1);
}

#[test]
fn errors_name_the_file() {
    let folder = TempDir::new().unwrap();
    let nowhere = folder.path().join("missing/metrics.jsonl");
    let error = MetricsLog::create(&nowhere).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("missing/metrics.jsonl"), "{error}");
    // A file where the folder should be.
    let file = folder.path().join("runs");
    std::fs::write(&file, "").unwrap();
    assert!(EventFile::create(&file, 0).unwrap_err().to_string().contains("runs"));
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("loss.svg");
    replace(&path, b"one").unwrap();
    replace(&path, b"two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    // The name is taken by a folder: the rename fails, and the error says so.
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    assert!(replace(&taken, b"x").unwrap_err().to_string().contains("taken"));
}

#[test]
fn event_files_are_whole_records() {
    let folder = TempDir::new().unwrap();
    let runs = folder.path().join("runs/now");
    let mut events = EventFile::create(&runs, 0).unwrap();
    events.append(&record(1)).unwrap();
    let path = events.path().to_owned();
    // A second file within the same second gets a name of its own.
    let second = EventFile::create(&runs, 1).unwrap();
    assert_ne!(second.path(), path);
    let bytes = std::fs::read(&path).unwrap();
    let mut rest = bytes.as_slice();
    let mut records = 0;
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        rest = &rest[8 + 4 + length + 4..];
        records += 1;
    }
    assert_eq!(records, 2, "the version and one step");
}
