//! `ContentKey`: the digest of what something was made of, part by part.

use std::fs::File;
use std::io;
use std::path::Path;

/// The digest (blake3) of parts, each with its length, so that no two lists of parts are one.
///
/// ```
/// use burnish_data::ContentKey;
/// let key = ContentKey::new("rows 1").and("text").and([1, 2]);
/// assert_ne!(key.hex(), ContentKey::new("rows 1").and("tex").and("t").and([1, 2]).hex());
/// ```
#[derive(Clone, Debug)]
pub struct ContentKey(blake3::Hasher);

impl ContentKey {
    /// Of things of this `form`, which changes when what is made of the same parts does.
    #[must_use]
    pub fn new(form: &str) -> Self {
        Self(blake3::Hasher::new()).and(form)
    }

    /// With one more part.
    #[must_use]
    pub fn and(mut self, part: impl AsRef<[u8]>) -> Self {
        self.add(part);
        self
    }

    /// Adds a part.
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds token ids as a part.
    pub fn add_ids(&mut self, ids: &[u32]) {
        self.0.update(&(4 * ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| {
            self.0.update(&id.to_le_bytes());
        });
    }

    /// Adds the contents of a file as a part.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn add_file(&mut self, path: &Path) -> io::Result<()> {
        let mut file = blake3::Hasher::new();
        io::copy(&mut File::open(path)?, &mut file)?;
        self.add(file.finalize().as_bytes());
        Ok(())
    }

    /// As the name of a file.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
