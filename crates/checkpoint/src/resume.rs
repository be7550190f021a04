//! Resuming and rotation: the newest complete checkpoint of an output folder, and deletion of the oldest beyond
//! `save_total_limit`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burnish_weight_files::{WeightFileError, clean_unfinished, remove_folder};

use crate::{Checkpoint, CheckpointError, index};

/// The newest checkpoint that can be used, and those that cannot.
#[derive(Debug, Default)]
pub struct Latest {
    /// Open and, from [`latest`], verified; `None` if there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that were skipped, and why.
    pub skipped: Vec<(PathBuf, CheckpointError)>,
}

/// Finds the newest complete checkpoint of an output folder and verifies all of its checksums. Leftovers of crashed
/// saves are cleaned; damaged checkpoints are skipped and reported, never removed.
///
/// # Errors
/// If the disk refuses to be read, or checkpoints are of several runs. That nothing is there is not an error (see [`resume`]).
pub fn latest(output_dir: impl AsRef<Path>) -> Result<Latest, CheckpointError> {
    newest(output_dir.as_ref(), None, Checkpoint::verify_alone)
}

fn newest(
    output_dir: &Path,
    before: Option<u64>,
    check: impl Fn(&Checkpoint) -> Result<(), CheckpointError>,
) -> Result<Latest, CheckpointError> {
    // A folder that cannot be cleaned (read-only) can still be resumed from.
    let _ = clean_unfinished(output_dir);
    one_run(output_dir)?;
    let mut found = Latest::default();
    let steps = steps(output_dir).into_iter().filter(|(step, _)| before.is_none_or(|b| *step < b));
    for (_, path) in steps.rev() {
        let opened = Checkpoint::open_alone(&path).and_then(|c| check(&c).map(|()| c));
        match opened {
            Ok(checkpoint) => {
                found.checkpoint = Some(checkpoint);
                break;
            }
            Err(error) if error.is_damage() => found.skipped.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    // What was skipped can say where to go instead.
    let usable = found.checkpoint.as_ref().map(|c| c.path().to_path_buf());
    found.skipped = found.skipped.into_iter().map(|(p, e)| (p, e.with_previous(usable.clone()))).collect();
    Ok(found)
}

/// The newest checkpoint of a step below `before` (if given) whose files are there in full length, without reading them:
/// for ranks that check it together by [`Checkpoint::verify_share`], and ask for the one before it if that fails.
/// Leftovers of crashed saves are cleaned; damaged checkpoints are skipped and reported.
///
/// # Errors
/// As [`latest`].
pub fn open_newest(output_dir: impl AsRef<Path>, before: Option<u64>) -> Result<Latest, CheckpointError> {
    newest(output_dir.as_ref(), before, |_| Ok(()))
}

/// As [`latest`], where there must be one.
///
/// # Errors
/// As [`latest`]; [`CheckpointError::NothingToResume`] says what was skipped and why.
pub fn resume(
    output_dir: impl AsRef<Path>,
) -> Result<(Checkpoint, Vec<(PathBuf, CheckpointError)>), CheckpointError> {
    let Latest { checkpoint, skipped } = latest(output_dir.as_ref())?;
    match checkpoint {
        Some(checkpoint) => Ok((checkpoint, skipped)),
        None => Err(CheckpointError::NothingToResume {
            path: output_dir.as_ref().to_path_buf(),
            skipped: skipped.into_iter().map(|(p, e)| (p, e.to_string())).collect(),
        }),
    }
}

/// Removes the oldest checkpoints of `run` until `save_total_limit` are left, as Transformers does: the newest and `best`
/// are never removed, even if that leaves one more. Only folders with a burnish index that says `run` are counted or
/// removed. Returns what was removed. A limit of `None` or 0 keeps all.
///
/// # Errors
/// If the disk refuses.
pub fn rotate(
    output_dir: impl AsRef<Path>,
    run: Option<&str>,
    save_total_limit: Option<usize>,
    best: Option<&Path>,
) -> Result<Vec<PathBuf>, CheckpointError> {
    let Some(limit) = save_total_limit.filter(|&l| l > 0) else { return Ok(Vec::new()) };
    let mut ours: Vec<PathBuf> = steps(output_dir.as_ref()).into_iter().map(|(_, p)| p).collect();
    ours.retain(|p| p.join(index::FILE).is_file() && run_of(p).as_deref() == run);
    let newest = ours.last().cloned();
    // A best checkpoint may be given relative to somewhere else: its name in this folder is what counts.
    let best = best.and_then(Path::file_name);
    let protected = |p: &PathBuf| Some(p) == newest.as_ref() || (best.is_some() && p.file_name() == best);
    let keep = limit.max(ours.iter().filter(|p| protected(p)).count());
    let excess = ours.len().saturating_sub(keep);
    let doomed: Vec<PathBuf> = ours.into_iter().filter(|p| !protected(p)).take(excess).collect();
    for path in &doomed {
        remove_folder(path)?;
    }
    Ok(doomed)
}

/// Checkpoints that were moved out of a run's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// The folder that they are in now.
    pub folder: PathBuf,
    /// Their names there.
    pub names: Vec<String>,
}

/// Moves checkpoints that a run did not write out of its way, into a new folder `earlier-{n}` of the output folder: for a
/// new run (`done` is `None`) all that are there, for one that goes on after `done` steps those of other runs, and later
/// ones of its own, which it would write again or count as newer. None of `inputs` may lie in them.
///
/// # Errors
/// If an input lies in one of them, or the disk refuses.
pub fn set_aside(
    output_dir: impl AsRef<Path>,
    run: &str,
    done: Option<u64>,
    inputs: &[&Path],
) -> Result<Option<SetAside>, CheckpointError> {
    let dir = output_dir.as_ref();
    let in_the_way = |(step, path): &(u64, PathBuf)| match done {
        None => true,
        Some(done) => *step > done || run_of(path).is_some_and(|of| of != run),
    };
    let moved: Vec<PathBuf> = steps(dir).into_iter().filter(in_the_way).map(|(_, path)| path).collect();
    if moved.is_empty() {
        return Ok(None);
    }
    for input in inputs {
        let lies_in = |path: &PathBuf| matches!((input.canonicalize(), path.canonicalize()), (Ok(i), Ok(p)) if i.starts_with(&p));
        if moved.iter().any(lies_in) {
            let (path, input) = (dir.to_path_buf(), input.to_path_buf());
            return Err(CheckpointError::InputWouldMove { path, input });
        }
    }
    let refused = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| WeightFileError::Io { action, path, source }
    };
    let mut number = 1;
    let folder = loop {
        let folder = dir.join(format!("earlier-{number}"));
        match fs::create_dir(&folder) {
            Ok(()) => break folder,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(refused("create", &folder)(e).into()),
        }
    };
    let mut names = Vec::new();
    for path in moved {
        let name = path.file_name().unwrap_or_default();
        fs::rename(&path, folder.join(name)).map_err(refused("set aside", &path))?;
        names.push(name.to_string_lossy().into_owned());
    }
    Ok(Some(SetAside { folder, names }))
}

