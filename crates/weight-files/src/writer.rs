//! Writing a folder so that it is there whole or not at all, by one rank or by several.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use burnish_core::work::{Unit, Work};

use crate::commit::{FilePart, FinishedFolder, Identity, is_absent_or_empty};
use crate::partial::{Unfinished, clean_target, parent, partial};
use crate::shard::{self, Shard};
use crate::slice::Runs;
use crate::sums::Tally;
use crate::{Disk, FileOut, Filesystem, Share, TensorSpec, TensorView, WeightFileError, header};

/// Shards are at most this long unless asked otherwise (Transformers' default, 5 GB).
pub const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// How finished files become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// By one rename of the folder, which must not exist yet (or be empty).
    New,
    /// By one rename of the folder; an older one of that name gives way.
    Replacing,
    /// By one rename per file, in the order of writing, into a folder that may hold other files. Tensor files that an
    /// earlier, differently sharded set of the same basename left behind are removed.
    InPlace,
}

/// Writes files into a folder that appears by one rename ([`new_folder`](Self::new_folder)), or into an existing one
/// where each file is replaced by a rename ([`in_place`](Self::in_place)). Every file and folder is forced to disk
/// first, so after a crash or power cut there is the old state or the new one, never a mixture within a file.
/// Nothing is visible before [`commit`](Self::commit); a writer that is dropped takes its files with it.
///
/// ```
/// use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
/// # let root = tempfile::tempdir().unwrap();
/// # let path = root.path().join("out");
/// let w = HostTensor::from_slice(&[1.0_f32, 2.0], &[2]).unwrap();
/// let mut writer = FolderWriter::new_folder(&path).unwrap();
/// writer.file("config.json", b"{}").unwrap();
/// writer.tensors("model", &[("w".into(), w.view())]).unwrap();
/// writer.commit().unwrap();
/// assert_eq!(WeightFolder::open(&path).unwrap().read("w").unwrap(), w);
/// ```
///
/// # Several ranks
///
/// Ranks that share a file system ([`shared`](Self::shared)) call the same methods with the same arguments:
/// [`file`](Self::file), [`json`](Self::json), [`tensors`](Self::tensors) and [`tensors_from`](Self::tensors_from) are for
/// what is the same on all ranks, and only the lead (rank 0) writes it; [`tensor_rows`](Self::tensor_rows) takes from each
/// rank its rows of tensors that no rank holds whole; [`own_tensors`](Self::own_tensors) is for a file of one rank. Then
/// each rank calls [`finish`](Self::finish), and, when all have, the lead commits. A barrier of the caller's lies between
/// the lead's `shared` and the others', and between the last `finish` and the lead's commit.
///
/// ```
/// use burnish_weight_files::*;
/// # let root = tempfile::tempdir().unwrap();
/// # let path = root.path().join("out");
/// let attempt = Attempt::fresh(); // of rank 0, which tells the others
/// let specs = [TensorSpec::new("w", burnish_core::Dtype::U8, &[3, 2])];
/// let mut finished = Vec::new();
/// for rank in 0..2 {
///     let share = Share { attempt, rank, ranks: 2 };
///     let mut writer = FolderWriter::shared(&path, Placement::New, share).unwrap();
///     let rows = [0..2, 2..3][rank].clone();
///     let bytes = [vec![0_u8, 1, 2, 3], vec![4, 5]][rank].clone();
///     writer.tensor_rows::<WeightFileError>("model", &specs, |_| rows.clone(), |_, _| Ok(bytes.clone().into())).unwrap();
///     finished.push(writer.finish().unwrap());
/// }
/// finished.remove(0).commit().unwrap();
/// assert_eq!(WeightFolder::open(&path).unwrap().read("w").unwrap().bytes, [0, 1, 2, 3, 4, 5]);
/// ```
#[derive(Debug)]
pub struct FolderWriter {
    pub(crate) target: PathBuf,
    pub(crate) unfinished: Unfinished,
    pub(crate) placement: Placement,
    pub(crate) disk: Arc<dyn Filesystem>,
    pub(crate) share: Share,
    max_shard_size: u64,
    summed: bool,
    /// The older folder of that name when this one was begun.
    pub(crate) before: Option<Identity>,
    /// In the order of writing.
    pub(crate) files: Vec<FilePart>,
    /// Basenames of the tensor files written, to find what an older set of shards left behind.
    pub(crate) stems: BTreeSet<String>,
}

