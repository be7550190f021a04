//! Names of unfinished work, and what becomes of it after a crash.
//!
//! `<name>.partial-<pid>` is being written by process `pid`; `<name>.replaced-<pid>` is the old folder of a
//! replacement that was cut off between its two renames. Neither is ever read as data.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::StoreError;

const PARTIAL: &str = ".partial-";
const REPLACED: &str = ".replaced-";

/// Where `target` is written before its rename.
pub(crate) fn partial(target: &Path) -> PathBuf {
    beside(target, PARTIAL)
}

/// Where an old `target` waits while the new one takes its name.
pub(crate) fn replaced(target: &Path) -> PathBuf {
    beside(target, REPLACED)
}

fn beside(target: &Path, mark: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(mark);
    name.push(std::process::id().to_string());
    target.with_file_name(name)
}

/// The folder that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Whether a file or folder name is one of unfinished work.
#[must_use]
pub fn is_unfinished(name: &str) -> bool {
    split(name).is_some()
}

fn split(name: &str) -> Option<(&str, &'static str, u32)> {
    [PARTIAL, REPLACED].into_iter().find_map(|mark| {
        let (stem, pid) = name.rsplit_once(mark)?;
        Some((stem, mark, pid.parse().ok()?))
    })
}

/// Removes what crashed writers left in `folder`, and puts back a folder whose replacement was cut off.
/// Work of processes that still run is left alone. Returns what was removed or put back.
///
/// # Errors
/// If the folder cannot be listed or a leftover not removed.
pub fn clean_unfinished(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, StoreError> {
    clean(folder.as_ref(), |_| true)
}

/// Removes a folder so that it is there whole or not at all: it loses its name first. What a crash leaves of it is
/// cleaned like any unfinished work.
///
/// # Errors
/// If it cannot be renamed or removed.
pub fn remove_folder(path: impl AsRef<Path>) -> Result<(), StoreError> {
    let path = path.as_ref();
    clean_target(path)?;
    let doomed = partial(path);
    fs::rename(path, &doomed)
        .and_then(|()| fs::remove_dir_all(&doomed))
        .map_err(|e| StoreError::writing("remove", path, 0, e))
}

/// As [`clean_unfinished`], for the leftovers of one target only (those of this process included).
pub(crate) fn clean_target(target: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let Some(name) = target.file_name().and_then(|n| n.to_str()) else { return Ok(Vec::new()) };
    if !parent(target).is_dir() {
        return Ok(Vec::new());
    }
    clean(parent(target), |stem| stem == name)
}

fn clean(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, StoreError> {
    let mut cleaned = Vec::new();
    let listing = fs::read_dir(folder).map_err(|e| StoreError::reading("list", folder, e))?;
    for path in listing.flatten().map(|e| e.path()) {
        let Some((stem, mark, pid)) = path.file_name().and_then(|n| n.to_str()).and_then(split) else {
            continue;
        };
        if !wanted(stem) || (pid != std::process::id() && owner_runs(pid, &path)) {
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
                return Err(StoreError::writing("remove the leftover", &path, 0, e));
            }
            _ => cleaned.push(path),
        }
    }
    Ok(cleaned)
}

/// Whether the process that left `path` may still run: one of its number does, and did when the leftover was last
/// touched (numbers are used again, in containers soon). Where it cannot be told, it does not run: leftovers go.
fn owner_runs(pid: u32, path: &Path) -> bool {
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
