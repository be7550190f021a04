//! Names of unfinished work, and what becomes of it after a crash.
//!
//! `<name>.partial-<attempt>` is being written; `<name>.replaced-<attempt>` is the old folder of a replacement that was
//! cut off between its two renames. Neither is ever read as data. An attempt names the process that leads it and the
//! system on which that number means something ([`Attempt`]); older versions wrote the process number alone.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::attempt::this_host;
use crate::{Attempt, WeightFileError};

const PARTIAL: &str = ".partial-";
const REPLACED: &str = ".replaced-";
/// Whether the process of another host still runs cannot be asked: its work is a leftover when nobody has touched it for
/// this long.
const FORSAKEN: Duration = Duration::from_secs(6 * 3600);

/// Unfinished names that this process leads right now.
static LIVE: Mutex<BTreeSet<OsString>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<OsString>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where `target` is written before its rename.
pub(crate) fn partial(target: &Path, attempt: Attempt) -> PathBuf {
    beside(target, PARTIAL, attempt)
}

/// Where an old `target` waits while the new one takes its name.
pub(crate) fn replaced(target: &Path, attempt: Attempt) -> PathBuf {
    beside(target, REPLACED, attempt)
}

fn beside(target: &Path, mark: &str, attempt: Attempt) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(mark);
    name.push(attempt.suffix());
    target.with_file_name(name)
}

/// The folder that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// An unfinished folder as one of its writers holds it. The lead's takes the folder with it when it is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    leads: bool,
}

impl Unfinished {
    pub(crate) fn new(path: PathBuf, leads: bool) -> Self {
        if leads {
            live().insert(path.file_name().unwrap_or_default().to_os_string());
        }
        Self { path, leads }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.leads {
            // After a commit it has another name or is empty; what cannot be removed is cleaned later.
            let _ = fs::remove_dir_all(&self.path);
            live().remove(self.path.file_name().unwrap_or_default());
        }
    }
}

/// Whose unfinished work a name says it is.
enum Owner {
    /// Of a process, whatever the host (older versions).
    Process(u32),
    Attempt(Attempt),
}

/// Whether a file or folder name is one of unfinished work.
#[must_use]
pub fn is_unfinished(name: &str) -> bool {
    split(name).is_some()
}

fn split(name: &str) -> Option<(&str, &'static str, Owner)> {
    [PARTIAL, REPLACED].into_iter().find_map(|mark| {
        let (stem, suffix) = name.rsplit_once(mark)?;
        let owner = match suffix.parse() {
            Ok(pid) => Owner::Process(pid),
            Err(_) => Owner::Attempt(Attempt::parse(suffix)?),
        };
        Some((stem, mark, owner))
    })
}

