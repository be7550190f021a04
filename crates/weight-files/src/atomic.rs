//! One file, replaced by a rename.

use std::fs;
use std::path::Path;

use crate::partial::{Unfinished, parent, partial};
use crate::{Attempt, Disk, Filesystem, WeightFileError};

/// Replaces one file by a rename: readers see the old bytes or the new ones.
///
/// # Errors
/// If the disk refuses; the old file is then still there.
pub fn write_atomic(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), WeightFileError> {
    write_atomic_on(&Disk, path.as_ref(), bytes)
}

/// As [`write_atomic`], on another file system.
///
/// # Errors
/// Those of [`write_atomic`].
pub fn write_atomic_on(disk: &dyn Filesystem, path: &Path, bytes: &[u8]) -> Result<(), WeightFileError> {
    let unfinished = Unfinished::new(partial(path, Attempt::fresh()), true);
    let staging = unfinished.path();
    let written = disk
        .create_folder(parent(path))
        .and_then(|()| disk.create(staging))
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.flush()?;
            file.sync()
        })
        .and_then(|()| disk.rename(staging, path))
        .and_then(|()| disk.sync_folder(parent(path)));
    written.map_err(|e| {
        let _ = fs::remove_file(staging);
        WeightFileError::writing("write", path, bytes.len() as u64, e)
    })
}
