//! `UnfinishedFile`: one file, written piece by piece and named when it is done.

use std::fs;
use std::path::{Path, PathBuf};

use crate::partial::{Unfinished, clean_target, parent, partial};
use crate::{Attempt, Disk, FileOut, Filesystem, WeightFileError};

/// A file that gets its name by a rename when it is done: readers see the old one or the new one. Dropped before
/// [`UnfinishedFile::commit`], nothing of it stays.
pub struct UnfinishedFile {
    target: PathBuf,
    unfinished: Unfinished,
    file: Box<dyn FileOut>,
    written: u64,
}

impl UnfinishedFile {
    /// Begins a file that will be called `path`; what a crashed writer left of the same is removed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, WeightFileError> {
        let target = path.as_ref().to_path_buf();
        clean_target(&target)?;
        let unfinished = Unfinished::new(partial(&target, Attempt::fresh()), true);
        let file = Disk
            .create_folder(parent(&target))
            .and_then(|()| Disk.create(unfinished.path()))
            .map_err(|e| WeightFileError::writing("create", &target, 0, e))?;
        Ok(Self { target, unfinished, file, written: 0 })
    }

    /// Where it lies until it has its name.
    #[must_use]
    pub fn unfinished_path(&self) -> &Path {
        self.unfinished.path()
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WeightFileError> {
        self.written += bytes.len() as u64;
        let (target, written) = (&self.target, self.written);
        self.file.write_all(bytes).map_err(|e| WeightFileError::writing("write", target, written, e))
    }

    /// Brings all bytes to the disk.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&mut self) -> Result<(), WeightFileError> {
        let synced = self.file.flush().and_then(|()| self.file.sync());
        synced.map_err(|e| WeightFileError::writing("write", &self.target, self.written, e))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If the disk refuses; an old file is then still there.
    pub fn commit(mut self) -> Result<(), WeightFileError> {
        self.sync()?;
        Disk.rename(self.unfinished.path(), &self.target)
            .and_then(|()| Disk.sync_folder(parent(&self.target)))
            .map_err(|e| WeightFileError::writing("write", &self.target, self.written, e))
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        // After a commit it is not there; what cannot be removed is cleaned later.
        let _ = fs::remove_file(self.unfinished.path());
    }
}
