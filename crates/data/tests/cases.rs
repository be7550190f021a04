//! Recorded cases and how their numbers are read.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file of this crate's `tests/golden`.
pub(crate) fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub(crate) fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The cases of a golden file: the repository's own, and what is `known` of a given folder's.
pub(crate) fn golden(name: &str, known: impl Fn(&Value) -> Result<(), String>) -> Vec<Value> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    recordings::golden(&tests, name, known).into_iter().map(|(_, case)| case).collect()
}

pub(crate) fn numbers<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let number = |v: &Value| T::try_from(v.as_i64().unwrap()).ok().unwrap();
    value.as_array().unwrap().iter().map(number).collect()
}

pub(crate) fn table<T: TryFrom<i64>>(value: &Value) -> Vec<Vec<T>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}