impl FolderWriter {
    /// A folder that must not exist yet (or be empty) and appears whole at the commit.
    ///
    /// # Errors
    /// If it exists, or its parent cannot be written.
    pub fn new_folder(target: impl AsRef<Path>) -> Result<Self, WeightFileError> {
        Self::shared(target, Placement::New, Share::alone())
    }

    /// A folder that takes the place of an older one of that name at the commit.
    ///
    /// # Errors
    /// If its parent cannot be written.
    pub fn replacing(target: impl AsRef<Path>) -> Result<Self, WeightFileError> {
        Self::shared(target, Placement::Replacing, Share::alone())
    }

    /// A folder that may hold other files, which stay; see [`Placement::InPlace`].
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn in_place(target: impl AsRef<Path>) -> Result<Self, WeightFileError> {
        Self::shared(target, Placement::InPlace, Share::alone())
    }

    /// One rank's writer of a folder that several write. The lead creates the unfinished folder: the others come after a
    /// barrier.
    ///
    /// # Errors
    /// If the folder cannot be written, or, on another rank than the lead, was not begun.
    pub fn shared(
        target: impl AsRef<Path>,
        placement: Placement,
        share: Share,
    ) -> Result<Self, WeightFileError> {
        Self::shared_on(Arc::new(Disk), target, placement, share)
    }

    /// As [`shared`](Self::shared), on another file system.
    ///
    /// # Errors
    /// Those of [`shared`](Self::shared).
    pub fn shared_on(
        disk: Arc<dyn Filesystem>,
        target: impl AsRef<Path>,
        placement: Placement,
        share: Share,
    ) -> Result<Self, WeightFileError> {
        let target = target.as_ref();
        if target.exists() && !target.is_dir() {
            return Err(WeightFileError::NotADirectory { path: target.to_path_buf() });
        }
        // Files wait inside the folder they are for (it may be a mount point), a new folder waits beside its name.
        let wanted =
            if placement == Placement::InPlace { target.join("files") } else { target.to_path_buf() };
        let staging = partial(&wanted, share.attempt);
        if share.leads() {
            if placement == Placement::New && !is_absent_or_empty(target) {
                return Err(WeightFileError::TargetExists { path: target.to_path_buf() });
            }
            clean_target(&wanted)?;
        } else if !staging.is_dir() {
            return Err(WeightFileError::Abandoned { path: target.to_path_buf() });
        }
        let unfinished = Unfinished::new(staging, share.leads());
        if share.leads() {
            let created = disk.create_folder(unfinished.path());
            created.map_err(|e| WeightFileError::writing("create", target, 0, e))?;
        }
        Ok(Self {
            target: target.to_path_buf(),
            unfinished,
            placement,
            disk,
            share,
            max_shard_size: MAX_SHARD_SIZE,
            summed: false,
            before: Identity::of(target),
            files: Vec::new(),
            stems: BTreeSet::new(),
        })
    }

    /// As [`new_folder`](Self::new_folder) (or [`replacing`](Self::replacing)), on another file system.
    ///
    /// # Errors
    /// Those of [`new_folder`](Self::new_folder).
    pub fn folder_on(
        disk: Arc<dyn Filesystem>,
        target: impl AsRef<Path>,
        replace: bool,
    ) -> Result<Self, WeightFileError> {
        let placement = if replace { Placement::Replacing } else { Placement::New };
        Self::shared_on(disk, target, placement, Share::alone())
    }

    /// As [`in_place`](Self::in_place), on another file system.
    ///
    /// # Errors
    /// Those of [`in_place`](Self::in_place).
    pub fn in_place_on(disk: Arc<dyn Filesystem>, target: impl AsRef<Path>) -> Result<Self, WeightFileError> {
        Self::shared_on(disk, target, Placement::InPlace, Share::alone())
    }

    /// Starts a new shard before one would get longer than this many bytes of data. Equal on all ranks.
    #[must_use]
    pub fn max_shard_size(mut self, bytes: u64) -> Self {
        self.set_max_shard_size(bytes);
        self
    }

    /// As [`max_shard_size`](Self::max_shard_size), from here on.
    pub fn set_max_shard_size(&mut self, bytes: u64) {
        self.max_shard_size = bytes.max(1);
    }

    /// Takes checksums of everything on the way to the disk; see [`GatheredFolder::files`](crate::GatheredFolder::files).
    #[must_use]
    pub fn summed(mut self) -> Self {
        self.summed = true;
        self
    }

