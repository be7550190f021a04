//! The cache on disk of reference log-probabilities, keyed by what they depend on (`precompute_ref_log_probs`).

use std::path::{Path, PathBuf};

use burnish_data::ContentKey;
use burnish_report::replace;

use crate::TrainError;
use crate::evaluation::dealt;
use crate::rank::Rank;

/// First bytes of the file; the number is the layout's.
const MAGIC: &[u8; 8] = b"bnshref1";

/// Numbers for each row of a data set, the same on all ranks.
pub struct Scored {
    width: usize,
    values: Vec<f64>,
}

impl Scored {
    /// The numbers of a row.
    pub(crate) fn of(&self, row: usize) -> &[f64] {
        &self.values[row * self.width..(row + 1) * self.width]
    }

    /// Reads the file that `key` names in `dir`; where there is none, has `score` give `width` numbers for each of some
    /// rows (batches are dealt to the ranks, an empty one where there is none left), and writes it.
    pub(crate) fn new(
        rank: &Rank<'_>,
        dir: &Path,
        key: ContentKey,
        (rows, width, batch): (usize, usize, usize),
        score: impl Fn(&[usize]) -> Result<Vec<f64>, TrainError>,
    ) -> Result<Self, TrainError> {
        let path = dir.join(format!("{}.f64", key.hex()));
        let mut values = vec![0.0; rows * width];
        let mut found = 0.0;
        if rank.leads()
            && let Some(read) = read(&path, rows * width)
        {
            (values, found) = (read, 1.0);
        }
        if rank.world.sum_f64(&[found], "scores of the reference on disk")?[0] > 0.0 {
            let values = rank.world.sum_f64(&values, "scores of the reference")?;
            return Ok(Self { width, values });
        }
        for own in dealt(rows, batch.max(1), &rank.data) {
            let first = own.start;
            let said = score(&own.collect::<Vec<usize>>())?;
            values[first * width..][..said.len()].copy_from_slice(&said);
        }
        let values = rank.data.sum_f64(&values, "scores of the reference")?;
        if rank.leads() {
            std::fs::create_dir_all(dir)
                .map_err(|source| TrainError::Lines { to: dir.display().to_string(), source })?;
            replace(&path, &written(&values))?;
        }
        rank.world.barrier("scores of the reference")?;
        Ok(Self { width, values })
    }
}

/// What numbers depend on: the reference, which is another model or the run's model and adapter as they start, for numbers
/// called `what`.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn key_of_reference(rank: &Rank<'_>, what: &str) -> Result<ContentKey, TrainError> {
    let setup = rank.setup;
    let mut key = ContentKey::new(what);
    if let Some(how) = setup.options.quantization.quantization() {
        key.add(format!("{how:?}"));
    }
    if let Some(other) = &setup.reference {
        key.add("another model");
        add_folder(&mut key, other.folder.path())?;
        return Ok(key);
    }
    key.add(setup.trained.to_string());
    let training = &setup.options.training;
    if training.random_weights {
        key.add(training.seed.to_le_bytes());
    }
    add_folder(&mut key, setup.folder.path())?;
    if let Some(adapter) = &setup.options.model.adapter_name_or_path {
        add_folder(&mut key, adapter)?;
    } else if let Some(plan) =
        rank.model.plan.as_ref().filter(|p| p.changes_base() || p.starts_from_quantization())
    {
        // Their start depends on options of the adapter, and on the seed.
        key.add(training.seed.to_le_bytes());
        key.add(serde_json::to_string(&plan.config).unwrap_or_default());
    }
    Ok(key)
}

/// Adds the files that make a model.
fn add_folder(key: &mut ContentKey, folder: &Path) -> Result<(), TrainError> {
    let fault = |path: &Path| {
        let to = path.display().to_string();
        move |source| TrainError::Unreadable { path: to, source }
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault(folder))? {
        let path = entry.map_err(fault(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") || name == "config.json" || name == "adapter_config.json" {
            files.push(path);
        }
    }
    files.sort();
    for path in files {
        key.add(path.file_name().unwrap_or_default().to_string_lossy().as_bytes());
        key.add_file(&path).map_err(fault(&path))?;
    }
    Ok(())
}

fn written(values: &[f64]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    bytes
}

/// The numbers of a file; `None` if there is none, or it is not whole.
fn read(path: &Path, numbers: usize) -> Option<Vec<f64>> {
    let bytes = std::fs::read(path).ok()?;
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(blake3::OUT_LEN)?)?;
    if body.len() != MAGIC.len() + 8 * numbers || blake3::hash(body).as_bytes() != sum {
        return None;
    }
    let values = body.strip_prefix(MAGIC)?.chunks_exact(8);
    Some(values.map(|v| f64::from_le_bytes(v.try_into().expect("invariant: eight bytes"))).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_or_of_another_length_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        let values = [0.5, -3.25, f64::MIN_POSITIVE];
        std::fs::write(&path, written(&values)).unwrap();
        assert_eq!(read(&path, 3).unwrap(), values);
        assert_eq!(read(&path, 2), None);
        let mut bytes = written(&values);
        bytes[9] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path, 3), None);
        std::fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(read(&path, 3), None);
        assert_eq!(read(&root.path().join("none"), 0), None);
    }
}
