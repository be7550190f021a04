//! Writing a folder so that it is there whole or not at all.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::partial::{clean_target, parent, partial, replaced};
use crate::shard::{self, Shard};
use crate::{Disk, Filesystem, StoreError, TensorSpec, TensorView, header};

/// Shards are at most this long unless asked otherwise (Transformers' default, 5 GB).
pub const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// How finished files become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// One rename of the folder.
    Folder {
        /// An older folder of that name gives way.
        replace: bool,
    },
    /// One rename per file, in the order of writing, into a folder that may exist.
    InPlace,
}

/// Writes files into a folder that appears by one rename ([`new_folder`](Self::new_folder)), or into an existing one
/// where each file is replaced by a rename ([`in_place`](Self::in_place)). Every file and folder is forced to disk
/// first, so after a crash or power cut there is the old state or the new one, never a mixture within a file.
/// Nothing is visible before [`commit`](Self::commit); a writer that is dropped takes its files with it.
///
/// ```
/// use burnish_store::{FolderWriter, HostTensor, WeightFolder};
/// # let root = tempfile::tempdir().unwrap();
/// # let path = root.path().join("out");
/// let w = HostTensor::from_slice(&[1.0_f32, 2.0], &[2]).unwrap();
/// let mut writer = FolderWriter::new_folder(&path).unwrap();
/// writer.file("config.json", b"{}").unwrap();
/// writer.tensors("model", &[("w".into(), w.view())]).unwrap();
/// writer.commit().unwrap();
/// assert_eq!(WeightFolder::open(&path).unwrap().read("w").unwrap(), w);
/// ```
#[derive(Debug)]
pub struct FolderWriter {
    target: PathBuf,
    staging: PathBuf,
    mode: Mode,
    disk: Arc<dyn Filesystem>,
    max_shard_size: u64,
    /// Names relative to the folder, in the order of writing.
    written: Vec<String>,
    /// Basenames of the tensor files written, to find what an older set of shards left behind.
    stems: BTreeSet<String>,
    committed: bool,
}

impl FolderWriter {
    /// A folder that must not exist yet (or be empty) and appears whole at the commit.
    ///
    /// # Errors
    /// If it exists, or its parent cannot be written.
    pub fn new_folder(target: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::with_disk(target.as_ref(), Mode::Folder { replace: false }, Arc::new(Disk))
    }

    /// A folder that takes the place of an older one of that name at the commit.
    ///
    /// # Errors
    /// If its parent cannot be written.
    pub fn replacing(target: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::with_disk(target.as_ref(), Mode::Folder { replace: true }, Arc::new(Disk))
    }

