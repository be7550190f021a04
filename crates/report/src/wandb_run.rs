//! `WandbRun`: a run in a folder as Weights & Biases' client writes one offline; `wandb sync FOLDER` uploads it.
//!
//! The folder holds `run-ID.wandb`: seven bytes of header, then protobuf messages (`Record`) in LevelDB's log format, whose
//! checksums are CRC-32 here.
//!
//! # Source
//! wandb 0.31: `wandb/proto/wandb_internal.proto`; wandb 0.18: `sdk/internal/datastore.py`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::crc::crc32;
use crate::error::{ReportError, at};
use crate::protobuf::Message;
use crate::record::Record;

/// The file's first bytes: `:W&B`, the magic number, version 0.
const HEADER: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
/// Bytes of a block of the log.
const BLOCK: usize = 32_768;
/// Bytes before each piece of a block: checksum, length, kind.
const PIECE: usize = 7;
/// What the client says that servers need.
const MIN_CONSUMER: &str = "0.70.0";
/// The figure that others are drawn over, as Transformers has it.
const STEP: &str = "train/global_step";

/// What a run is called and where it belongs, as the client's variables (`WANDB_PROJECT`, ...) say; empty is unsaid.
#[derive(Clone, Debug, Default)]
pub struct WandbLabels {
    /// The project.
    pub project: String,
    /// Whose project.
    pub entity: String,
    /// The run.
    pub name: String,
    /// Runs that belong together.
    pub group: String,
    /// What kind of run.
    pub job_type: String,
    /// Text about it.
    pub notes: String,
    /// Words that it is found by.
    pub tags: Vec<String>,
}

/// A run that goes on. Dropped before [`Self::finish`], it has failed.
#[derive(Debug)]
pub struct WandbRun {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    /// Bytes of the file.
    length: usize,
    /// Records so far, and of these those with figures.
    records: u64,
    logged: u64,
    began: Instant,
    ended: bool,
}

impl WandbRun {
    /// Begins a run in a folder of its own in `place`/wandb; `options` are its configuration.
    ///
    /// # Errors
    /// [`ReportError::File`] when a file or folder cannot be made.
    pub fn start(
        place: &Path,
        labels: &WandbLabels,
        options: &Map<String, Value>,
    ) -> Result<Self, ReportError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = fresh_id(place)?;
        let folder = place.join("wandb").join(format!("offline-run-{}-{id}", date(now)));
        for part in ["files", "logs"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(at("create", &part))?;
        }
        let path = folder.join(format!("run-{id}.wandb"));
        let mut file = File::create_new(&path).map_err(at("create", &path))?;
        file.write_all(&HEADER).map_err(at("write", &path))?;
        let (length, began) = (HEADER.len(), Instant::now());
        let mut run = Self { folder, path, file, length, records: 0, logged: 0, began, ended: false };
        run.write(21, &header())?;
        run.write(17, &described(&id, labels, options, now))?;
        run.write(12, &metric(STEP, None))?;
        run.write(12, &metric("*", Some(STEP)))?;
        Ok(run)
    }

    /// Adds a record's figures: `eval_loss` as `eval/loss`, `loss` as `train/loss`, as Transformers names them.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), ReportError> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut figures: Vec<(String, String)> = record
            .values()
            .map(|(name, value)| match name.strip_prefix("eval_") {
                Some(name) => (format!("eval/{name}"), json(value)),
                None => (format!("train/{name}"), json(value)),
            })
            .collect();
        figures.push((STEP.to_owned(), record.step.to_string()));
        figures.push(("_timestamp".to_owned(), json(time.as_secs_f64())));
        figures.push(("_runtime".to_owned(), json(self.began.elapsed().as_secs_f64())));
        figures.push(("_step".to_owned(), self.logged.to_string()));
        // `HistoryRecord { item: 1, step: 2 { num: 1 } }` and `SummaryRecord { update: 1 }` have items alike.
        let mut items = Message::default();
        for (name, value) in &figures {
            items.message(1, &item(name, value));
        }
        self.write(3, &items)?;
        let mut step = Message::default();
        step.integer(1, self.logged);
        items.message(2, &step);
        self.write(2, &items)?;
        self.logged += 1;
        Ok(())
    }

    /// Says that the run has ended as it should.
    ///
    /// # Errors
    /// [`ReportError::File`] when it cannot be written.
    pub fn finish(&mut self) -> Result<(), ReportError> {
        self.end(0)
    }

    /// The run's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `RunExitRecord { exit_code: 1, runtime: 2 }`.
    fn end(&mut self, code: u64) -> Result<(), ReportError> {
        self.ended = true;
        let mut exit = Message::default();
        if code > 0 {
            exit.integer(1, code);
        }
        exit.integer(2, self.began.elapsed().as_secs());
        self.write(18, &exit)
    }

    /// Writes `Record { num: 1, <field>: message }`.
    fn write(&mut self, field: u64, message: &Message) -> Result<(), ReportError> {
        self.records += 1;
        let mut record = Message::default();
        record.integer(1, self.records);
        record.message(field, message);
        let bytes = logged(self.length, &record.0);
        self.length += bytes.len();
        self.file.write_all(&bytes).map_err(at("write", &self.path))
    }
}