/// Removes what crashed writers left in `folder`, and puts back a folder whose replacement was cut off.
/// Work that is still being done is left alone: that of processes that run, and that of other hosts unless nobody has
/// touched it for six hours. Returns what was removed or put back.
///
/// # Errors
/// If the folder cannot be listed or a leftover not removed.
pub fn clean_unfinished(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, WeightFileError> {
    clean(folder.as_ref(), |_| true)
}

/// Removes a folder so that it is there whole or not at all: it loses its name first. What a crash leaves of it is
/// cleaned like any unfinished work.
///
/// # Errors
/// If it cannot be renamed or removed.
pub fn remove_folder(path: impl AsRef<Path>) -> Result<(), WeightFileError> {
    let path = path.as_ref();
    clean_target(path)?;
    let doomed = Unfinished::new(partial(path, Attempt::fresh()), true);
    fs::rename(path, doomed.path())
        .and_then(|()| fs::remove_dir_all(doomed.path()))
        .map_err(|e| WeightFileError::writing("remove", path, 0, e))
}

/// As [`clean_unfinished`], for the leftovers of one target only.
pub(crate) fn clean_target(target: &Path) -> Result<Vec<PathBuf>, WeightFileError> {
    let Some(name) = target.file_name().and_then(|n| n.to_str()) else { return Ok(Vec::new()) };
    if !parent(target).is_dir() {
        return Ok(Vec::new());
    }
    clean(parent(target), |stem| stem == name)
}

fn clean(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, WeightFileError> {
    let mut cleaned = Vec::new();
    let listing = fs::read_dir(folder).map_err(|e| WeightFileError::reading("list", folder, e))?;
    for path in listing.flatten().map(|e| e.path()) {
        let Some((stem, mark, owner)) = path.file_name().and_then(|n| n.to_str()).and_then(split) else {
            continue;
        };
        if !wanted(stem) || being_written(&owner, &path) {
            continue;
        }
        let target = folder.join(stem);
        let done = if mark == REPLACED && !target.exists() {
            fs::rename(&path, &target)
        } else if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match done {
            // Another process may have been faster.
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(WeightFileError::writing("remove the leftover", &path, 0, e));
            }
            _ => cleaned.push(path),
        }
    }
    Ok(cleaned)
}

fn being_written(owner: &Owner, path: &Path) -> bool {
    let own = std::process::id();
    match owner {
        // This version writes no such names: an earlier process had this number.
        Owner::Process(pid) => *pid != own && runs(*pid, path),
        Owner::Attempt(a) if a.host != this_host() => touched_lately(path),
        Owner::Attempt(a) if a.pid == own => {
            // A replaced folder lies beside the partial one that takes its place.
            let name = path.file_name().unwrap_or_default();
            let partial = name.to_str().map(|n| OsString::from(n.replace(REPLACED, PARTIAL)));
            live().contains(name) || partial.is_some_and(|p| live().contains(&p))
        }
        Owner::Attempt(a) if Path::new("/proc/self").exists() => runs(a.pid, path),
        // Nobody to ask about processes.
        Owner::Attempt(_) => touched_lately(path),
    }
}

/// Whether anything in it was written within [`FORSAKEN`] (or in the future of this clock).
fn touched_lately(path: &Path) -> bool {
    let recent = |path: &Path| {
        let touched = fs::metadata(path).and_then(|m| m.modified());
        touched.is_ok_and(|t| SystemTime::now().duration_since(t).map_or(true, |age| age < FORSAKEN))
    };
    let inside = || fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
    recent(path) || (path.is_dir() && inside().any(|p| touched_lately(&p)))
}

/// Whether the process that left `path` may still run: one of its number does, and did when the leftover was last
/// touched (numbers are used again, in containers soon). Where it cannot be told, it does not run: leftovers go.
fn runs(pid: u32, path: &Path) -> bool {
    if !Path::new("/proc").join(pid.to_string()).exists() {
        return false;
    }
    let touched = fs::metadata(path).and_then(|m| m.modified()).ok();
    let touched = touched.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_secs());
    match (started(pid), touched) {
        // Both are whole seconds of clocks that may differ a little.
        (Some(started), Some(touched)) => started <= touched + 2,
        _ => true,
    }
}

/// When a process started, in seconds since 1970 (proc(5): `btime` of `/proc/stat`, field 22 of `/proc/[pid]/stat` in
/// hundredths of a second).
fn started(pid: u32) -> Option<u64> {
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = boot.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command (field 2) is in brackets and may hold anything.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(boot + ticks / 100)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_they_are() {
        let attempt = Attempt::fresh();
        let name = format!("checkpoint-5{PARTIAL}{}", attempt.suffix());
        let Some((stem, mark, Owner::Attempt(parsed))) = split(&name) else { panic!("{name}") };
        assert_eq!((stem, mark, parsed), ("checkpoint-5", PARTIAL, attempt));
        assert!(matches!(split("a.replaced-12"), Some(("a", REPLACED, Owner::Process(12)))));
        for other in ["my.partial-notes", "a.partial-", "a.partial-1-2", "a.partial-1-zz-0", "a.partial--1"] {
            assert!(split(other).is_none(), "{other}");
        }
    }

    #[test]
    fn work_of_other_hosts_is_left_until_nobody_touches_it() {
        let root = tempfile::tempdir().unwrap();
        let theirs = Attempt { host: !this_host(), ..Attempt::fresh() };
        let folder = partial(&root.path().join("out"), theirs);
        fs::create_dir_all(folder.join("state")).unwrap();
        let file = folder.join("state/data");
        fs::write(&file, b"x").unwrap();
        let age = |path: &Path, hours: u64| {
            let at = SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::open(path).unwrap().set_modified(at).unwrap();
        };
        for path in [&folder, &folder.join("state")] {
            age(path, 30);
        }
        assert_eq!(clean_unfinished(root.path()).unwrap().len(), 0, "the file is new");
        age(&file, 30);
        assert_eq!(clean_unfinished(root.path()).unwrap(), [folder]);
    }

    #[test]
    fn work_of_this_process_is_left_while_someone_does_it() {
        let root = tempfile::tempdir().unwrap();
        let (target, attempt) = (root.path().join("out"), Attempt::fresh());
        let unfinished = Unfinished::new(partial(&target, attempt), true);
        fs::create_dir(unfinished.path()).unwrap();
        fs::create_dir(replaced(&target, attempt)).unwrap();
        assert_eq!(clean_target(&target).unwrap().len(), 0);
        drop(unfinished);
        assert!(!partial(&target, attempt).exists());
        assert_eq!(clean_target(&target).unwrap().len(), 1, "the replaced folder is put back");
        assert!(target.exists());
    }
}
