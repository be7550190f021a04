//! Where recorded cases are: the repository's own copies, and the folder that `BURNISH_RECORDINGS` names.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file of this crate's `tests/golden`.
pub(crate) fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The folder of further recordings, if it is set.
pub(crate) fn further() -> Option<PathBuf> {
    let folder = std::env::var_os("BURNISH_RECORDINGS").map(PathBuf::from);
    if folder.is_none() {
        println!("BURNISH_RECORDINGS is not set: replaying the repository's own recordings only");
    }
    folder
}

pub(crate) fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The cases of a golden file: our copy, then the recordings' when it is there.
pub(crate) fn golden(name: &str) -> Vec<Value> {
    let mut cases = json(&own(name)).as_array().unwrap().clone();
    if let Some(folder) = further() {
        cases.extend(json(&folder.join("golden").join(name)).as_array().unwrap().iter().cloned());
    }
    cases
}

pub(crate) fn numbers<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let number = |v: &Value| T::try_from(v.as_i64().unwrap()).ok().unwrap();
    value.as_array().unwrap().iter().map(number).collect()
}

pub(crate) fn table<T: TryFrom<i64>>(value: &Value) -> Vec<Vec<T>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}
