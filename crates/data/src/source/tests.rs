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
        ("notes_trained.jsonl", "{\"text\": \"x\"}\n"),
        ("dataset_info.json", "{}"),
    ]);
    let name = path(&dir, "");
    // `training` is a word for the training split, as `datasets` has it.
    assert_eq!(texts(&Source::train(&name, "train").unwrap()), ["a", "b", "n"]);
    assert_eq!(texts(&Source::test(&name, "test").unwrap().unwrap()), ["t"]);
    assert!(Source::test(&name, "validation").unwrap().is_none());
    let e = Source::train(&name, "train_sft").unwrap_err().to_string();
    assert!(e.contains("`train_sft`") && e.contains("`train`, `test`"), "{e}");
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
    let dir = folder(&[("a.zip", ""), ("b.jsonl.bz2", ""), ("c.jsonl", ""), ("e.xlsx", "")]);
    fs::write(dir.path().join("d.jsonl"), [b'P', b'K', 3, 4, 8, 0]).unwrap();
    let e = Source::train(&path(&dir, "no.jsonl"), "train").unwrap_err().to_string();
    assert!(e.contains("no.jsonl") && e.contains("no data"), "{e}");
    for (name, format) in
        [("a.zip", "zip"), ("b.jsonl.bz2", "bzip2"), ("d.jsonl", "zip"), ("e.xlsx", "spreadsheet")]
    {
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

#[test]
fn splits_by_folders_shards_and_words_within_names() {
    let text = |t: &str| format!("{{\"text\": \"{t}\"}}\n");
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a [&'a str])]);
    let cases: [Case<'_>; 5] = [
        (
            &[
                "data/train-00001-of-00002.jsonl",
                "data/train-00000-of-00002.jsonl",
                "data/test_sft-00000-of-00001.jsonl",
            ],
            &[
                ("train", &["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"]),
                ("test_sft", &["data/test_sft-00000-of-00001.jsonl"]),
            ],
        ),
        (
            &["x/train/a.jsonl", "x/dev/b.jsonl", "c.jsonl"],
            &[("train", &["x/train/a.jsonl"]), ("validation", &["x/dev/b.jsonl"])],
        ),
        (
            &["my-train.jsonl", "my-eval.jsonl"],
            &[("train", &["my-train.jsonl"]), ("test", &["my-eval.jsonl"])],
        ),
        (&["a.jsonl", "b/c.jsonl", ".hidden.jsonl"], &[("train", &["a.jsonl", "b/c.jsonl"])]),
        (&["a.jsonl", "b.jsonl", "LICENSE.txt", "meta.json"], &[("train", &["a.jsonl", "b.jsonl"])]),
    ];
    for (files, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let at = dir.path().join(file);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, text(file)).unwrap();
        }
        let found = Listing::of_folder(dir.path()).unwrap().splits(None, None).unwrap();
        let found: Vec<(&str, Vec<&str>)> =
            found.iter().map(|s| (s.split.as_str(), s.files.iter().map(String::as_str).collect())).collect();
        let expected: Vec<(&str, Vec<&str>)> = expected.iter().map(|(s, f)| (*s, f.to_vec())).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_card_says_which_files_are_which_split() {
    let card = "---\nconfigs:\n- config_name: a\n  data_files:\n  - split: train\n    path: one/*.csv\n  sep: ';'\n- config_name: b\n  data_files: two.jsonl\n---\n";
    let dir = folder(&[("README.md", card), ("two.jsonl", "{\"text\": \"t\"}\n")]);
    fs::create_dir(dir.path().join("one")).unwrap();
    fs::write(dir.path().join("one/x.csv"), "text;n\nq,r;1\n").unwrap();
    let name = path(&dir, "");
    let open = |config: Option<&str>| {
        Source::open(&SourceSpec { config: config.map(str::to_owned), ..SourceSpec::new(&name, "train") })
    };
    assert_eq!(texts(&open(Some("a")).unwrap()), ["q,r"]);
    assert_eq!(texts(&open(Some("b")).unwrap()), ["t"]);
    assert!(matches!(open(None), Err(DataError::NeedsConfig { .. })));
    assert!(matches!(open(Some("c")), Err(DataError::NoConfig { .. })));
}

#[test]
fn slices_columns_shares_and_mixtures() {
    let rows: String = (0..10).map(|i| format!("{{\"n\": {i}, \"text\": \"{i}\"}}\n")).collect();
    let dir = folder(&[("a.jsonl", &rows), ("b.jsonl", "{\"text\": \"b\"}\n")]);
    let name = path(&dir, "a.jsonl");
    let open = |split: &str| Source::train(&name, split).unwrap();
    assert_eq!(texts(&open("train[:20%]")), ["0", "1"]);
    assert_eq!(texts(&open("train[-1:]+train[3:5]")), ["9", "3", "4"]);
    assert_eq!(open("train[2:7]").count().unwrap(), 5);
    assert_ne!(open("train[2:7]").digest().unwrap(), open("train[2:8]").digest().unwrap());
    let spec = SourceSpec {
        columns: Some(vec!["text".to_owned()]),
        weight: Some(0.35),
        ..SourceSpec::new(&name, "train[1:]")
    };
    let first = Source::open(&spec).unwrap();
    assert_eq!(texts(&first), ["1", "2", "3"]);
    assert_eq!(first.records().next().unwrap().unwrap().fields.len(), 1);
    let chosen = Source::open(&SourceSpec { seed: Some(3), ..spec.clone() }).unwrap();
    assert_eq!((chosen.count().unwrap(), texts(&chosen).len()), (3, 3));
    assert_eq!(texts(&chosen), texts(&Source::open(&SourceSpec { seed: Some(3), ..spec.clone() }).unwrap()));
    let mixture = Mixture { sources: vec![spec.clone(), SourceSpec::new(&path(&dir, "b.jsonl"), "train")] };
    assert_eq!(texts(&mixture.open().unwrap()), ["1", "2", "3", "b"]);
    // TRL's shares of a mixture: 3 and 1 of 4, of which the smaller data set has one row.
    let share =
        |f: f64, name: &str| SourceSpec { fraction: Some(f), ..SourceSpec::new(&path(&dir, name), "train") };
    let shares = Mixture { sources: vec![share(6.0, "a.jsonl"), share(2.0, "b.jsonl")] };
    assert_eq!(texts(&shares.open().unwrap()), ["0", "1", "2", "b"]);
    let some = Mixture { sources: vec![share(0.5, "a.jsonl"), spec.clone()] };
    assert!(matches!(some.open(), Err(DataError::Options { .. })));
    let e = Source::open(&SourceSpec { columns: Some(vec!["x".to_owned()]), ..spec.clone() }).unwrap();
    assert!(matches!(e.records().next().unwrap(), Err(DataError::NoColumn { .. })));
    assert!(Source::open(&SourceSpec { weight: Some(1.5), ..spec }).is_err());
}

#[test]
fn gzip_text_and_lists_of_texts() {
    use std::io::Write;
    let dir = folder(&[("a.txt", "one\r\n\ntwo"), ("b.json", "[\"x\", \"y\"]")]);
    let mut gz = flate2::write::GzEncoder::new(
        fs::File::create(dir.path().join("c.jsonl.gz")).unwrap(),
        flate2::Compression::default(),
    );
    gz.write_all("\u{feff}{\"text\": \"z\"}\n".as_bytes()).unwrap();
    gz.finish().unwrap();
    let of = |name: &str| texts(&Source::train(&path(&dir, name), "train").unwrap());
    assert_eq!(of("a.txt"), ["one", "", "two"]);
    assert_eq!(of("b.json"), ["x", "y"]);
    assert_eq!(of("c.jsonl.gz"), ["z"]);
    let whole = fs::read(dir.path().join("c.jsonl.gz")).unwrap();
    fs::write(dir.path().join("d.jsonl.gz"), &whole[..whole.len() - 6]).unwrap();
    let cut = Source::train(&path(&dir, "d.jsonl.gz"), "train").unwrap();
    assert!(cut.records().any(|r| r.is_err()));
}

#[cfg(feature = "parquet")]
#[test]
fn zstandard_as_a_file_and_in_a_folder() {
    let rows = b"{\"text\": \"x\"}\n{\"text\": \"y\"}\n";
    let whole = zstd::encode_all(rows.as_slice(), 3).unwrap();
    let dir = folder(&[]);
    fs::write(dir.path().join("train.jsonl.zst"), &whole).unwrap();
    for name in ["train.jsonl.zst", ""] {
        let source = Source::train(&path(&dir, name), "train").unwrap();
        assert_eq!(texts(&source), ["x", "y"], "{name}");
        assert_eq!(source.count().unwrap(), 2);
    }
    // Two frames, one after the other; then one that is cut, and one that is none.
    fs::write(dir.path().join("two.jsonl.zst"), [whole.as_slice(), &whole].concat()).unwrap();
    assert_eq!(texts(&Source::train(&path(&dir, "two.jsonl.zst"), "train").unwrap()).len(), 4);
    for (name, bytes) in
        [("cut", &whole[..whole.len() - 5]), ("none", &[whole.as_slice(), b"?????"].concat())]
    {
        fs::write(dir.path().join(format!("{name}.jsonl.zst")), bytes).unwrap();
        let source = Source::train(&path(&dir, &format!("{name}.jsonl.zst")), "train").unwrap();
        assert!(source.records().any(|row| row.is_err()), "{name}");
    }
}

#[cfg(feature = "xz")]
#[test]
fn xz_as_a_file_and_in_a_folder() {
    // Two rows, by liblzma.
    let whole: &[u8] = &[
        253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 12, 0, 0, 0, 143, 152, 65, 156, 224,
        0, 27, 0, 23, 93, 0, 61, 136, 138, 134, 148, 136, 19, 224, 243, 135, 36, 186, 220, 8, 235, 19, 163,
        240, 109, 57, 95, 0, 0, 0, 0, 252, 189, 208, 152, 167, 160, 147, 228, 0, 1, 51, 28, 84, 140, 236,
        192, 31, 182, 243, 125, 1, 0, 0, 0, 0, 4, 89, 90,
    ];
    // One row, in a window of 1 GiB.
    let wide: &[u8] = &[
        253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 36, 0, 0, 0, 94, 31, 199, 249, 1, 0,
        13, 123, 34, 116, 101, 120, 116, 34, 58, 32, 34, 120, 34, 125, 10, 0, 0, 0, 90, 168, 107, 127, 52,
        86, 119, 2, 0, 1, 38, 14, 8, 27, 224, 4, 31, 182, 243, 125, 1, 0, 0, 0, 0, 4, 89, 90,
    ];
    let dir = folder(&[]);
    fs::write(dir.path().join("train.jsonl.xz"), whole).unwrap();
    for name in ["train.jsonl.xz", ""] {
        let source = Source::train(&path(&dir, name), "train").unwrap();
        assert_eq!(texts(&source), ["x", "y"], "{name}");
    }
    fs::write(dir.path().join("two.jsonl.xz"), [whole, whole].concat()).unwrap();
    assert_eq!(texts(&Source::train(&path(&dir, "two.jsonl.xz"), "train").unwrap()).len(), 4);
    let changed = |at: usize| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1;
        bytes
    };
    // Cut, with a wrong check of its contents, and with a window that takes more memory than it is given.
    for (name, bytes) in [("cut", whole[..60].to_vec()), ("wrong", changed(52)), ("wide", wide.to_vec())] {
        fs::write(dir.path().join(format!("{name}.jsonl.xz")), bytes).unwrap();
        let failed = match Source::train(&path(&dir, &format!("{name}.jsonl.xz")), "train") {
            Ok(source) => source.records().any(|row| row.is_err()),
            Err(_) => true,
        };
        assert!(failed, "{name}");
    }
}

#[test]
fn arrays_that_are_damaged() {
    for (text, words) in [
        ("[{\"text\": \"a\"}] x", "trailing"),
        ("[{\"text\": \"a\"}, ]", "expected a value"),
        ("[{\"text\": \"a\"} {\"text\": \"b\"}]", "not valid JSON"),
        ("[{\"text\": \"a\"", "does not end"),
        ("[", "does not end"),
        ("[{\"text\": \"[\\\"]}\"},\n\n 7}", "expected `,` or `]`"),
    ] {
        let e = first_error(text, "rows.json");
        assert!(e.contains(words), "{text}: {e}");
    }
    let deep = format!("[{}1{}]", "[".repeat(100_000), "]".repeat(100_000));
    assert!(first_error(&deep, "rows.json").contains("recursion"), "deep");
    let dir = folder(&[("a.json", "[]"), ("b.json", " [ {\"text\": \"\\\\\\\"],\"} ] ")]);
    assert_eq!(Source::train(&path(&dir, "a.json"), "train").unwrap().count().unwrap(), 0);
    assert_eq!(texts(&Source::train(&path(&dir, "b.json"), "train").unwrap()), ["\\\"],"]);
}
