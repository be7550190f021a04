//! `FolderLock`: one run at a time writes an output folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use burnish_weight_files::WeightFileError;
use serde::{Deserialize, Serialize};

use crate::CheckpointError;

/// The file's name in the folder.
const FILE: &str = ".burnish-lock";

/// Who holds, or held, an output folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockOwner {
    /// The machine's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// When it took the folder, in seconds since 1970.
    pub since: u64,
}

impl LockOwner {
    fn this() -> Self {
        let words: Vec<String> = std::env::args_os().map(|w| w.to_string_lossy().into_owned()).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { host: host(), pid: std::process::id(), command: words.join(" "), since }
    }

    /// Who has `folder` in use now, as far as can be told: a run of another machine counts as going on.
    #[must_use]
    pub fn of(folder: impl AsRef<Path>) -> Option<Self> {
        let text = burnish_core::file::read(folder.as_ref().join(FILE)).ok()?;
        serde_json::from_slice::<Self>(&text).ok().filter(|owner| !owner.is_gone())
    }

    /// Whether its process is known to be gone: of this machine, and not running.
    fn is_gone(&self) -> bool {
        let processes = Path::new("/proc");
        self.host == host()
            && processes.join("self").exists()
            && !processes.join(self.pid.to_string()).exists()
    }
}

impl std::fmt::Display for LockOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, pid, command, since } = self;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let minutes = now.saturating_sub(*since) / 60;
        let shown: String = command.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
        write!(f, "process {pid} on {host} since {}h{:02}m (`{shown}`)", minutes / 60, minutes % 60)
    }
}

/// An output folder in use by this process until this is dropped. The system releases it when the process ends in
/// whatever way, so that a run which was killed keeps nobody out.
///
/// ```
/// use burnish_checkpoint::{CheckpointError, FolderLock};
/// let dir = tempfile::tempdir().unwrap();
/// let (held, before) = FolderLock::take(dir.path()).unwrap();
/// assert!(before.is_none());
/// let refused = FolderLock::take(dir.path());
/// assert!(matches!(refused, Err(CheckpointError::InUse { .. })));
/// drop(held);
/// assert!(FolderLock::take(dir.path()).is_ok());
/// ```
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    /// The lock is the system's, on this handle.
    _file: File,
}

impl FolderLock {
    /// Takes an output folder that exists; and whom it was taken from, where a run ended without giving it back.
    ///
    /// # Errors
    /// If a run that goes on holds it, or the disk refuses.
    pub fn take(folder: impl AsRef<Path>) -> Result<(Self, Option<LockOwner>), CheckpointError> {
        let path = folder.as_ref().join(FILE);
        let refused = |source| WeightFileError::Io { action: "lock", path: path.clone(), source };
        loop {
            // What is not a plain file would be waited for.
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
                let source = std::io::Error::other("it is not a regular file; remove it");
                return Err(refused(source).into());
            }
            let mut options = OpenOptions::new();
            let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = opened.map_err(refused)?;
            let before = |file: &mut File| -> Option<LockOwner> {
                let mut text = String::new();
                file.take(1 << 16).read_to_string(&mut text).ok()?;
                serde_json::from_str(&text).ok()
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let owner = before(&mut file);
                    return Err(CheckpointError::InUse { path: folder.as_ref().to_path_buf(), owner });
                }
                // A file system without locks: what the file says has to do.
                Err(TryLockError::Error(_)) => {
                    let owner = before(&mut file);
                    if owner.as_ref().is_some_and(|owner| !owner.is_gone()) {
                        return Err(CheckpointError::InUse { path: folder.as_ref().to_path_buf(), owner });
                    }
                    file.rewind().map_err(refused)?;
                }
            }
            // Whoever held it before may have removed the file since it was opened.
            if !same_file(&file, &path) {
                continue;
            }
            let stale = before(&mut file);
            let own = serde_json::to_string(&LockOwner::this()).unwrap_or_default();
            let written =
                file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(own.as_bytes()));
            written.map_err(|source| match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    WeightFileError::DiskFull { path: path.clone(), bytes: own.len() as u64 }
                }
                _ => refused(source),
            })?;
            return Ok((Self { path, _file: file }, stale));
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Removed while it is held; who waits with the file open looks again.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(unix)]
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let at = |m: fs::Metadata| (m.dev(), m.ino());
    matches!((file.metadata().map(at), fs::metadata(path).map(at)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(not(unix))]
fn same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

fn host() -> String {
    let known = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let named = known.or_else(|| std::env::var("COMPUTERNAME").or_else(|_| std::env::var("HOSTNAME")).ok());
    named.map_or_else(|| "this machine".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_taken_over_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let gone = LockOwner { pid: 7, ..LockOwner::this() };
        fs::write(dir.path().join(FILE), serde_json::to_string(&gone).unwrap()).unwrap();
        let (held, before) = FolderLock::take(dir.path()).unwrap();
        assert_eq!(before, Some(gone));
        let Err(CheckpointError::InUse { owner: Some(owner), .. }) = FolderLock::take(dir.path()) else {
            panic!("taken twice")
        };
        assert_eq!(owner.pid, std::process::id());
        drop(held);
        assert!(!dir.path().join(FILE).exists());
    }
}
