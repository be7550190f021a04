//! `ComparedFile`: a large file that ranks must have alike. Which file of which machine it is decides whether it is read.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::DIGEST;
use crate::TrainError;

/// Bytes of a file that one thread reads at a time.
const SEGMENT: u64 = 8 << 20;
/// Most threads that read.
const THREADS: usize = 16;

/// A file that is read only where ranks have different ones.
#[derive(Clone, Debug)]
pub(super) struct ComparedFile {
    name: String,
    path: PathBuf,
    place: [u8; DIGEST],
}

impl ComparedFile {
    pub(super) fn new(name: &str, path: &Path, found: &Metadata) -> Self {
        // Where a machine cannot tell its files apart, every process has its own.
        let place = place(found).unwrap_or_else(|| format!("process {}", std::process::id()));
        Self {
            name: name.to_owned(),
            path: path.to_path_buf(),
            place: *blake3::hash(place.as_bytes()).as_bytes(),
        }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A digest of its machine, its number there, its length and when it was last changed.
    pub(super) fn place(&self) -> [u8; DIGEST] {
        self.place
    }

    /// A digest of its content: BLAKE3 of the BLAKE3 of each segment, which the processor's cores read side by side.
    pub(super) fn digest(&self) -> Result<[u8; DIGEST], TrainError> {
        let failed = |source| TrainError::Unreadable { path: self.path.display().to_string(), source };
        let length = std::fs::metadata(&self.path).map_err(failed)?.len();
        let segments = length.div_ceil(SEGMENT);
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let next = AtomicU64::new(0);
        let found = Mutex::new(vec![[0; DIGEST]; usize::try_from(segments).unwrap_or(0)]);
        let read = || -> io::Result<()> {
            let mut file = File::open(&self.path)?;
            let mut bytes = Vec::new();
            loop {
                let segment = next.fetch_add(1, Ordering::Relaxed);
                if segment >= segments {
                    return Ok(());
                }
                file.seek(SeekFrom::Start(segment * SEGMENT))?;
                bytes.clear();
                (&mut file).take(SEGMENT).read_to_end(&mut bytes)?;
                let digest = *blake3::hash(&bytes).as_bytes();
                found.lock().unwrap_or_else(PoisonError::into_inner)[segment as usize] = digest;
            }
        };
        std::thread::scope(|scope| {
            let threads = cores.min(THREADS).min(usize::try_from(segments).unwrap_or(1));
            let reading: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, io::Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that reads it panicked")))
            };
            reading.into_iter().try_for_each(ended)
        })
        .map_err(failed)?;
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(*blake3::hash(found.as_flattened()).as_bytes())
    }
}

/// Which file of which machine it is, and in which state.
#[cfg(unix)]
fn place(found: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    // Of one start of one machine; where there is none, files cannot be told from those of another machine.
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!(
        "{} {} {} {} {}.{} {}.{}",
        machine.trim(),
        found.dev(),
        found.ino(),
        found.len(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec()
    ))
}

#[cfg(not(unix))]
fn place(_: &Metadata) -> Option<String> {
    None
}