impl Drop for WandbRun {
    fn drop(&mut self) {
        if !self.ended {
            // Nobody is left to be told.
            let _ = self.end(1);
        }
    }
}

/// A record in pieces that no block is between, for a file that has `length` bytes.
fn logged(length: usize, record: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.len() + 2 * PIECE);
    let mut rest = Some(record);
    let mut first = true;
    while let Some(bytes) = rest {
        let room = BLOCK - (length + out.len()) % BLOCK;
        if room < PIECE {
            out.resize(out.len() + room, 0);
            continue;
        }
        let (now, after) = bytes.split_at(bytes.len().min(room - PIECE));
        let kind = match (first, after.is_empty()) {
            (true, true) => 1,
            (true, false) => 2,
            (false, false) => 3,
            (false, true) => 4,
        };
        out.extend(crc32(&[&[kind], now]).to_le_bytes());
        out.extend((now.len() as u16).to_le_bytes());
        out.push(kind);
        out.extend(now);
        rest = Some(after).filter(|after| !after.is_empty());
        first = false;
    }
    out
}

/// `HeaderRecord { version_info: 1 { producer: 1, min_consumer: 2 } }`.
fn header() -> Message {
    let mut version = Message::default();
    version.text(1, concat!("burnish ", env!("CARGO_PKG_VERSION")));
    version.text(2, MIN_CONSUMER);
    let mut header = Message::default();
    header.message(1, &version);
    header
}

/// `RunRecord { run_id: 1, entity: 2, project: 3, config: 4, run_group: 6, job_type: 7, display_name: 8, notes: 9, tags: 10,
/// start_time: 17 { seconds: 1, nanos: 2 } }`.
fn described(id: &str, labels: &WandbLabels, options: &Map<String, Value>, now: Duration) -> Message {
    let mut config = Message::default();
    for (name, value) in options {
        let mut update = Message::default();
        update.text(1, name);
        update.text(16, &value.to_string());
        config.message(1, &update);
    }
    let mut time = Message::default();
    time.integer(1, now.as_secs());
    time.integer(2, u64::from(now.subsec_nanos()));
    let mut run = Message::default();
    run.text(1, id);
    run.text(2, &labels.entity);
    run.text(3, &labels.project);
    run.message(4, &config);
    run.text(6, &labels.group);
    run.text(7, &labels.job_type);
    run.text(8, &labels.name);
    run.text(9, &labels.notes);
    labels.tags.iter().for_each(|tag| run.text(10, tag));
    run.message(17, &time);
    run
}

/// `MetricRecord { name: 1 or glob_name: 2, step_metric: 4, options: 6 { step_sync: 1 } }`.
fn metric(name: &str, over: Option<&str>) -> Message {
    let mut metric = Message::default();
    metric.text(if name == "*" { 2 } else { 1 }, name);
    if let Some(over) = over {
        metric.text(4, over);
        let mut options = Message::default();
        options.integer(1, 1);
        metric.message(6, &options);
    }
    metric
}

/// `HistoryItem { nested_key: 2, value_json: 16 }`.
fn item(name: &str, value: &str) -> Message {
    let mut item = Message::default();
    item.text(2, name);
    item.text(16, value);
    item
}

/// A number as the client writes it, also one that JSON has not.
fn json(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() }
    } else {
        Value::from(value).to_string()
    }
}

/// Eight letters and digits, as the client's.
fn fresh_id(place: &Path) -> Result<String, ReportError> {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut bytes = [0; 8];
    let failed = |error: getrandom::Error| at("create", place)(std::io::Error::other(error.to_string()));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect())
}

