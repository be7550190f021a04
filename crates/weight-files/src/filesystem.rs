//! The operations that writing needs, as a seam: the real disk, or one that fails on purpose.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file that can be forced to disk.
pub trait FileOut: Write {
    /// Returns when everything written is on the disk.
    ///
    /// # Errors
    /// As the operating system reports.
    fn sync(&mut self) -> io::Result<()>;
    /// Goes on writing at this byte.
    ///
    /// # Errors
    /// As the operating system reports.
    fn seek_to(&mut self, byte: u64) -> io::Result<()>;
}

/// What [`FolderWriter`](crate::FolderWriter) asks of a disk.
pub trait Filesystem: Debug + Send + Sync {
    /// Creates (or empties) a file.
    ///
    /// # Errors
    /// As the operating system reports.
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileOut>>;
    /// Opens a file of `bytes` bytes that other ranks write too; whoever is first creates it, full of zeros. What is in
    /// it stays.
    ///
    /// # Errors
    /// As the operating system reports.
    fn share(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn FileOut>>;
    /// Creates a folder and its parents.
    ///
    /// # Errors
    /// As the operating system reports.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Creates a folder, if need be, in one that exists.
    ///
    /// # Errors
    /// As the operating system reports.
    fn add_folder(&self, path: &Path) -> io::Result<()>;
    /// Renames, replacing a file of that name.
    ///
    /// # Errors
    /// As the operating system reports.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns when the names inside a folder are on the disk.
    ///
    /// # Errors
    /// As the operating system reports.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// The machine's own file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl FileOut for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }

    fn seek_to(&mut self, byte: u64) -> io::Result<()> {
        self.seek(SeekFrom::Start(byte)).map(drop)
    }
}

impl Filesystem for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileOut>> {
        Ok(Box::new(File::create(path)?))
    }

    fn share(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn FileOut>> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        file.set_len(bytes)?;
        Ok(Box::new(file))
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn add_folder(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        if cfg!(windows) {
            return Ok(()); // Windows has no handle of a folder to flush; its renames are journalled.
        }
        match File::open(path)?.sync_all() {
            // Some network file systems cannot flush a folder: the rename is as safe there as they make it.
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
            other => other,
        }
    }
}

/// A disk with room for a given number of bytes, for tests of what happens when it is full.
#[derive(Debug)]
pub struct FullDisk {
    left: std::sync::Arc<AtomicU64>,
}

impl FullDisk {
    /// A disk on which `bytes` more bytes fit.
    #[must_use]
    pub fn with_room_for(bytes: u64) -> Self {
        Self { left: std::sync::Arc::new(AtomicU64::new(bytes)) }
    }
}

struct FullFile {
    file: Box<dyn FileOut>,
    left: std::sync::Arc<AtomicU64>,
}

impl Write for FullFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        let n = self.file.write(&bytes[..bytes.len().min(left as usize)])?;
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left.store(left - n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl FileOut for FullFile {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    fn seek_to(&mut self, byte: u64) -> io::Result<()> {
        self.file.seek_to(byte)
    }
}

impl Filesystem for FullDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileOut>> {
        Ok(Box::new(FullFile { file: Disk.create(path)?, left: self.left.clone() }))
    }

    /// As on most disks, only what is written takes room.
    fn share(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn FileOut>> {
        Ok(Box::new(FullFile { file: Disk.share(path, bytes)?, left: self.left.clone() }))
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        Disk.create_folder(path)
    }

    fn add_folder(&self, path: &Path) -> io::Result<()> {
        Disk.add_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        Disk.sync_folder(path)
    }
}
