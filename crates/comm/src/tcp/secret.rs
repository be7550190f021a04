//! `Secret`: what the ranks of a job know and nobody else does.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use burnish_core::{Coded, ErrorCode};

/// Fewest bytes of a secret: shorter ones could be found by trying.
const LEAST: usize = 16;
/// Most bytes of a file with one.
const MOST: u64 = 64 << 10;
/// What the key is derived for; other programs with the same secret get other keys.
const PURPOSE: &str = "burnish 2026-11-23 secret of the ranks of a job over tcp";

/// What the ranks of a job know and nobody else does. It never travels: ranks prove that they have it, and derive the keys
/// that their messages are sealed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(blake3::Hash);

/// A secret that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {got}")]
pub struct SecretError {
    /// What would do.
    pub expected: &'static str,
    /// What was found, without what is secret of it.
    pub got: String,
}

impl Secret {
    /// A secret of at least 16 bytes, such as `openssl rand -hex 32` prints. Space around it does not count.
    ///
    /// # Errors
    /// [`SecretError`] for a shorter one.
    pub fn new(text: &[u8]) -> Result<Self, SecretError> {
        let text = text.trim_ascii();
        if text.len() < LEAST {
            let expected = "a secret of at least 16 bytes (`openssl rand -hex 32` makes one)";
            return Err(SecretError { expected, got: format!("{} bytes", text.len()) });
        }
        Ok(Self(blake3::derive_key(PURPOSE, text).into()))
    }

    /// The secret in a file that only its owner can read.
    ///
    /// # Errors
    /// [`SecretError`] for a file that cannot be read, is none, or that others can read; for a secret that is too short.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let shown = path.display();
        let unreadable = |error: io::Error| SecretError {
            expected: "a file with a secret of at least 16 bytes",
            got: format!("`{shown}`: {error}"),
        };
        // A FIFO would be waited for.
        let found = std::fs::metadata(path).map_err(unreadable)?;
        if !found.is_file() {
            return Err(unreadable(io::Error::other("it is no file")));
        }
        if others_can_read(&found) {
            let expected = "a file that others cannot read";
            let got = format!("`{shown}`, which everybody can: run `chmod 600` on it");
            return Err(SecretError { expected, got });
        }
        let mut text = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(MOST).read_to_end(&mut text).map_err(unreadable)?;
        Self::new(&text)
            .map_err(|error| SecretError { got: format!("`{shown}` with {}", error.got), ..error })
    }

    /// The key that proofs and sessions are derived from.
    pub(super) fn key(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(unix)]
fn others_can_read(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    found.permissions().mode() & 0o007 != 0
}

#[cfg(not(unix))]
fn others_can_read(_: &std::fs::Metadata) -> bool {
    false
}

/// Bytes that nobody can foresee.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// The secret of a job on one machine: made by rank 0, in a file that only the user of its processes can read, by the
/// port that they meet at. The file goes with this.
pub(super) struct LocalSecret {
    path: PathBuf,
}

impl LocalSecret {
    /// Makes one. To be called by the process that listens at `port`.
    pub(super) fn make(port: u16) -> io::Result<(Self, Secret)> {
        let text = blake3::Hash::from(random::<32>()?).to_hex();
        let secret = Secret::new(text.as_bytes()).map_err(io::Error::other)?;
        let path = private::folder()?.join(file(port));
        private::write(&path, text.as_bytes())?;
        Ok((Self { path }, secret))
    }

    /// The one that the process which listens at `port` has made, if it has.
    pub(super) fn read(port: u16) -> io::Result<Option<Secret>> {
        match private::read(&private::folder()?.join(file(port))) {
            Ok(text) => Secret::new(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for LocalSecret {
    fn drop(&mut self) {
        // One that stays is overwritten by the next job at this port.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn file(port: u16) -> String {
    format!("tcp-{port}")
}

/// Files that belong to this process's user alone.
#[cfg(unix)]
mod private {
    use std::fs::{DirBuilder, File, Metadata, OpenOptions};
    use std::io::{self, Read, Write};
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};

    fn user() -> u32 {
        // SAFETY: it has no arguments, touches no memory and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn is_own(found: &Metadata) -> bool {
        found.uid() == user() && found.mode() & 0o077 == 0
    }

    /// A folder in the system's place for temporary files, which is refused if somebody else made it.
    pub(super) fn folder() -> io::Result<PathBuf> {
        let path = std::env::temp_dir().join(format!("burnish-{}", user()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(named(&path, &error)),
            _ => {}
        }
        let found = std::fs::symlink_metadata(&path)?;
        if found.is_dir() && is_own(&found) {
            return Ok(path);
        }
        Err(named(&path, &"it is not a folder of this user's own with mode 700; remove it"))
    }

    fn named(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
        io::Error::other(format!("{}: {why}", path.display()))
    }

    /// Writes a file in [`folder`], whole or not at all.
    pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
        let new = path.with_extension(std::process::id().to_string());
        let _ = std::fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text)?;
        std::fs::rename(&new, path)
    }

    pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?.take(super::MOST).read_to_end(&mut text)?;
        Ok(text)
    }
}

/// Files that belong to this process's user alone: not known how to make here.
#[cfg(not(unix))]
mod private {
    use std::io;
    use std::path::{Path, PathBuf};

    fn unknown<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "set BURNISH_DDP_SECRET on every rank on this system"))
    }

    pub(super) fn folder() -> io::Result<PathBuf> {
        unknown()
    }

    pub(super) fn write(_: &Path, _: &[u8]) -> io::Result<()> {
        unknown()
    }

    pub(super) fn read(_: &Path) -> io::Result<Vec<u8>> {
        unknown()
    }
}

impl Coded for SecretError {
    fn code(&self) -> ErrorCode {
        ErrorCode::RankSecret
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn short_ones_are_refused_and_none_is_shown() {
        let error = Secret::new(b"  15 bytes of it \n").unwrap_err().to_string();
        assert!(error.contains("at least 16 bytes") && error.contains("got 14 bytes"), "{error}");
        let one = Secret::new(b"sixteen bytes or more\n").unwrap();
        assert_eq!(one, Secret::new(b"sixteen bytes or more").unwrap());
        assert_ne!(one, Secret::new(b"sixteen bytes or mor").unwrap());
        assert_eq!(format!("{one:?}"), "Secret(..)");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("burnish-secret-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef0123\n").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        let error = Secret::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        mode(0o600);
        assert_eq!(Secret::from_file(&path).unwrap(), Secret::new(b"0123456789abcdef0123").unwrap());
        std::fs::write(&path, "short").unwrap();
        let error = Secret::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("5 bytes") && !error.contains("short"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(Secret::from_file(&path).unwrap_err().to_string().contains("No such file"));
        assert!(Secret::from_file(Path::new("/dev/zero")).unwrap_err().to_string().contains("no file"));
    }

    #[cfg(unix)]
    #[test]
    fn a_local_one_is_found_by_its_port_until_it_goes() {
        // No port that a test listens at.
        let (kept, secret) = LocalSecret::make(1).unwrap();
        assert_eq!(LocalSecret::read(1).unwrap(), Some(secret));
        drop(kept);
        assert_eq!(LocalSecret::read(1).unwrap(), None);
    }
}
