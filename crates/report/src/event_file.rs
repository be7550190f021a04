//! TensorBoard's event files: TFRecord framing around protobuf `Event` messages, both written by hand.
//!
//! A record is a little-endian length (8 bytes), the masked CRC-32C of those bytes, the message, and its masked CRC-32C.
//!
//! # Source
//! TensorFlow: `core/lib/io/record_writer.cc`, `core/util/event.proto`, `core/framework/summary.proto`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::crc::masked_crc32c;
use crate::error::{ReportError, at};
use crate::protobuf::Message;
use crate::record::Record;

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a new file in `folder`, which is made if it is not there. `step` is the step after which the run goes on: 0
    /// for a new run; for a resumed one TensorBoard hides what earlier files in the folder say about later steps.
    ///
    /// # Errors
    /// [`ReportError::File`] when the folder or the file cannot be made.
    pub fn create(folder: &Path, step: u64) -> Result<Self, ReportError> {
        fs::create_dir_all(folder).map_err(at("create", folder))?;
        let now = SystemTime::now();
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = format!("events.out.tfevents.{seconds}.burnish.{}", std::process::id());
        // A second file within one second: TensorBoard reads every name that contains "tfevents".
        let path = (0..)
            .map(|n| folder.join(format!("{name}.{n}")))
            .find(|path| !path.exists())
            .expect("invariant: an endless range has a free number");
        let file = File::create_new(&path).map_err(at("create", &path))?;
        let mut events = Self { path, file };
        events.write(&version(seconds_of(now)))?;
        if step > 0 {
            events.write(&session_start(seconds_of(now), step + 1))?;
        }
        Ok(events)
    }

    /// Adds a record's figures: `eval_loss` as `eval/loss`, `loss` as `train/loss`, as Transformers names them.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), ReportError> {
        self.write(&scalars(seconds_of(SystemTime::now()), record))
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, event: &[u8]) -> Result<(), ReportError> {
        self.file.write_all(&framed(event)).map_err(at("write", &self.path))
    }
}

fn seconds_of(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(event);
    record.extend(masked_crc32c(event).to_le_bytes());
    record
}

/// `Event { wall_time: 1, file_version: 3 }`.
fn version(wall_time: f64) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, wall_time);
    event.bytes(3, b"brain.Event:2");
    event.0
}

/// `Event { wall_time: 1, step: 2, session_log: 7 { status: 1 = START } }`.
fn session_start(wall_time: f64, step: u64) -> Vec<u8> {
    let mut log = Message::default();
    log.integer(1, 1);
    let mut event = Message::default();
    event.double(1, wall_time);
    event.integer(2, step);
    event.bytes(7, &log.0);
    event.0
}

/// `Event { wall_time: 1, step: 2, summary: 5 { value: 1 { tag: 1, simple_value: 2 }, ... } }`.
fn scalars(wall_time: f64, record: &Record) -> Vec<u8> {
    let mut summary = Message::default();
    for (name, figure) in record.values() {
        let tag = match name.strip_prefix("eval_") {
            Some(name) => format!("eval/{name}"),
            None => format!("train/{name}"),
        };
        let mut value = Message::default();
        value.bytes(1, tag.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "the format holds single precision")]
        value.float(2, figure as f32);
        summary.bytes(1, &value.0);
    }
    let mut event = Message::default();
    event.double(1, wall_time);
    event.integer(2, record.step);
    event.bytes(5, &summary.0);
    event.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that TensorBoard 2.21 read back as step 300, train/loss 1.5, eval/loss 2.5, train/epoch 0.5.
    #[test]
    fn golden_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let record = Record::new(300, 0.5).with("loss", 1.5).with("eval_loss", 2.5);
        assert_eq!(hex(&framed(&version(1e9))), GOLDEN_VERSION);
        assert_eq!(hex(&framed(&session_start(1e9, 301))), GOLDEN_START);
        assert_eq!(hex(&framed(&scalars(1e9, &record))), GOLDEN_SCALARS);
    }

    const GOLDEN_VERSION: &str =
        "1800000000000000a37f4b22090000000065cdcd411a0d627261696e2e4576656e743a32f4eb195e";
    const GOLDEN_START: &str = "100000000000000095fbfe18090000000065cdcd4110ad023a0208012bcccd6a";
    const GOLDEN_SCALARS: &str = "4700000000000000bac3fb9b090000000065cdcd4110ac022a390a110a0a747261696e2f6c6f7373150000c03f0a100a\
        096576616c2f6c6f737315000020400a120a0b747261696e2f65706f6368150000003f59456cfc";
}
