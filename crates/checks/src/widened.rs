//! Models with f32 weights, from models at rest in bf16: a device computes in the dtype that weights are held in.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A copy of a model folder with f32 weights, which goes when this is dropped.
pub(crate) struct Widened(TempDir);

impl Widened {
    /// Copies `folder`.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let copy = tempfile::tempdir()?;
        for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let from = entry?.path();
            let to = copy.path().join(from.file_name().unwrap_or_default());
            if from.extension().is_some_and(|extension| extension == "safetensors") {
                let bytes = std::fs::read(&from)?;
                let wide = widened(&bytes).with_context(|| format!("cannot widen {}", from.display()))?;
                std::fs::File::create(&to)?.write_all(&wide)?;
            } else if from.file_name().is_some_and(|name| name == "config.json") {
                let text = std::fs::read_to_string(&from)?.replace("\"bfloat16\"", "\"float32\"");
                std::fs::write(&to, text)?;
            } else if from.is_file() {
                std::fs::copy(&from, &to)?;
            }
        }
        Ok(Self(copy))
    }

    /// The copy.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

/// A file of tensors with those in bf16 in f32.
fn widened(bytes: &[u8]) -> Result<Vec<u8>> {
    let (length, rest) = bytes.split_at_checked(8).context("no header")?;
    let length = u64::from_le_bytes(length.try_into()?) as usize;
    ensure!(length <= rest.len(), "a header of {length} bytes in {}", rest.len());
    let (header, data) = rest.split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header)?;
    let mut wide_header = Map::new();
    let mut wide = Vec::new();
    for (name, entry) in header {
        if name == "__metadata__" {
            wide_header.insert(name, entry);
            continue;
        }
        let at = |i: usize| entry["data_offsets"][i].as_u64().map(|n| n as usize).context("no offsets");
        let own = data.get(at(0)?..at(1)?).context("offsets beyond the file")?;
        let begin = wide.len();
        let dtype = if entry["dtype"] == "BF16" {
            wide.extend(own.as_chunks::<2>().0.iter().flat_map(|&[low, high]| [0, 0, low, high]));
            json!("F32")
        } else {
            wide.extend_from_slice(own);
            entry["dtype"].clone()
        };
        let offsets = [begin, wide.len()];
        wide_header.insert(name, json!({"dtype": dtype, "shape": entry["shape"], "data_offsets": offsets}));
    }
    let mut header = serde_json::to_vec(&Value::Object(wide_header))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(wide);
    Ok(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn bf16_becomes_f32_and_nothing_else_changes() {
        let header = r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([0x80, 0x3f, 0x00, 0xc0, 7]);
        let wide = widened(&file).unwrap();
        let length = u64::from_le_bytes(wide[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&wide[8..8 + length]).unwrap();
        assert_eq!((&header["a"]["dtype"], &header["b"]["dtype"]), (&json!("F32"), &json!("U8")));
        let data = &wide[8 + length..];
        assert_eq!(data[..4], 1.0_f32.to_le_bytes());
        assert_eq!(data[4..8], (-2.0_f32).to_le_bytes());
        assert_eq!(data[8..], [7]);
        assert!(widened(&file[..20]).is_err());
    }
}