/// A time of UTC as `20261125_085911`.
fn date(time: Duration) -> String {
    let (days, seconds) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if day < length {
            break;
        }
        day -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!(
        "{year:04}{month:02}{:02}_{:02}{:02}{:02}",
        day + 1,
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Records of a log, read back: checksums, pieces and padding.
    fn records(file: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(file[..7], HEADER);
        let (mut at, mut all, mut open) = (7, Vec::new(), Vec::new());
        while at < file.len() {
            if BLOCK - at % BLOCK < PIECE {
                at += BLOCK - at % BLOCK;
                continue;
            }
            let crc = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
            let length = usize::from(u16::from_le_bytes(file[at + 4..at + 6].try_into().unwrap()));
            let kind = file[at + 6];
            let data = &file[at + PIECE..at + PIECE + length];
            assert!(at % BLOCK + PIECE + length <= BLOCK);
            assert_eq!(crc, crc32(&[&[kind], data]));
            assert_eq!(matches!(kind, 1 | 2), open.is_empty());
            open.extend(data);
            if matches!(kind, 1 | 4) {
                all.push(std::mem::take(&mut open));
            }
            at += PIECE + length;
        }
        assert!(open.is_empty());
        all
    }

    #[test]
    fn records_of_any_length_are_read_back() {
        for lengths in
            [vec![1, 2, 3], vec![BLOCK - 20, 1, 1], vec![BLOCK - 7 - 7 - 3, 5], vec![100_000, 70_000, 9]]
        {
            let mut file = HEADER.to_vec();
            let written: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![length as u8; length]).collect();
            for record in &written {
                let bytes = logged(file.len(), record);
                file.extend(bytes);
            }
            assert!(records(&file) == written, "{lengths:?}");
        }
    }

    #[test]
    fn a_run_has_its_options_figures_and_end() {
        let root = tempfile::tempdir().unwrap();
        let labels = WandbLabels {
            project: "p".into(),
            name: "n".into(),
            tags: vec!["a".into()],
            ..WandbLabels::default()
        };
        let options = serde_json::from_str(r#"{"learning_rate": 0.1, "optim": "adamw"}"#).unwrap();
        let mut run = WandbRun::start(root.path(), &labels, &options).unwrap();
        for step in 1..=500 {
            run.append(&Record::new(step, 0.5).with("loss", 2.0).with("eval_loss", f64::NAN)).unwrap();
        }
        run.finish().unwrap();
        let (folder, path) = (run.folder().to_owned(), run.path.clone());
        drop(run);
        assert_eq!(folder.parent().unwrap(), root.path().join("wandb"));
        let all = records(&fs::read(path).unwrap());
        assert_eq!(all.len(), 4 + 2 * 500 + 1);
        let has =
            |record: &[u8], part: &str| record.windows(part.len()).any(|window| window == part.as_bytes());
        assert!(has(&all[1], "learning_rate") && has(&all[1], "\"adamw\"") && has(&all[3], STEP));
        assert!(has(&all[5], "train/loss") && has(&all[5], "eval/loss") && has(&all[5], "NaN"));

        let run = WandbRun::start(root.path(), &labels, &Map::new()).unwrap();
        let path = run.path.clone();
        drop(run);
        // Record { num: 5, exit: 18 { exit_code: 1 = 1, runtime: 2 = 0 } }
        assert_eq!(records(&fs::read(path).unwrap()).pop().unwrap(), [8, 5, 0x92, 1, 4, 8, 1, 16, 0]);
    }

    /// Bytes that the messages of wandb 0.31 serialise to.
    #[test]
    fn golden_bytes() {
        let hex = |message: &Message| message.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let labels = WandbLabels {
            project: "p".into(),
            entity: "e".into(),
            name: "n".into(),
            group: "g".into(),
            job_type: "j".into(),
            notes: "o".into(),
            tags: vec!["x".into(), "y".into()],
        };
        let options = serde_json::from_str(r#"{"lr": 0.1}"#).unwrap();
        let run = described("ab12", &labels, &options, Duration::new(1_000_000_000, 5));
        assert_eq!(hex(&run), GOLDEN_RUN);
        assert_eq!(hex(&metric("*", Some(STEP))), GOLDEN_METRIC);
        assert_eq!(hex(&item("train/loss", "1.5")), GOLDEN_ITEM);
    }

    const GOLDEN_RUN: &str = "0a04616231321201651a0170220c0a0a0a026c72820103302e313201673a016a42016e4a016f5201785201798a0108088094ebdc031005";
    const GOLDEN_METRIC: &str = "12012a2211747261696e2f676c6f62616c5f7374657032020801";
    const GOLDEN_ITEM: &str = "120a747261696e2f6c6f7373820103312e35";

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "19700101_000000"),
            (951_782_399, "20000228_235959"),
            (951_782_400, "20000229_000000"),
            (1_795_597_151, "20261125_085911"),
            (1_798_761_599, "20261231_235959"),
        ] {
            assert_eq!(date(Duration::from_secs(seconds)), expected);
        }
    }
}
