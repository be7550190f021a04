//! Reading a folder of weights, slice-wise.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use burnish_core::Dtype;
use serde::Deserialize;

use crate::block_scaled::BlockScaled;
use crate::file::TensorFile;
use crate::header::Entry;
use crate::slice::Runs;
use crate::{HostTensor, TensorView, WeightFileError};

/// The basenames that [`WeightFolder::open`] looks for in a folder, in this order.
const STEMS: [&str; 2] = ["model", "adapter_model"];
/// Weights of other formats, worth naming in an error.
const OTHER_FORMATS: [&str; 6] = ["bin", "pt", "pth", "ckpt", "gguf", "msgpack"];

/// A tensor's dtype and global shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type at rest.
    pub dtype: Dtype,
    /// Extent of each dim.
    pub shape: Vec<usize>,
}

/// The weights of a Hugging Face or PEFT folder: one safetensors file, or shards behind an index.
///
/// Opening reads and checks headers only. [`read`](Self::read) copies a tensor once, in its stored dtype;
/// [`read_slice`](Self::read_slice) touches only the bytes of the slice; [`view`](Self::view) copies nothing.
#[derive(Debug)]
pub struct WeightFolder {
    path: PathBuf,
    pub(crate) files: Vec<TensorFile>,
    /// Tensor name to index into `files`.
    pub(crate) places: BTreeMap<String, usize>,
    pub(crate) scaled: BlockScaled,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl WeightFolder {
    /// Opens a folder (`model.safetensors`, `model.safetensors.index.json` with its shards, or the same with
    /// `adapter_model`), a `.safetensors` file or a `.safetensors.index.json` file.
    ///
    /// # Errors
    /// If there is none, or a file is damaged; see [`WeightFileError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightFileError> {
        Self::open_any(path.as_ref(), &STEMS)
    }

