//! `UntilEnd`: a Parquet file whose end is an error to who goes on reading there.

use std::fs::File;
use std::io::{BufReader, Error, ErrorKind, Read, Seek, SeekFrom};

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::reader::{ChunkReader, Length};

/// Reads at the end that find nothing before they are an error.
const READS: usize = 64;

/// A file for Parquet's reader, which skips as many bytes and elements as a header claims, and takes no end for one: a few
/// bytes would have it go on for hours.
pub(super) struct UntilEnd(pub(super) File);

impl Length for UntilEnd {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for UntilEnd {
    type T = BufReader<Part>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut file = self.0.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(Part { file, ends: 0 }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// A file from a place on.
pub(super) struct Part {
    file: File,
    /// Reads that found its end.
    ends: usize,
}

impl Read for Part {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(into)?;
        if read == 0 && !into.is_empty() {
            self.ends += 1;
            if self.ends > READS {
                return Err(Error::new(ErrorKind::UnexpectedEof, "its headers claim more than the file has"));
            }
        }
        Ok(read)
    }
}
