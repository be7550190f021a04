//! `UntilEnd`: a Parquet file whose end is an error to who goes on reading there, as is a page that claims too much.

use std::fs::File;
use std::io::{BufReader, Error, ErrorKind, Read, Seek, SeekFrom};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Reads at the end that find nothing before they are an error.
const READS: usize = 64;

/// Bytes that a page may take once it is decompressed, and for each of its bytes in the file: room for all of them is made
/// before the first is there. Writers begin a new page after 1 MB.
const MOST_PAGE_BYTES: u64 = 256 << 20;
const MOST_PAGE_BYTES_PER_BYTE: u64 = 4;

/// Bytes of a file's end, which say where its description is.
const END: usize = 8;

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

    /// The reader asks for this where a page's header begins, and for the file's last bytes.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut file = self.0.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        let mut head = Vec::new();
        Read::by_ref(&mut file).take(32).read_to_end(&mut head)?;
        let page =
            if head.len() <= END { Some(Page { uncompressed: 0, compressed: 0 }) } else { Page::of(&head) };
        let Some(Page { uncompressed, compressed }) = page else {
            let reason = format!("no page begins at byte {start}, where one is said to be");
            return Err(ParquetError::General(reason));
        };
        if uncompressed > MOST_PAGE_BYTES.max(compressed.saturating_mul(MOST_PAGE_BYTES_PER_BYTE)) {
            let reason = format!("a page of {compressed} bytes claims to be one of {uncompressed}");
            return Err(ParquetError::General(reason));
        }
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(Part { file, ends: 0 }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// The sizes in a page's header.
#[derive(Debug, PartialEq)]
struct Page {
    uncompressed: u64,
    compressed: u64,
}

impl Page {
    /// Of the bytes that a header begins with: in Thrift's compact form its first three fields, the page's type and both sizes,
    /// each the number of a 32-bit field after its predecessor. `None` where that is not what is there.
    fn of(head: &[u8]) -> Option<Self> {
        const NEXT_I32: u8 = 0x15;
        let mut bytes = head.iter().copied();
        let mut field = || {
            if bytes.next()? != NEXT_I32 {
                return None;
            }
            let mut number = 0_u64;
            for place in 0..5 {
                let byte = bytes.next()?;
                number |= u64::from(byte & 0x7f) << (7 * place);
                if byte & 0x80 == 0 {
                    // Zigzag: an odd number is negative.
                    return (number & 1 == 0).then_some(number >> 1);
                }
            }
            None
        };
        let (_, uncompressed, compressed) = (field()?, field()?, field()?);
        Some(Self { uncompressed, compressed })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_header() {
        let page = |uncompressed, compressed| Some(Page { uncompressed, compressed });
        assert_eq!(Page::of(&[0x15, 0, 0x15, 20, 0x15, 0x90, 0x03, 0x2c]), page(10, 200));
        let most = [0x15, 4, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, 2];
        assert_eq!(Page::of(&most), page((1 << 31) - 1, 1));
        // A size below 0, a field left out, a number without an end, an end.
        for bytes in [
            &[0x15, 0, 0x15, 21, 0x15, 2][..],
            &[0x15, 0, 0x25, 20],
            &[0x15, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x15],
        ] {
            assert_eq!(Page::of(bytes), None, "{bytes:?}");
        }
    }
}
