//! Sharding of a model over files by `max_shard_size`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::TensorSpec;

/// One file and the tensors (indices of the specs) in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) file: String,
    pub(crate) tensors: Vec<usize>,
}

/// Fills shards in the order of names; a tensor longer than `max` has a shard of its own.
/// `Err` is a name that occurs twice.
pub(crate) fn plan(stem: &str, specs: &[TensorSpec], max: u64) -> Result<Vec<Shard>, String> {
    let mut order: Vec<usize> = (0..specs.len()).collect();
    order.sort_by(|&a, &b| specs[a].name.cmp(&specs[b].name));
    if let Some(pair) = order.windows(2).find(|p| specs[p[0]].name == specs[p[1]].name) {
        return Err(specs[pair[0]].name.clone());
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0;
    for i in order {
        let bytes = specs[i].bytes();
        if filled + bytes > max && groups.last().is_some_and(|g| !g.is_empty()) {
            groups.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        if let Some(group) = groups.last_mut() {
            group.push(i);
        }
    }
    let n = groups.len();
    let name = |k: usize| match n {
        1 => format!("{stem}.safetensors"),
        _ => format!("{stem}-{:05}-of-{n:05}.safetensors", k + 1),
    };
    Ok(groups.into_iter().enumerate().map(|(k, tensors)| Shard { file: name(k), tensors }).collect())
}

/// The index that says where each tensor is.
pub(crate) fn index(specs: &[TensorSpec], shards: &[Shard]) -> Value {
    let map: BTreeMap<&str, &str> = shards
        .iter()
        .flat_map(|s| s.tensors.iter().map(|&i| (specs[i].name.as_str(), s.file.as_str())))
        .collect();
    let elements: u64 = specs.iter().map(|s| s.bytes() / s.dtype.bytes() as u64).sum();
    let bytes: u64 = specs.iter().map(TensorSpec::bytes).sum();
    json!({"metadata": {"total_parameters": elements, "total_size": bytes}, "weight_map": map})
}

/// The files in `folder` that belong to a set of that basename, whatever its sharding.
pub(crate) fn files_of(folder: &Path, stem: &str) -> Vec<String> {
    let belongs = |name: &str| {
        let Some(rest) = name.strip_prefix(stem) else { return false };
        if rest == ".safetensors" || rest == ".safetensors.index.json" {
            return true;
        }
        let Some(numbers) = rest.strip_prefix('-').and_then(|r| r.strip_suffix(".safetensors")) else {
            return false;
        };
        let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
        numbers.split_once("-of-").is_some_and(|(k, n)| digits(k) && digits(n))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| belongs(n)).collect()
}