    /// A folder that may hold other files, which stay. Tensor files that an earlier, differently sharded set of the
    /// same basename left behind are removed at the commit.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn in_place(target: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::with_disk(target.as_ref(), Mode::InPlace, Arc::new(Disk))
    }

    /// As [`new_folder`](Self::new_folder) (or [`replacing`](Self::replacing)), on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn folder_on(
        disk: Arc<dyn Filesystem>,
        target: impl AsRef<Path>,
        replace: bool,
    ) -> Result<Self, StoreError> {
        Self::with_disk(target.as_ref(), Mode::Folder { replace }, disk)
    }

    /// As [`in_place`](Self::in_place), on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn in_place_on(disk: Arc<dyn Filesystem>, target: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::with_disk(target.as_ref(), Mode::InPlace, disk)
    }

    fn with_disk(target: &Path, mode: Mode, disk: Arc<dyn Filesystem>) -> Result<Self, StoreError> {
        if target.exists() && !target.is_dir() {
            return Err(StoreError::NotADirectory { path: target.to_path_buf() });
        }
        if mode == (Mode::Folder { replace: false }) && !is_absent_or_empty(target) {
            return Err(StoreError::TargetExists { path: target.to_path_buf() });
        }
        // Files wait inside the folder they are for (it may be a mount point), a new folder waits beside its name.
        let unfinished = if mode == Mode::InPlace { target.join("files") } else { target.to_path_buf() };
        clean_target(&unfinished)?;
        let staging = partial(&unfinished);
        disk.create_folder(&staging).map_err(|e| StoreError::writing("create", target, 0, e))?;
        Ok(Self {
            target: target.to_path_buf(),
            staging,
            mode,
            disk,
            max_shard_size: MAX_SHARD_SIZE,
            written: Vec::new(),
            stems: BTreeSet::new(),
            committed: false,
        })
    }

    /// Starts a new shard before one would get longer than this many bytes of data.
    #[must_use]
    pub fn max_shard_size(mut self, bytes: u64) -> Self {
        self.max_shard_size = bytes.max(1);
        self
    }

    /// The folder that will hold the files.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The files written so far: their names in the folder, and where they wait for the commit.
    pub fn written(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.written.iter().map(|n| (n.as_str(), self.staging.join(n)))
    }

    /// Writes a file of these bytes. `name` may have folders: `state/index.json`.
    ///
    /// # Errors
    /// If it was written already, or the disk refuses.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.stream(name, bytes.len() as u64, |out| out(bytes))
    }

    /// Writes an object as Transformers does: two spaces, sorted keys, a final newline.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub fn json(&mut self, name: &str, value: &serde_json::Value) -> Result<(), StoreError> {
        self.file(name, format!("{:#}\n", sorted(value)).as_bytes())
    }

    /// Writes tensors under `<stem>.safetensors`, or as shards with an index when they are longer than
    /// [`max_shard_size`](Self::max_shard_size). The order given does not matter.
    ///
    /// # Errors
    /// If a name occurs twice, or the disk refuses.
    pub fn tensors(&mut self, stem: &str, tensors: &[(String, TensorView<'_>)]) -> Result<(), StoreError> {
        let specs: Vec<TensorSpec> =
            tensors.iter().map(|(n, t)| TensorSpec::new(n.clone(), t.dtype, t.shape)).collect();
        let by_name: BTreeMap<&str, &[u8]> = tensors.iter().map(|(n, t)| (n.as_str(), t.bytes)).collect();
        self.tensors_from(stem, &specs, |spec| Ok(Cow::Borrowed(by_name[spec.name.as_str()])))
    }

    /// As [`tensors`](Self::tensors), asking for the bytes of one tensor at a time.
    ///
    /// # Errors
    /// As [`tensors`](Self::tensors), if bytes do not fill their shape, or whatever `bytes_of` returns.
    pub fn tensors_from<'a, E: From<StoreError>>(
        &mut self,
        stem: &str,
        specs: &[TensorSpec],
        mut bytes_of: impl FnMut(&TensorSpec) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<(), E> {
        let shards = shard::plan(stem, specs, self.max_shard_size)
            .map_err(|name| StoreError::Duplicate { path: self.target.clone(), name })?;
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        self.stems.insert(stem.to_owned());
        for Shard { file, tensors } in &shards {
            let mut ordered: Vec<&TensorSpec> = tensors.iter().map(|&i| &specs[i]).collect();
            let head = header::render(&mut ordered, &metadata);
            let total = head.len() as u64 + ordered.iter().map(|s| s.bytes()).sum::<u64>();
            self.stream(file, total, |out| {
                out(&head)?;
                for spec in ordered {
                    let bytes = bytes_of(spec)?;
                    if bytes.len() as u64 != spec.bytes() {
                        return Err(E::from(StoreError::WrongLength {
                            dtype: spec.dtype,
                            shape: spec.shape.clone(),
                            expected: spec.bytes() as usize,
                            got: bytes.len(),
                        }));
                    }
                    out(&bytes)?;
                }
                Ok(())
            })?;
        }
        if shards.len() > 1 {
            self.json(&format!("{stem}.safetensors.index.json"), &shard::index(specs, &shards))?;
        }
        Ok(())
    }

    /// Creates a file, hands its writer to `fill`, forces it to disk.
    fn stream<E: From<StoreError>>(
        &mut self,
        name: &str,
        total: u64,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), StoreError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let relative = Path::new(name);
        let plain = !name.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_)));
        if !plain {
            return Err(StoreError::BadFileName { path: self.target.clone(), name: name.to_owned() }.into());
        }
        if self.written.iter().any(|w| w == name) {
            return Err(StoreError::Duplicate { path: self.target.clone(), name: name.to_owned() }.into());
        }
        let (path, shown) = (self.staging.join(relative), self.target.join(relative));
        let failed = |e| StoreError::writing("write", &shown, total, e);
        let mut file =
            self.disk.create_folder(parent(&path)).and_then(|()| self.disk.create(&path)).map_err(failed)?;
        fill(&mut |bytes| file.write_all(bytes).map_err(failed))?;
        file.flush().and_then(|()| file.sync()).map_err(failed)?;
        self.written.push(name.to_owned());
        Ok(())
    }

    /// Makes the files visible and returns the folder's path.
    ///
    /// # Errors
    /// If the disk refuses; what was there before is then still there.
    pub fn commit(mut self) -> Result<PathBuf, StoreError> {
        let target = self.target.clone();
        let failed = |e| StoreError::writing("commit", &target, 0, e);
        for folder in self.folders() {
            self.disk.sync_folder(&self.staging.join(folder)).map_err(failed)?;
        }
        match self.mode {
            Mode::Folder { .. } => self.commit_folder().map_err(failed)?,
            Mode::InPlace => self.commit_files().map_err(failed)?,
        }
        self.committed = true;
        Ok(target)
    }

    fn commit_folder(&self) -> std::io::Result<()> {
        let old = (!is_absent_or_empty(&self.target)).then(|| replaced(&self.target));
        if let Some(old) = &old {
            self.disk.rename(&self.target, old)?;
        }
        if let Err(e) = self.disk.rename(&self.staging, &self.target) {
            if let Some(old) = &old {
                self.disk.rename(old, &self.target)?;
            }
            return Err(e);
        }
        self.disk.sync_folder(parent(&self.target))?;
        if let Some(old) = &old {
            // A leftover is harmless: the next writer or `clean_unfinished` removes it.
            let _ = fs::remove_dir_all(old);
        }
        Ok(())
    }

    fn commit_files(&self) -> std::io::Result<()> {
        for folder in self.folders() {
            self.disk.create_folder(&self.target.join(folder))?;
        }
        for name in &self.written {
            self.disk.rename(&self.staging.join(name), &self.target.join(name))?;
        }
        for stem in &self.stems {
            for stale in shard::files_of(&self.target, stem) {
                if !self.written.contains(&stale) {
                    fs::remove_file(self.target.join(stale))?;
                }
            }
        }
        for folder in self.folders() {
            self.disk.sync_folder(&self.target.join(folder))?;
        }
        self.disk.sync_folder(parent(&self.target))?;
        // A leftover is harmless: the next writer removes it.
        let _ = fs::remove_dir_all(&self.staging);
        Ok(())
    }

    /// The folder itself (`""`) and every folder inside it that holds a file, deepest first.
    fn folders(&self) -> Vec<PathBuf> {
        let all: BTreeSet<PathBuf> = self
            .written
            .iter()
            .flat_map(|n| Path::new(n).ancestors().skip(1).map(Path::to_path_buf).collect::<Vec<_>>())
            .chain([PathBuf::new()])
            .collect();
        all.into_iter().rev().collect()
    }
}

