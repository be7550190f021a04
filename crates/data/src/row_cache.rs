//! `RowCache`: rows as tokens kept on disk, by a digest of all that they were made of.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::content_key::ContentKey;
use crate::example::Example;
use crate::prepare::Dataset;
use crate::row::RowKind;
use crate::statistics::Statistics;

/// What a file begins with; another form has another number.
const MAGIC: &[u8; 16] = b"burnish rows  1\n";
/// Files of fewer bytes are made into tokens in less time than a cache is worth.
const LEAST_BYTES: u64 = 16 << 20;
/// Bytes of a digest.
const DIGEST: u64 = 32;
/// How rows become tokens: to be raised with every change of what the same rows, templates and options give
/// (`tests/prepared.rs` holds this to it).
const FORM: u32 = 1;
/// A file by halves that nobody has written to for so long is of a run that was killed.
const STALE: Duration = Duration::from_secs(3600);
/// The types of rows that are kept, by number.
const KINDS: [RowKind; 5] = [
    RowKind::Language,
    RowKind::LanguageChat,
    RowKind::PromptCompletion,
    RowKind::PromptCompletionChat,
    RowKind::Tokens,
];

/// Data sets of supervised fine-tuning as they were prepared, one file each.
///
/// A file appears by a rename, so that several runs may share a folder, and ends in a digest of itself: one that is damaged
/// is deleted, and made again.
#[derive(Clone, Debug)]
pub struct RowCache {
    folder: PathBuf,
    least: u64,
}

impl RowCache {
    /// The key that the keys of rows begin with: the program's version and the form of what it makes of rows.
    #[must_use]
    pub fn key() -> ContentKey {
        ContentKey::new(&format!("{} {FORM}", env!("CARGO_PKG_VERSION")))
    }

    /// In a folder, which is made when it is written to; for rows of files of 16 MiB and more.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), least: LEAST_BYTES }
    }

    /// For rows of files of at least so many bytes.
    #[must_use]
    pub fn of_at_least(self, bytes: u64) -> Self {
        Self { least: bytes, ..self }
    }

    /// Whether rows of files of so many bytes are kept.
    #[must_use]
    pub fn keeps(&self, bytes: u64) -> bool {
        bytes >= self.least
    }

    fn path(&self, key: &ContentKey) -> PathBuf {
        self.folder.join(format!("{}.rows", key.hex()))
    }

    /// The data set of this key, where it is there whole. One that is not is deleted.
    #[must_use]
    pub fn read(&self, key: &ContentKey) -> Option<Dataset> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        let read = file.metadata().ok().and_then(|meta| read(file, meta.len()));
        if read.is_none() {
            let _ = fs::remove_file(&path);
        }
        read
    }

    /// Keeps a data set. Nothing is kept of rows whose statistics name places.
    ///
    /// # Errors
    /// When it cannot be written; then nothing is there under its name.
    pub fn write(&self, key: &ContentKey, dataset: &Dataset) -> io::Result<()> {
        let Some(kind) = KINDS.iter().position(|kind| *kind == dataset.kind) else { return Ok(()) };
        let Some(statistics) = statistics_json(&dataset.statistics) else { return Ok(()) };
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        self.clean();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let half = self.folder.join(format!("{}.{}-{number}.half", key.hex(), std::process::id()));
        let written =
            write(&half, kind, &statistics, dataset).and_then(|()| fs::rename(&half, self.path(key)));
        if written.is_err() {
            let _ = fs::remove_file(&half);
        }
        written
    }
}