    /// The folder that will hold the files.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Which of its writers this is.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// The files that this rank has written to so far: their names in the folder, and where they wait for the commit.
    pub fn written(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.files.iter().map(|f| (f.name.as_str(), self.unfinished.path().join(&f.name)))
    }

    /// Writes a file of these bytes, the same on all ranks. `name` may have folders: `state/index.json`.
    ///
    /// # Errors
    /// If it was written already, or the disk refuses.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), WeightFileError> {
        if !self.share.leads() {
            return self.path_of(name).map(drop);
        }
        self.stream(name, bytes.len() as u64, |out| out(bytes))
    }

    /// Writes an object as Transformers does: two spaces, sorted keys, a final newline.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub fn json(&mut self, name: &str, value: &serde_json::Value) -> Result<(), WeightFileError> {
        self.file(name, format!("{:#}\n", sorted(value)).as_bytes())
    }

    /// Writes tensors, the same on all ranks, under `<stem>.safetensors`, or as shards with an index when they are longer
    /// than [`max_shard_size`](Self::max_shard_size). The order given does not matter.
    ///
    /// # Errors
    /// If a name occurs twice, or the disk refuses.
    pub fn tensors(
        &mut self,
        stem: &str,
        tensors: &[(String, TensorView<'_>)],
    ) -> Result<(), WeightFileError> {
        let (specs, by_name) = described(tensors);
        self.tensors_from(stem, &specs, |spec| Ok(Cow::Borrowed(by_name[spec.name.as_str()])))
    }

    /// As [`tensors`](Self::tensors), asking for the bytes of one tensor at a time, on the lead only.
    ///
    /// # Errors
    /// As [`tensors`](Self::tensors), if bytes do not fill their shape, or whatever `bytes_of` returns.
    pub fn tensors_from<'a, E: From<WeightFileError>>(
        &mut self,
        stem: &str,
        specs: &[TensorSpec],
        mut bytes_of: impl FnMut(&TensorSpec) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<(), E> {
        let leads = self.share.leads();
        let rows = |spec: &TensorSpec| if leads { 0..spec.rows() } else { 0..0 };
        self.tensor_rows(stem, specs, rows, |spec, _| bytes_of(spec))
    }

    /// As [`tensors_from`](Self::tensors_from), each rank giving its rows (indices of dim 0; a scalar is one row): the
    /// file comes out as if one rank had written it. All ranks give the same `specs`; `rows_of` says which rows are this
    /// rank's (maybe none), and `bytes_of` is asked for their bytes, one tensor at a time, in the order of the file.
    /// Before the commit the ranks must have given each row exactly once.
    ///
    /// # Errors
    /// As [`tensors_from`](Self::tensors_from), or if rows are outside their tensor.
    pub fn tensor_rows<'a, E: From<WeightFileError>>(
        &mut self,
        stem: &str,
        specs: &[TensorSpec],
        mut rows_of: impl FnMut(&TensorSpec) -> Range<usize>,
        mut bytes_of: impl FnMut(&TensorSpec, Range<usize>) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<(), E> {
        let of = |spec: &TensorSpec| vec![rows_of(spec)];
        self.tensor_ranges(stem, specs, of, |spec, ranges| bytes_of(spec, ranges[0].clone()))
    }

    /// As [`tensor_rows`](Self::tensor_rows), where a rank may have several ranges of rows of a tensor: `bytes_of` gives
    /// them one after another. Of a tensor [by columns](TensorSpec::by_columns) ranges are of those, and its bytes are
    /// those columns side by side, row by row.
    ///
    /// # Errors
    /// Those of [`tensor_rows`](Self::tensor_rows).
    pub fn tensor_ranges<'a, E: From<WeightFileError>>(
        &mut self,
        stem: &str,
        specs: &[TensorSpec],
        mut ranges_of: impl FnMut(&TensorSpec) -> Vec<Range<usize>>,
        mut bytes_of: impl FnMut(&TensorSpec, &[Range<usize>]) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<(), E> {
        let shards = shard::plan(stem, specs, self.max_shard_size)
            .map_err(|name| WeightFileError::Duplicate { path: self.target.clone(), name })?;
        self.stems.insert(stem.to_owned());
        let work = Work::begin(self.work(), Unit::Bytes, specs.iter().map(TensorSpec::bytes).sum());
        for Shard { file, tensors } in &shards {
            let mut ordered: Vec<&TensorSpec> = tensors.iter().map(|&i| &specs[i]).collect();
            let head = header::render(&mut ordered, &metadata());
            let mut at = head.len() as u64;
            let total = at + ordered.iter().map(|s| s.bytes()).sum::<u64>();
            let (path, shown) = self.path_of(file)?;
            let failed = |e| self.lost(e, |e| WeightFileError::writing("write", &shown, total, e));
            let mut out = Shared::new(self, &path, total);
            if self.share.leads() {
                out.write(0, &head).map_err(failed)?;
            }
            for spec in ordered {
                let mut ranges = ranges_of(spec);
                ranges.retain(|rows| rows.start != rows.end);
                let of_spec = at;
                at += spec.bytes();
                if ranges.is_empty() {
                    work.advance(spec.bytes());
                    continue;
                }
                // A scalar is one row of one element.
                let shape = if spec.shape.is_empty() { &[1][..] } else { &spec.shape };
                let runs_of = |rows: &Range<usize>| {
                    Runs::of(shape, spec.dtype.bytes(), spec.along(), rows).ok_or_else(|| {
                        let (name, shape) = (spec.name.clone(), spec.shape.clone());
                        WeightFileError::BadSlice { name, dim: spec.along(), range: rows.clone(), shape }
                    })
                };
                let runs = ranges.iter().map(runs_of).collect::<Result<Vec<_>, _>>()?;
                let bytes = bytes_of(spec, &ranges)?;
                let expected = runs.iter().map(Runs::total).sum();
                if bytes.len() != expected {
                    return Err(E::from(WeightFileError::WrongLength {
                        dtype: spec.dtype,
                        shape: spec.shape.clone(),
                        expected,
                        got: bytes.len(),
                    }));
                }
                let mut rest = &bytes[..];
                let extent = shape[spec.along()];
                let outer: usize = shape[..spec.along()].iter().product();
                let inner = shape[spec.along() + 1..].iter().product::<usize>() * spec.dtype.bytes();
                for (part, rows) in (0..outer).flat_map(|part| ranges.iter().map(move |rows| (part, rows))) {
                    let (now, after) = rest.split_at(rows.len() * inner);
                    let start = ((part * extent + rows.start) * inner) as u64;
                    out.write(of_spec + start, now).map_err(failed)?;
                    rest = after;
                }
                work.advance(spec.bytes());
            }
            let pieces = out.finish().map_err(failed)?;
            let layout = Some(crate::leaf_sum(&head));
            self.files.push(FilePart { name: file.clone(), bytes: total, layout, pieces });
        }
        if shards.len() > 1 {
            self.json(&format!("{stem}.safetensors.index.json"), &shard::index(specs, &shards))?;
        }
        Ok(())
    }

    /// Writes tensors into `<stem>.safetensors`, a file of this rank alone. Returns the first byte of each tensor in it.
    ///
    /// # Errors
    /// If a name occurs twice, or the disk refuses.
    pub fn own_tensors(
        &mut self,
        stem: &str,
        tensors: &[(String, TensorView<'_>)],
    ) -> Result<BTreeMap<String, u64>, WeightFileError> {
        let (specs, by_name) = described(tensors);
        let mut ordered: Vec<&TensorSpec> = specs.iter().collect();
        let head = header::render(&mut ordered, &metadata());
        if let Some(pair) = ordered.windows(2).find(|p| p[0].name == p[1].name) {
            return Err(WeightFileError::Duplicate { path: self.target.clone(), name: pair[0].name.clone() });
        }
        let mut places = BTreeMap::new();
        let mut total = head.len() as u64;
        for spec in &ordered {
            places.insert(spec.name.clone(), total);
            total += spec.bytes();
        }
        self.stream(&format!("{stem}.safetensors"), total, |out| {
            out(&head)?;
            ordered.iter().try_for_each(|spec| out(by_name[spec.name.as_str()]))
        })?;
        Ok(places)
    }

    /// What is said of writing tensors.
    fn work(&self) -> String {
        let name = self.target.file_name().unwrap_or(self.target.as_os_str());
        format!("writing {}", name.to_string_lossy())
    }

    /// Creates a file, hands its writer to `fill`, forces it to disk.
    fn stream<E: From<WeightFileError>>(
        &mut self,
        name: &str,
        total: u64,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), WeightFileError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (path, shown) = self.path_of(name)?;
        let failed = |e| WeightFileError::writing("write", &shown, total, e);
        let mut file = self
            .add_folders(&path)
            .and_then(|()| self.disk.create(&path))
            .map_err(|e| self.lost(e, failed))?;
        let mut tally = Tally::new(self.summed);
        let mut at = 0;
        fill(&mut |bytes| {
            tally.add(at, bytes);
            at += bytes.len() as u64;
            file.write_all(bytes).map_err(failed)
        })?;
        file.flush().and_then(|()| file.sync()).map_err(failed)?;
        self.files.push(FilePart { name: name.to_owned(), bytes: at, layout: None, pieces: tally.pieces() });
        Ok(())
    }

    /// Where a file is written, and where it will be; refuses names that leave the folder or were written.
    fn path_of(&self, name: &str) -> Result<(PathBuf, PathBuf), WeightFileError> {
        let relative = Path::new(name);
        let plain = !name.is_empty() && relative.components().all(|c| matches!(c, Component::Normal(_)));
        if !plain {
            return Err(WeightFileError::BadFileName { path: self.target.clone(), name: name.to_owned() });
        }
        if self.files.iter().any(|f| f.name == name) {
            return Err(WeightFileError::Duplicate { path: self.target.clone(), name: name.to_owned() });
        }
        Ok((self.unfinished.path().join(relative), self.target.join(relative)))
    }

    /// Creates the folders between the unfinished one, which must be there, and a file.
    fn add_folders(&self, file: &Path) -> std::io::Result<()> {
        let above: Vec<&Path> =
            parent(file).ancestors().take_while(|p| *p != self.unfinished.path()).collect();
        above.into_iter().rev().try_for_each(|folder| self.disk.add_folder(folder))
    }

    /// The error of a write that failed, which may be that the folder was taken away.
    fn lost(
        &self,
        error: std::io::Error,
        failed: impl FnOnce(std::io::Error) -> WeightFileError,
    ) -> WeightFileError {
        if error.kind() == std::io::ErrorKind::NotFound && !self.unfinished.path().exists() {
            return WeightFileError::Abandoned { path: self.target.clone() };
        }
        failed(error)
    }

    /// Ends this rank's writing: everything it wrote is on the disk, and the lead can know. Dropping what is returned
    /// gives up (on the lead; on other ranks it changes nothing).
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn finish(self) -> Result<FinishedFolder, WeightFileError> {
        self.finish_with(serde_json::Value::Null)
    }

    /// As [`finish`](Self::finish), with something for the lead to read:
    /// [`GatheredFolder::notes`](crate::GatheredFolder::notes).
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish).
    pub fn finish_with(self, note: serde_json::Value) -> Result<FinishedFolder, WeightFileError> {
        FinishedFolder::new(self, note)
    }

    /// Makes the files visible and returns the folder's path: [`finish`](Self::finish) and
    /// [`FinishedFolder::commit`] in one, for the only writer.
    ///
    /// # Errors
    /// If the disk refuses; what was there before is then still there.
    pub fn commit(self) -> Result<PathBuf, WeightFileError> {
        self.finish()?.commit()
    }
}

/// A file that other ranks write too, opened when this rank has something for it.
struct Shared<'a> {
    writer: &'a FolderWriter,
    path: &'a Path,
    total: u64,
    file: Option<Box<dyn FileOut>>,
    at: u64,
    tally: Tally,
}

impl<'a> Shared<'a> {
    fn new(writer: &'a FolderWriter, path: &'a Path, total: u64) -> Self {
        Self { writer, path, total, file: None, at: 0, tally: Tally::new(writer.summed) }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                self.writer.add_folders(self.path)?;
                empty.insert(self.writer.disk.share(self.path, self.total)?)
            }
        };
        if self.at != at {
            file.seek_to(at)?;
        }
        file.write_all(bytes)?;
        self.at = at + bytes.len() as u64;
        self.tally.add(at, bytes);
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<Vec<crate::Piece>> {
        if let Some(file) = &mut self.file {
            file.flush()?;
            file.sync()?;
        }
        Ok(self.tally.pieces())
    }
}

/// As PyTorch writes it.
fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "pt".to_owned())])
}

fn described<'a>(tensors: &'a [(String, TensorView<'_>)]) -> (Vec<TensorSpec>, BTreeMap<&'a str, &'a [u8]>) {
    let specs = tensors.iter().map(|(n, t)| TensorSpec::new(n.clone(), t.dtype, t.shape)).collect();
    (specs, tensors.iter().map(|(n, t)| (n.as_str(), t.bytes)).collect())
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
