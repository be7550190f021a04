//! The recorded cases: the repository's own, and a folder's named by `BURNISH_RECORDINGS`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The cases of `name`: the repository's own, and what is `known` of a given folder's.
pub(crate) fn cases(name: &str, known: impl Fn(&Value) -> Result<(), String>) -> Vec<(PathBuf, Value)> {
    recordings::golden(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), name, known)
}

pub(crate) fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("not a number: {v}"))
}

pub(crate) fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap_or_else(|| panic!("not a list: {v}")).iter().map(number).collect()
}

pub(crate) fn count(v: &Value) -> usize {
    usize::try_from(v.as_u64().unwrap_or_else(|| panic!("not a count: {v}"))).unwrap()
}