    /// Opens `<stem>.safetensors` or `<stem>.safetensors.index.json` of a folder.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_stem(path: impl AsRef<Path>, stem: &str) -> Result<Self, WeightFileError> {
        Self::open_any(path.as_ref(), &[stem])
    }

    fn open_any(path: &Path, stems: &[&str]) -> Result<Self, WeightFileError> {
        if !path.exists() {
            return Err(WeightFileError::Missing { path: path.to_path_buf() });
        }
        if path.is_file() {
            let is_index = path.extension().is_some_and(|e| e == "json");
            return if is_index { Self::sharded(path) } else { Self::single(path, path) };
        }
        let mut looked_for = Vec::new();
        for stem in stems {
            let single = format!("{stem}.safetensors");
            let index = format!("{stem}.safetensors.index.json");
            if path.join(&single).is_file() {
                return Self::single(path, &path.join(&single));
            }
            if path.join(&index).is_file() {
                return Self::sharded(&path.join(&index));
            }
            looked_for.extend([single, index]);
        }
        Err(WeightFileError::NoWeights {
            path: path.to_path_buf(),
            looked_for,
            found_other: other_weights(path),
        })
    }

    fn single(path: &Path, file: &Path) -> Result<Self, WeightFileError> {
        let file = TensorFile::open(file)?;
        let places = file.names().map(|n| (n.to_owned(), 0)).collect();
        Ok(Self { path: path.to_path_buf(), files: vec![file], places, scaled: BlockScaled::default() })
    }

    fn sharded(index: &Path) -> Result<Self, WeightFileError> {
        let text =
            burnish_core::file::read_json(index).map_err(|e| WeightFileError::reading("read", index, e))?;
        let parsed: Index = serde_json::from_slice(&text).map_err(|e| WeightFileError::CorruptIndex {
            path: index.to_path_buf(),
            reason: e.to_string(),
        })?;
        let folder = index.parent().unwrap_or(Path::new(".")).to_path_buf();
        let mut files: Vec<TensorFile> = Vec::new();
        let mut opened: BTreeMap<String, usize> = BTreeMap::new();
        let mut places = BTreeMap::new();
        for (tensor, shard) in parsed.weight_map {
            let place = match opened.get(&shard) {
                Some(&place) => place,
                None => {
                    let path = folder.join(&shard);
                    // What lies elsewhere is not of this folder, and not what was downloaded with it.
                    let mut parts = Path::new(&shard).components();
                    if !parts.all(|part| matches!(part, Component::Normal(_))) {
                        return Err(WeightFileError::ShardElsewhere { index: index.to_path_buf(), shard });
                    }
                    if !path.is_file() {
                        return Err(WeightFileError::MissingShard { index: index.to_path_buf(), shard });
                    }
                    files.push(TensorFile::open(&path)?);
                    opened.insert(shard.clone(), files.len() - 1);
                    files.len() - 1
                }
            };
            if files[place].entry(&tensor).is_none() {
                return Err(WeightFileError::MissingInShard { index: index.to_path_buf(), shard, tensor });
            }
            places.insert(tensor, place);
        }
        Ok(Self { path: folder, files, places, scaled: BlockScaled::default() })
    }

    /// The folder or file that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The weight files, in the order in which the index first names them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    /// The `__metadata__` of the first file (`{"format": "pt"}` as PyTorch writes it).
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.files.first().map(|f| f.metadata().clone()).unwrap_or_default()
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A tensor's dtype and shape.
    ///
    /// # Errors
    /// If there is none of that name, or of a dtype that burnish does not read.
    pub fn info(&self, name: &str) -> Result<TensorInfo, WeightFileError> {
        let (file, entry) = self.place(name)?;
        Ok(TensorInfo { dtype: self.dtype(name, file, entry)?, shape: entry.shape.clone() })
    }

    /// A tensor's dtype as its file names it, of any that safetensors has, and its shape.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn described(&self, name: &str) -> Result<(&str, &[usize]), WeightFileError> {
        let (_, entry) = self.place(name)?;
        Ok((&entry.dtype, &entry.shape))
    }

    /// A tensor in its stored dtype: one copy from the file, nothing mapped.
    ///
    /// # Errors
    /// As [`info`](Self::info), or if the disk cannot be read.
    pub fn read(&self, name: &str) -> Result<HostTensor, WeightFileError> {
        let (file, entry) = self.place(name)?;
        if self.scaled.get(name).is_some() {
            let runs = Runs::all((entry.end - entry.begin) as usize);
            return self.read_part(name, &runs, whole(&entry.shape));
        }
        let mut tensor = HostTensor::zeros(file.dtype(name, entry)?, &entry.shape);
        file.read_bytes(entry, 0, &mut tensor.bytes)?;
        Ok(tensor)
    }

    /// Reads a tensor's bytes into `out`.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if `out` is not as long as the tensor.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<(), WeightFileError> {
        let (file, entry) = self.place(name)?;
        let scaled = self.scaled.get(name);
        let expected = (entry.end - entry.begin) as usize * scaled.map_or(1, |matrix| matrix.read.bytes());
        if expected != out.len() {
            let dtype = self.dtype(name, file, entry)?;
            return Err(WeightFileError::WrongLength {
                dtype,
                shape: entry.shape.clone(),
                expected,
                got: out.len(),
            });
        }
        if scaled.is_some() {
            out.copy_from_slice(&self.read(name)?.bytes);
            return Ok(());
        }
        file.read_bytes(entry, 0, out)
    }

    /// Reads `range` along `dim`: only the byte runs of that slice are touched.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the slice is outside the tensor.
    pub fn read_slice(
        &self,
        name: &str,
        dim: usize,
        range: Range<usize>,
    ) -> Result<HostTensor, WeightFileError> {
        let (file, entry) = self.place(name)?;
        let dtype = self.dtype(name, file, entry)?;
        let Some(runs) = Runs::of(&entry.shape, self.stored_width(name, dtype), dim, &range) else {
            return Err(WeightFileError::BadSlice {
                name: name.to_owned(),
                dim,
                range,
                shape: entry.shape.clone(),
            });
        };
        let mut ranges = whole(&entry.shape);
        ranges[dim] = range;
        self.read_part(name, &runs, ranges)
    }

    /// Reads `columns` of `rows` of a matrix: only the byte runs of that block are touched.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the block is outside the tensor.
    pub fn read_block(
        &self,
        name: &str,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<HostTensor, WeightFileError> {
        let (file, entry) = self.place(name)?;
        let dtype = self.dtype(name, file, entry)?;
        let Some(runs) = Runs::block(&entry.shape, self.stored_width(name, dtype), &rows, &columns) else {
            let rows_fit = Runs::of(&entry.shape, dtype.bytes(), 0, &rows).is_some();
            let (dim, range) = if rows_fit { (1, columns) } else { (0, rows) };
            return Err(WeightFileError::BadSlice {
                name: name.to_owned(),
                dim,
                range,
                shape: entry.shape.clone(),
            });
        };
        self.read_part(name, &runs, vec![rows, columns])
    }

    /// The file that a tensor is in, and its bytes there.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn place_of(&self, name: &str) -> Result<(&Path, Range<u64>), WeightFileError> {
        let (file, entry) = self.place(name)?;
        Ok((&file.path, entry.begin..entry.end))
    }

    /// A tensor where it lies in the mapped file: nothing is copied, pages are read when touched. Of a matrix with scales
    /// its codes.
    ///
    /// # Errors
    /// As [`info`](Self::info), or if the file cannot be mapped.
    pub fn view(&self, name: &str) -> Result<TensorView<'_>, WeightFileError> {
        let (file, entry) = self.place(name)?;
        let dtype = if self.scaled.get(name).is_some() { Dtype::U8 } else { file.dtype(name, entry)? };
        Ok(TensorView { dtype, shape: &entry.shape, bytes: file.mapped(entry)? })
    }

    fn dtype(&self, name: &str, file: &TensorFile, entry: &Entry) -> Result<Dtype, WeightFileError> {
        self.scaled.get(name).map_or_else(|| file.dtype(name, entry), |matrix| Ok(matrix.read))
    }

    /// Bytes of an element where it lies.
    fn stored_width(&self, name: &str, dtype: Dtype) -> usize {
        if self.scaled.get(name).is_some() { 1 } else { dtype.bytes() }
    }

    /// What runs hold, which are `ranges` of the tensor along each dim.
    fn read_part(
        &self,
        name: &str,
        runs: &Runs,
        ranges: Vec<Range<usize>>,
    ) -> Result<HostTensor, WeightFileError> {
        let (file, entry) = self.place(name)?;
        let dtype = self.dtype(name, file, entry)?;
        let mut bytes = vec![0; runs.total()];
        file.read_runs(entry, runs, &mut bytes)?;
        if let Some(matrix) = self.scaled.get(name) {
            bytes = matrix.widen(&ranges, &bytes);
        }
        Ok(HostTensor { dtype, shape: ranges.iter().map(Range::len).collect(), bytes })
    }

    /// A tensor's file and place, as it lies there.
    pub(crate) fn stored(&self, name: &str) -> Option<(usize, &Entry)> {
        let &file = self.places.get(name)?;
        Some((file, self.files[file].entry(name)?))
    }

    fn place(&self, name: &str) -> Result<(&TensorFile, &Entry), WeightFileError> {
        let found = self.scaled.get(name).map(|matrix| (&self.files[matrix.file], &matrix.entry));
        let found = found.or_else(|| self.stored(name).map(|(file, entry)| (&self.files[file], entry)));
        found.ok_or_else(|| WeightFileError::UnknownTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            nearest: nearest(name, self.names(), 3),
        })
    }
}

/// All of every dim.
fn whole(shape: &[usize]) -> Vec<Range<usize>> {
    shape.iter().map(|&n| 0..n).collect()
}

/// Up to `count` of `names` that are similar to `name`, most similar first.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>, count: usize) -> Vec<String> {
    let mut scored: Vec<(f64, &str)> = names
        .map(|n| (strsim::normalized_damerau_levenshtein(name, n), n))
        .filter(|(s, _)| *s > 0.4)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.into_iter().take(count).map(|(_, n)| n.to_owned()).collect()
}

fn other_weights(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().and_then(|e| e.to_str()).is_some_and(|e| OTHER_FORMATS.contains(&e)))
        .filter_map(|p| Some(p.file_name()?.to_str()?.to_owned()))
        .filter(|n| n != "training_args.bin" && n != "optimizer.pt" && n != "scheduler.pt")
        .collect();
    found.sort();
    found
}
