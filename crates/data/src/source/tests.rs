#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use super::*;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

fn texts(source: &Source) -> Vec<String> {
    source.records().map(|r| r.unwrap().fields["text"].as_str().unwrap().to_owned()).collect()
}

fn first_error(text: &str, name: &str) -> String {
    let dir = folder(&[(name, text)]);
    let source = Source::train(&path(&dir, name), "train").unwrap();
    source.records().find_map(Result::err).unwrap().to_string()
}

#[test]
fn lines_blank_lines_and_a_byte_order_mark() {
    let dir = folder(&[("a.jsonl", "\u{feff}{\"text\": \"one\"}\r\n\n  \n{\"text\": \"two\"}")]);
    let source = Source::train(&path(&dir, "a.jsonl"), "train").unwrap();
    assert_eq!(texts(&source), ["one", "two"]);
    assert_eq!(source.count().unwrap(), 2);
    let last = source.records().last().unwrap().unwrap();
    assert_eq!(last.place.line, 4);
}

#[test]
fn an_array_file_and_a_json_file_of_lines() {
    let dir = folder(&[
        ("a.json", "\n [{\"text\": \"one\"},\n {\"text\": \"two\"}]"),
        ("b.json", "{\"text\": \"three\"}\n"),
    ]);
    let source = Source::train(&path(&dir, ""), "train").unwrap();
    assert_eq!(texts(&source), ["one", "two", "three"]);
    assert_eq!(source.count().unwrap(), 3);
}

#[test]
fn splits_of_a_folder() {
    let dir = folder(&[
        ("train-0.jsonl", "{\"text\": \"a\"}\n"),
        ("train-1.jsonl", "{\"text\": \"b\"}\n"),
        ("test.jsonl", "{\"text\": \"t\"}\n"),
        ("training_notes.jsonl", "{\"text\": \"n\"}\n"),
        ("dataset_info.json", "{}"),
    ]);
    let name = path(&dir, "");
    assert_eq!(texts(&Source::train(&name, "train").unwrap()), ["a", "b"]);
    assert_eq!(texts(&Source::test(&name, "test").unwrap().unwrap()), ["t"]);
    assert!(Source::test(&name, "validation").unwrap().is_none());
}

#[test]
fn a_folder_without_split_names_is_all_training_rows_but_the_held_out() {
    let dir = folder(&[
        ("b.jsonl", "{\"text\": \"b\"}\n"),
        ("a.jsonl", "{\"text\": \"a\"}\n"),
        ("test.jsonl", "{}\n"),
    ]);
    assert_eq!(texts(&Source::train(&path(&dir, ""), "train").unwrap()), ["a", "b"]);
}

#[test]
fn a_glob() {
    let dir = folder(&[
        ("b1.jsonl", "{\"text\": \"1\"}\n"),
        ("b2.jsonl", "{\"text\": \"2\"}\n"),
        ("c.jsonl", "{}\n"),
    ]);
    let source = Source::train(&path(&dir, "b*.jsonl"), "train").unwrap();
    assert_eq!(texts(&source), ["1", "2"]);
    assert!(Source::test(&path(&dir, "b*.jsonl"), "test").unwrap().is_none());
    let e = Source::train(&path(&dir, "x*.jsonl"), "train").unwrap_err();
    assert!(matches!(e, DataError::EmptyGlob { .. }), "{e}");
}

#[test]
fn faults_name_the_file_and_the_line() {
    let e = first_error("{\"text\": \"a\"}\n{\"text\": \"b\"\n", "rows.jsonl");
    assert!(e.contains("rows.jsonl, line 2") && e.contains("not valid JSON"), "{e}");
    let e = first_error("{\"text\": \"a\"}\n[1]\n", "rows.jsonl");
    assert!(e.contains("line 2") && e.contains("got an array"), "{e}");
    let e = first_error("[{\"text\": \"a\"}, 3]", "rows.json");
    assert!(e.contains("element 2") && e.contains("got a number"), "{e}");
    let e = first_error("[{\"text\": \"a\"},\n", "rows.json");
    assert!(e.contains("rows.json, line") && e.contains("not valid JSON"), "{e}");
    let e = first_error("{\"text\": \"a\"} {\"text\": \"b\"}\n", "rows.jsonl");
    assert!(e.contains("line 1") && e.contains("trailing characters"), "{e}");
}

#[test]
fn bytes_that_are_not_utf8_are_an_error_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.jsonl"), b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n").unwrap();
    let e = Source::train(&path(&dir, "a.jsonl"), "train").unwrap().records().find_map(Result::err).unwrap();
    assert!(e.to_string().contains("line 2"), "{e}");
}

#[test]
fn missing_and_empty_and_foreign() {
    let dir = folder(&[("a.parquet", ""), ("b.jsonl.gz", ""), ("c.jsonl", "")]);
    fs::write(dir.path().join("d.jsonl"), [0x1f, 0x8b, 8, 0]).unwrap();
    let e = Source::train(&path(&dir, "no.jsonl"), "train").unwrap_err().to_string();
    assert!(e.contains("no.jsonl") && e.contains("no data"), "{e}");
    for (name, format) in [("a.parquet", "Parquet"), ("b.jsonl.gz", "gzip"), ("d.jsonl", "gzip")] {
        let e = Source::train(&path(&dir, name), "train").unwrap_err().to_string();
        assert!(e.contains(format) && e.contains(name), "{e}");
    }
    assert_eq!(Source::train(&path(&dir, "c.jsonl"), "train").unwrap().count().unwrap(), 0);
    let empty = tempfile::tempdir().unwrap();
    let e = Source::train(&path(&empty, ""), "train").unwrap_err().to_string();
    assert!(e.contains("holds no .jsonl"), "{e}");
}

#[test]
fn the_digest_follows_the_contents() {
    let dir = folder(&[("a.jsonl", "{}\n"), ("b.jsonl", "{}\n"), ("c.jsonl", "{ }\n")]);
    let digest = |n: &str| Source::train(&path(&dir, n), "train").unwrap().digest().unwrap();
    assert_eq!(digest("a.jsonl"), digest("b.jsonl"));
    assert_ne!(digest("a.jsonl"), digest("c.jsonl"));
}