impl RowCache {
    /// Removes what killed runs have left by halves.
    fn clean(&self) {
        let old = |path: &Path| {
            let written = path.metadata().and_then(|meta| meta.modified()).ok();
            path.extension().is_some_and(|ending| ending == "half")
                && written.and_then(|at| at.elapsed().ok()).is_some_and(|passed| passed > STALE)
        };
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if old(&entry.path()) {
                // Another run may be faster.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Counts what passes to a file, and what it was.
struct Hashed<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.hasher.update(&bytes[..read]);
        Ok(read)
    }
}

fn write(path: &Path, kind: usize, statistics: &str, dataset: &Dataset) -> io::Result<()> {
    let mut out = Hashed { inner: BufWriter::new(File::create(path)?), hasher: blake3::Hasher::new() };
    out.write_all(MAGIC)?;
    out.write_all(&[kind as u8, u8::from(dataset.completion_only)])?;
    out.write_all(&(statistics.len() as u32).to_le_bytes())?;
    out.write_all(statistics.as_bytes())?;
    out.write_all(&(dataset.examples.len() as u64).to_le_bytes())?;
    let mut bytes = Vec::new();
    for Example { input_ids, labels, seq_lengths } in &dataset.examples {
        bytes.clear();
        bytes.extend((input_ids.len() as u32).to_le_bytes());
        bytes.extend((seq_lengths.len() as u32).to_le_bytes());
        bytes.extend(input_ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(labels.iter().flat_map(|label| label.to_le_bytes()));
        bytes.extend(seq_lengths.iter().flat_map(|&length| (length as u32).to_le_bytes()));
        out.write_all(&bytes)?;
    }
    let digest = out.hasher.finalize();
    let mut file = out.inner;
    file.write_all(digest.as_bytes())?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// What a file of `length` bytes holds; `None` where it is not what was written.
fn read(file: File, length: u64) -> Option<Dataset> {
    let mut left = length.checked_sub(DIGEST)?;
    let mut file = Hashed { inner: BufReader::new(file), hasher: blake3::Hasher::new() };
    // No more than the file has, whatever its lengths say.
    let mut take = |bytes: u64| -> Option<Vec<u8>> {
        left = left.checked_sub(bytes)?;
        let mut taken = vec![0; usize::try_from(bytes).ok()?];
        file.read_exact(&mut taken).ok()?;
        Some(taken)
    };
    fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
        bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]])
    }
    if take(16)? != MAGIC {
        return None;
    }
    let flags = take(2)?;
    let (kind, completion_only) = (*KINDS.get(usize::from(flags[0]))?, flags[1] == 1);
    let size = words(&take(4)?).map(u32::from_le_bytes).next()?;
    let statistics = statistics(&serde_json::from_slice(&take(size.into())?).ok()?)?;
    let rows = u64::from_le_bytes(take(8)?.try_into().ok()?);
    let mut examples = Vec::new();
    for _ in 0..rows {
        let head = take(8)?;
        let mut sizes = words(&head).map(u32::from_le_bytes).map(u64::from);
        let (tokens, sequences) = (sizes.next()?, sizes.next()?);
        let body = take(4 * (2 * tokens + sequences))?;
        let tokens = usize::try_from(tokens).ok()?;
        examples.push(Example {
            input_ids: words(&body).take(tokens).map(u32::from_le_bytes).collect(),
            labels: words(&body).skip(tokens).take(tokens).map(i32::from_le_bytes).collect(),
            seq_lengths: words(&body)
                .skip(2 * tokens)
                .map(|word| u32::from_le_bytes(word) as usize)
                .collect(),
        });
    }
    if left > 0 {
        return None;
    }
    let digest = file.hasher.finalize();
    let mut said = [0; DIGEST as usize];
    file.inner.read_exact(&mut said).ok()?;
    (digest == said).then_some(Dataset { examples, statistics, kind, completion_only })
}