impl Drop for FolderWriter {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_dir_all(&self.staging);
        }
    }
}

/// Replaces one file by a rename: readers see the old bytes or the new ones.
///
/// # Errors
/// If the disk refuses; the old file is then still there.
pub fn write_atomic(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), StoreError> {
    write_atomic_on(&Disk, path.as_ref(), bytes)
}

/// As [`write_atomic`], on another file system.
///
/// # Errors
/// As there.
pub fn write_atomic_on(disk: &dyn Filesystem, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let staging = partial(path);
    let written = disk
        .create_folder(parent(path))
        .and_then(|()| disk.create(&staging))
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.flush()?;
            file.sync()
        })
        .and_then(|()| disk.rename(&staging, path))
        .and_then(|()| disk.sync_folder(parent(path)));
    written.map_err(|e| {
        let _ = fs::remove_file(&staging);
        StoreError::writing("write", path, bytes.len() as u64, e)
    })
}

/// The same value with the keys of every object in order, as `json.dump(..., sort_keys=True)`.
#[must_use]
pub fn sorted(value: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, Value> = map.iter().map(|(k, v)| (k, sorted(v))).collect();
            Value::Object(ordered.into_iter().map(|(k, v)| (k.clone(), v)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn is_absent_or_empty(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => !path.exists(),
    }
}
