//! Files that `datasets` and `pyarrow` wrote, read as `datasets` reads them.

use std::fs;

use burnish_data::{DataError, Source};
use serde_json::{Map, Value};

use crate::cases::{json, own};

fn rows(path: &std::path::Path) -> Result<Vec<Map<String, Value>>, DataError> {
    let source = Source::of(vec![path.to_path_buf()])?;
    let rows = source.records().map(|r| r.map(|r| r.fields)).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(source.count()?, rows.len());
    Ok(rows)
}

/// Numbers that are equal as numbers, whatever JSON writes them as.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && same(a, b))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}

#[test]
fn rows_are_those_of_datasets() {
    let recorded = json(&own("files.json"));
    let mut read = 0;
    for (name, expected) in recorded.as_object().unwrap() {
        let columns = name.ends_with(".parquet") || name.ends_with(".arrow");
        if columns && !cfg!(feature = "parquet") {
            continue;
        }
        let got = rows(&own("files").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = Value::Array(got.into_iter().map(Value::Object).collect());
        assert!(same(&got, expected), "{name}:\n{got:#}\n{expected:#}");
        read += 1;
    }
    assert!(read >= 5, "{read}");
}

/// What is no text is left out of rows, but for what TRL takes for pictures or sound.
#[cfg(feature = "parquet")]
#[test]
fn columns_of_pictures_are_refused() {
    let Err(e) = rows(&own("pictures.arrow")) else { panic!("rows whose pictures are gone") };
    assert!(e.to_string().contains("`image` is not text"), "{e}");
}

/// A text of 30 kB that a file of less than a kilobyte holds once, for 50,000 rows.
#[cfg(feature = "parquet")]
#[test]
fn rows_without_end_are_refused() {
    let source = Source::of(vec![own("repeats.parquet")]).unwrap();
    let (mut read, mut said) = (0, String::new());
    for row in source.records() {
        match row {
            Ok(_) => read += 1,
            Err(e) => said = e.to_string(),
        }
    }
    assert!((8_000..10_000).contains(&read), "{read}");
    assert!(said.contains("repeats.parquet") && said.contains("write its rows as JSON lines"), "{said}");
}

/// Each cut and each changed byte of a small file: an error or rows, and an end.
#[cfg(feature = "parquet")]
#[test]
fn damaged_files_of_columns_are_errors() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let dir = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for name in ["chats_snappy.parquet", "types.parquet", "stream.arrow", "file.arrow"] {
        let whole = fs::read(own("files").join(name)).unwrap();
        let path = dir.path().join(name);
        for cut in (0..whole.len()).step_by(97) {
            fs::write(&path, &whole[..cut]).unwrap();
            refused += usize::from(rows(&path).is_err());
        }
        for at in (0..whole.len()).step_by(41) {
            for flip in [0xff, 0x01] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                fs::write(&path, &bytes).unwrap();
                // The number of rows that a file claims need not be what it holds.
                refused += usize::from(
                    Source::of(vec![path.clone()]).is_ok_and(|s| s.records().any(|r| r.is_err())),
                );
            }
        }
    }
    std::panic::set_hook(hook);
    assert!(refused > 60, "{refused}");
}

#[test]
fn tables_that_are_no_tables() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        rows(&path).unwrap_err().to_string()
    };
    let wide = error("a.csv", b"text,n\na,1\nb,c,2\n");
    assert!(wide.contains("a.csv, line 3") && wide.contains("3 values"), "{wide}");
    let bytes = error("b.csv", b"text\n\xff\xfe\n");
    assert!(bytes.contains("line 2") && bytes.contains("UTF-8"), "{bytes}");
    if cfg!(feature = "parquet") {
        for (name, bytes) in [("a.parquet", &b""[..]), ("b.parquet", b"PAR1"), ("c.arrow", b"hello")] {
            assert!(error(name, bytes).contains("not a whole"), "{name}");
        }
    } else {
        assert!(error("a.parquet", b"PAR1").contains("feature `parquet`"));
    }
}