/// Counts by name.
fn counts(of: &mut Statistics) -> [(&'static str, &mut usize); 10] {
    [
        ("rows", &mut of.rows),
        ("examples", &mut of.examples),
        ("tokens", &mut of.tokens),
        ("trained", &mut of.trained),
        ("dropped", &mut of.dropped),
        ("truncated", &mut of.truncated),
        ("tokens_lost", &mut of.tokens_lost),
        ("longest", &mut of.longest),
        ("diverging", &mut of.diverging),
        ("alpaca", &mut of.alpaca),
    ]
}

/// Statistics as JSON; `None` where they have what supervised fine-tuning has not.
fn statistics_json(of: &Statistics) -> Option<String> {
    let mut of = of.clone();
    let counted = counts(&mut of).into_iter().map(|(name, count)| (name.to_owned(), Value::from(*count)));
    let counted: Map<String, Value> = counted.collect();
    let all = json!({"counts": counted, "roles": of.roles, "diverging_text": of.diverging_text});
    (statistics(&all).as_ref() == Some(&of)).then(|| all.to_string())
}

fn statistics(json: &Value) -> Option<Statistics> {
    let mut of = Statistics::default();
    for (name, count) in counts(&mut of) {
        *count = usize::try_from(json["counts"][name].as_u64()?).ok()?;
    }
    for (role, count) in json["roles"].as_object()? {
        of.roles.insert(role.clone(), usize::try_from(count.as_u64()?).ok()?);
    }
    of.diverging_text = json["diverging_text"].as_str().map(str::to_owned);
    Some(of)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn dataset(rows: u32) -> Dataset {
        let example = |row: u32| Example {
            input_ids: (0..row % 7).map(|token| token * row).collect(),
            labels: (0..row % 7).map(|token| if token == 0 { -100 } else { (token * row) as i32 }).collect(),
            seq_lengths: if row.is_multiple_of(2) { vec![row as usize, 3] } else { Vec::new() },
        };
        let statistics = Statistics {
            rows: 9,
            longest: 4,
            roles: [("user".to_owned(), 3)].into(),
            diverging_text: Some("\u{fc}".to_owned()),
            ..Statistics::default()
        };
        let examples = (0..rows).map(example).collect();
        Dataset { examples, statistics, kind: RowKind::PromptCompletionChat, completion_only: true }
    }

    fn only_file(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let file = files.next().unwrap();
        assert!(files.next().is_none(), "nothing by halves is left");
        file
    }

    #[test]
    fn what_is_kept_is_read_and_other_keys_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RowCache::new(folder.path().join("a/b"));
        let key = RowCache::key().and("rows").and("options");
        assert!(cache.read(&key).is_none());
        for rows in [0, 1, 300] {
            cache.write(&key, &dataset(rows)).unwrap();
            assert_eq!(cache.read(&key).unwrap(), dataset(rows));
        }
        assert!(cache.read(&RowCache::key().and("rowso").and("ptions")).is_none());
        only_file(&folder.path().join("a/b"));
        assert!(cache.keeps(16 << 20) && !cache.keeps(1000) && cache.of_at_least(0).keeps(0));
    }

    #[test]
    fn statistics_that_are_not_of_sft_are_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = RowCache::new(folder.path());
        let blank = Statistics { blank: 1, ..Statistics::default() };
        cache.write(&RowCache::key(), &Dataset { statistics: blank, ..dataset(1) }).unwrap();
        cache.write(&RowCache::key(), &Dataset { kind: RowKind::Preference, ..dataset(1) }).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_damaged_is_deleted_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, key) = (RowCache::new(folder.path()), RowCache::key());
        cache.write(&key, &dataset(5)).unwrap();
        let file = only_file(folder.path());
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&file, bytes).unwrap();
            assert!(cache.read(&key).is_none(), "bit at {at}");
            assert!(!file.exists());
        }
        for length in [0, 1, 31, 40, whole.len() - 33, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            assert!(cache.read(&key).is_none(), "{length} bytes");
        }
        fs::write(&file, [whole.as_slice(), b"more"].concat()).unwrap();
        assert!(cache.read(&key).is_none());
        cache.write(&key, &dataset(5)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), whole);
    }

    #[test]
    fn what_killed_runs_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let half = |name: &str, hours: u64| {
            let path = folder.path().join(name);
            let file = File::create(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
            path
        };
        let (killed, under_way, other) = (half("a.1-0.half", 2), half("b.2-0.half", 0), half("c.txt", 50));
        RowCache::new(folder.path()).write(&RowCache::key(), &dataset(3)).unwrap();
        assert!(!killed.exists() && under_way.exists() && other.exists());
    }

    #[test]
    fn runs_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, key) = (RowCache::new(folder.path()), RowCache::key());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        // What is there is whole at any time.
                        assert!(cache.read(&key).is_none_or(|read| read == dataset(200)));
                        cache.write(&key, &dataset(200)).unwrap();
                    }
                });
            }
        });
        only_file(folder.path());
        assert_eq!(cache.read(&key).unwrap(), dataset(200));
    }
}