/// The run that a checkpoint's index names, whether or not the rest of it is whole.
fn run_of(checkpoint: &Path) -> Option<String> {
    index::unseal(&burnish_core::file::read(checkpoint.join(index::FILE)).ok()?).ok()?.run
}

/// That the checkpoints of a folder are of one run, as far as they say.
fn one_run(output_dir: &Path) -> Result<(), CheckpointError> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (step, path) in steps(output_dir) {
        if let Some(run) = run_of(&path) {
            runs.entry(run).or_default().push(format!("checkpoint-{step}"));
        }
    }
    if runs.len() < 2 {
        return Ok(());
    }
    let path = output_dir.to_path_buf();
    let said = |(run, names): (String, Vec<String>)| format!("{run}: {}", names.join(", "));
    Err(CheckpointError::SeveralRuns { path, runs: runs.into_iter().map(said).collect() })
}

/// All `checkpoint-{step}` folders by step.
pub(crate) fn steps(output_dir: &Path) -> Vec<(u64, PathBuf)> {
    let step = |path: &Path| path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse::<u64>().ok();
    let entries = fs::read_dir(output_dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut found: Vec<(u64, PathBuf)> =
        entries.filter(|p| p.is_dir()).filter_map(|p| Some((step(&p)?, p))).collect();
    found.sort();
    found
}

/// The newest complete checkpoint other than `not`.
pub(crate) fn newest_complete(output_dir: &Path, not: Option<&Path>) -> Option<PathBuf> {
    let candidates = steps(output_dir).into_iter().rev().map(|(_, p)| p);
    candidates
        .filter(|p| not.is_none_or(|n| n.file_name() != p.file_name()))
        .find(|p| Checkpoint::open_alone(p).is_ok_and(|c| c.verify_alone().is_ok()))
}
