//! The recorded cases: the repository's own, and a folder's named by `BURNISH_RECORDINGS`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Every case of `name`.json, with the file it comes from.
pub(crate) fn cases(name: &str) -> Vec<(PathBuf, Value)> {
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)];
    match std::env::var_os("BURNISH_RECORDINGS") {
        Some(folder) => {
            let more = Path::new(&folder).join("golden").join(name);
            files.extend(more.exists().then_some(more));
        }
        None => println!("BURNISH_RECORDINGS is not set: the repository's own cases of {name} only"),
    }
    let mut all = Vec::new();
    for file in files {
        let list: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert!(!list.is_empty(), "{} holds no case", file.display());
        all.extend(list.into_iter().map(|case| (file.clone(), case)));
    }
    all
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
