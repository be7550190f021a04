//! Files that come from outside: regular ones, of bounded length.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// The longest file that is read whole: far more than the largest vocabularies take.
const LONGEST: u64 = 1 << 30;

/// Files of a model's folder that its tokenizer is made of.
pub const TOKENIZER: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "tokenizer.model",
    "qwen.tiktoken",
];

/// Opens a file for reading.
///
/// # Errors
/// If it is not there, or is a pipe, a device or a folder: reading it could wait, or go on, for ever.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    let kind = fs::metadata(path)?;
    if !kind.is_file() {
        let what = if kind.is_dir() { "a folder" } else { "a pipe or a device" };
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is {what}, expected a regular file"),
        ));
    }
    File::open(path)
}

/// As [`std::fs::read`], of a regular file of at most 1 GiB.
///
/// ```
/// let refused = burnish_core::file::read("/");
/// assert!(refused.is_err_and(|error| error.to_string().contains("expected a regular file")));
/// ```
///
/// # Errors
/// Those of [`open`], or if it is longer.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        let reason = format!("it is longer than {LONGEST} bytes, which no file of this kind is");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// As [`read`], without the byte order mark that some editors put before JSON.
///
/// # Errors
/// Those of [`read`].
pub fn read_json(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = read(path)?;
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    Ok(bytes)
}

/// As [`read`], of UTF-8.
///
/// # Errors
/// Those of [`read`], or if it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}
