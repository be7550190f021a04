//! Bytes off the disk, compared with what was written.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use burnish_core::work::{Unit, Work};
use burnish_weight_files::{LEAF, WeightFileError, leaf_sum, read_at};

use crate::index::{Chunk, FileSum, sum};
use crate::resume::newest_complete;
use crate::{Checkpoint, CheckpointError, Damage};

impl Checkpoint {
    pub(crate) fn suggesting(path: &Path, error: CheckpointError) -> CheckpointError {
        if !error.is_damage() {
            return error;
        }
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        error.with_previous(newest_complete(parent, Some(path)))
    }

    /// Compares the checksum of every file with what was written.
    ///
    /// # Errors
    /// Names the first file that differs and the newest complete checkpoint beside this one.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.verify_alone().map_err(|e| Self::suggesting(&self.path, e))
    }

    pub(crate) fn verify_alone(&self) -> Result<(), CheckpointError> {
        self.verify_share_alone(0, 1)
    }

    /// As [`verify`](Self::verify), for one of `ranks` ranks that share the work: all of them together read everything
    /// once.
    ///
    /// # Errors
    /// Those of [`verify`](Self::verify).
    pub fn verify_share(&self, rank: usize, ranks: usize) -> Result<(), CheckpointError> {
        self.verify_share_alone(rank, ranks).map_err(|e| Self::suggesting(&self.path, e))
    }

    fn verify_share_alone(&self, rank: usize, ranks: usize) -> Result<(), CheckpointError> {
        let all: u64 = self.index.files.values().map(|f| f.bytes).sum();
        let bound = |rank: usize| (u128::from(all) * rank as u128 / ranks.max(1) as u128) as u64;
        // The last rank takes empty files at the end too.
        let mine = bound(rank)..if rank + 1 >= ranks { u64::MAX } else { bound(rank + 1) };
        let mut before = 0;
        let name = self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy();
        let work = Work::begin(format!("checking {name}"), Unit::Bytes, all / ranks.max(1) as u64);
        for (file, written) in &self.index.files {
            if let Some(expected) = written.blake3.as_ref().filter(|_| mine.contains(&before)) {
                let now = self.sum_file(file)?;
                work.advance(written.bytes);
                if now != *expected {
                    return Err(self.wrong_sum(file, "the file", expected, now));
                }
            }
            for (bytes, sum) in written.pieces.iter().flat_map(|p| (0..p.leaves()).filter_map(|k| p.leaf(k)))
            {
                if mine.contains(&(before + bytes.start)) {
                    work.advance(bytes.end - bytes.start);
                    let leaf = self.bytes_of(file, bytes.clone())?;
                    self.compare(file, &leaf, bytes.start, sum)?;
                }
            }
            before += written.bytes;
        }
        Ok(())
    }

    fn sum_file(&self, name: &str) -> Result<String, CheckpointError> {
        let path = self.path.join(name);
        let failed = |source| WeightFileError::Io { action: "read", path: path.clone(), source };
        let mut hasher = blake3::Hasher::new();
        let mut file = burnish_core::file::open(&path).map_err(failed)?;
        hasher.update_reader(&mut file).map_err(failed)?;
        self.bytes_read.fetch_add(hasher.count(), Ordering::Relaxed);
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Compares a leaf's sum with the one in the index.
    fn compare(&self, file: &str, leaf: &[u8], start: u64, expected: &str) -> Result<(), CheckpointError> {
        let got = leaf_sum(leaf);
        if got == expected {
            return Ok(());
        }
        let what = format!("bytes {start}..{}", start + leaf.len() as u64);
        Err(self.wrong_sum(file, &what, expected, got))
    }

    /// Bytes read of this checkpoint so far, its index included.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// A file's bytes as they are.
    pub(crate) fn bytes_of(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path.join(name);
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => {
                CheckpointError::damaged(&self.path, Damage::Missing { file: name.to_owned() })
            }
            std::io::ErrorKind::UnexpectedEof => {
                let expected = self.index.files.get(name).map_or(range.end, |f| f.bytes);
                let got = fs::metadata(&path).map_or(0, |m| m.len());
                CheckpointError::damaged(&self.path, Damage::Size { file: name.to_owned(), expected, got })
            }
            _ => WeightFileError::Io { action: "read", path: path.clone(), source }.into(),
        };
        let file = {
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            match opened.get(name) {
                Some(file) => file.clone(),
                None => {
                    let file = Arc::new(burnish_core::file::open(&path).map_err(failed)?);
                    opened.insert(name.to_owned(), file.clone());
                    file
                }
            }
        };
        let mut out = vec![0; (range.end - range.start) as usize];
        read_at(&file, &mut out, range.start).map_err(failed)?;
        self.bytes_read.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(out)
    }

    /// A file's bytes, checked against the leaves that hold them.
    pub(crate) fn checked(
        &self,
        name: &str,
        written: &FileSum,
        range: Range<u64>,
    ) -> Result<Vec<u8>, CheckpointError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let overlapping = |p: &&burnish_weight_files::Piece| p.start < range.end && range.start < p.end;
        let pieces: Vec<_> = written.pieces.iter().filter(overlapping).collect();
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Err(CheckpointError::damaged(
                &self.path,
                Damage::Size { file: name.to_owned(), expected: range.end, got: written.bytes },
            ));
        };
        let start = range.start - (range.start - first.start) % LEAF;
        let end = (last.start + (range.end - last.start).next_multiple_of(LEAF)).min(last.end);
        let mut bytes = self.bytes_of(name, start..end)?;
        for piece in pieces {
            for (leaf, sum) in (0..piece.leaves()).filter_map(|k| piece.leaf(k)) {
                if start <= leaf.start && leaf.end <= end {
                    let at = |byte: u64| (byte - start) as usize;
                    self.compare(name, &bytes[at(leaf.start)..at(leaf.end)], leaf.start, sum)?;
                }
            }
        }
        bytes.truncate((range.end - start) as usize);
        bytes.drain(..(range.start - start) as usize);
        Ok(bytes)
    }

    pub(crate) fn wrong_sum(&self, file: &str, what: &str, expected: &str, got: String) -> CheckpointError {
        let damage = Damage::Checksum {
            file: file.to_owned(),
            what: what.to_owned(),
            expected: expected.to_owned(),
            got,
        };
        CheckpointError::damaged(&self.path, damage)
    }

    /// Bytes of a file of the index, checked.
    pub(crate) fn part_of(&self, file: &str, range: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let missing = || CheckpointError::damaged(&self.path, Damage::Missing { file: file.to_owned() });
        let written = self.index.files.get(file).ok_or_else(missing);
        written.and_then(|w| self.checked(file, w, range)).map_err(|e| Self::suggesting(&self.path, e))
    }

    /// A block of version 1, which has a checksum of its own.
    pub(crate) fn block(&self, chunk: &Chunk, bytes: usize) -> Result<Vec<u8>, CheckpointError> {
        let checked = || {
            let torn = |e: WeightFileError| {
                let damage = Damage::Corrupt { file: chunk.file.clone(), reason: e.to_string() };
                CheckpointError::damaged(&self.path, damage)
            };
            let block = self.tensors(&chunk.file).and_then(|f| f.read(&chunk.key)).map_err(torn)?.bytes;
            self.bytes_read.fetch_add(block.len() as u64, Ordering::Relaxed);
            let (got, expected) = (sum(&block), chunk.blake3.clone().unwrap_or_default());
            if got != expected || block.len() != bytes {
                let what = format!("`{}`", chunk.key);
                return Err(self.wrong_sum(&chunk.file, &what, &expected, got));
            }
            Ok(block)
        };
        checked().map_err(|e| Self::suggesting(&self.path, e))
    }
}
