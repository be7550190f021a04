//! Compiled artifacts as files of a folder, for builds without a database.
//!
//! A file is named by the hash of its key and holds the key, the value and a
//! hash of both: one that does not read as it was written is as good as none.
//! It is written under another name first and then renamed, so that several
//! processes may share a folder.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cubecl_common::hash::{StableHash, StableHasher};
use cubecl_environment::bytes::Bytes;
use cubecl_environment::environment;
use cubecl_environment::persistence::{
    CacheOption, Insertion, Namespace, Origin, Storage, Store, StoreKey, StoreOptions, StoreValue,
};

/// First in every file.
const MAGIC: &[u8; 8] = b"cubeart1";
/// The end of a file's name.
const EXTENSION: &str = "artifact";
/// A longer file is none of these.
const LONGEST: u64 = 64 << 20;
/// Magic, the lengths of key and value, their hash.
const HEADER: usize = 8 + 8 + 8 + 16;

/// A store of files under the root of the environment, where it has a name
/// of its own and the program's build can be told from others; else none.
pub(crate) fn store<K: StoreKey, V: StoreValue>(
    backend: &'static str,
    fingerprint: &str,
) -> Option<Store<K, V>> {
    let name = environment::active();
    if *name == *environment::DEFAULT || buildid::build_id().is_none() {
        return None;
    }
    let namespace = Namespace::scoped(backend, fingerprint);
    let folder = environment::root()
        .join(&*name)
        .join(namespace.as_str().replace('/', "-"));
    let storage = ArtifactFolder { folder };
    Some(Store::new(
        StoreOptions::new()
            .storage_with(Box::new(storage), namespace)
            .cache(CacheOption::Lazy),
    ))
}

/// The files of one namespace.
#[derive(Debug)]
struct ArtifactFolder {
    folder: PathBuf,
}

impl ArtifactFolder {
    fn file(&self, key: &[u8]) -> PathBuf {
        let name = StableHasher::hash_one(&key);
        self.folder.join(format!("{name:032x}.{EXTENSION}"))
    }

    fn write(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);

        fs::create_dir_all(&self.folder)?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let partial = self
            .folder
            .join(format!("{}-{count}.partial", std::process::id()));
        let file = self.file(key);
        let written = fs::write(&partial, encoded(key, value)).and_then(|()| fs::rename(&partial, file));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }
}

impl Storage for ArtifactFolder {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        let (known, value) = read(&self.file(key))?;
        (known == key).then(|| Bytes::from_bytes_vec(value))
    }

    // Two processes that compile the same kernel at once both find nothing:
    // the later file stays, and either would do.
    fn insert(&self, key: &[u8], value: Bytes, origin: Origin) -> Insertion {
        match self.get(key) {
            Some(existing) => Insertion::Conflict(existing),
            None => self.replace(key, value, origin),
        }
    }

    fn replace(&self, key: &[u8], value: Bytes, _origin: Origin) -> Insertion {
        match self.write(key, &value) {
            Ok(()) => Insertion::Stored,
            Err(error) => Insertion::Failed(format!("{}: {error}", self.folder.display())),
        }
    }

    fn scan(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            if let Some((key, value)) = read(&entry.path()) {
                visit(&key, &value);
            }
        }
    }

    fn purge(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }

    fn purge_key(&self, key: &[u8]) {
        let _ = fs::remove_file(self.file(key));
    }

    fn describe(&self) -> String {
        self.folder.display().to_string()
    }
}

fn hash(key: &[u8], value: &[u8]) -> StableHash {
    StableHasher::hash_one(&(key, value))
}

fn encoded(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + key.len() + value.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&(key.len() as u64).to_le_bytes());
    file.extend_from_slice(&(value.len() as u64).to_le_bytes());
    file.extend_from_slice(&hash(key, value).to_le_bytes());
    file.extend_from_slice(key);
    file.extend_from_slice(value);
    file
}

/// Key and value of a file, if it is whole.
fn read(path: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(LONGEST + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > LONGEST {
        return None;
    }
    decoded(&bytes)
}

fn decoded(file: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (header, body) = file.split_at_checked(HEADER)?;
    let (magic, rest) = header.split_at(MAGIC.len());
    let (key, rest) = rest.split_at(8);
    let (value, sum) = rest.split_at(8);
    let key = usize::try_from(u64::from_le_bytes(key.try_into().ok()?)).ok()?;
    let value = usize::try_from(u64::from_le_bytes(value.try_into().ok()?)).ok()?;
    let sum = StableHash::from_le_bytes(sum.try_into().ok()?);
    if magic != MAGIC || key.checked_add(value) != Some(body.len()) {
        return None;
    }
    let (key, value) = body.split_at(key);
    (hash(key, value) == sum).then(|| (key.to_vec(), value.to_vec()))
}
