//! `Repo`: the name and kind of a repository on the hub.

use std::fmt;
use std::path::Path;

use crate::error::HubError;

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoKind {
    /// A model or an adapter.
    Model,
    /// A data set.
    Dataset,
}

/// A repository: `Qwen/Qwen2.5-0.5B`, or `gpt2` without an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    kind: RepoKind,
    name: String,
}

impl Repo {
    /// A model or an adapter.
    ///
    /// # Errors
    /// When this cannot be a name.
    pub fn model(name: &str) -> Result<Self, HubError> {
        Self::new(RepoKind::Model, name)
    }

    /// A data set.
    ///
    /// # Errors
    /// When this cannot be a name.
    pub fn dataset(name: &str) -> Result<Self, HubError> {
        Self::new(RepoKind::Dataset, name)
    }

    fn new(kind: RepoKind, name: &str) -> Result<Self, HubError> {
        if could_be_name(name) {
            Ok(Self { kind, name: name.to_owned() })
        } else {
            Err(HubError::Name { name: name.to_owned() })
        }
    }

    /// What it holds.
    #[must_use]
    pub fn kind(&self) -> RepoKind {
        self.kind
    }

    /// Its name, with its owner if it has one.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The repository whose snapshot in a cache this folder is.
    #[must_use]
    pub fn of_snapshot(folder: &Path) -> Option<Self> {
        let commit = folder.file_name()?.to_str()?;
        let snapshots = folder.parent()?;
        if !is_commit(commit) || snapshots.file_name()? != "snapshots" {
            return None;
        }
        let folder = snapshots.parent()?.file_name()?.to_str()?;
        let (kind, name) = folder.split_once("--")?;
        let name = name.replace("--", "/");
        match kind {
            "models" => Self::model(&name).ok(),
            "datasets" => Self::dataset(&name).ok(),
            _ => None,
        }
    }

    /// Where the hub's interface has it.
    pub(crate) fn api_path(&self) -> String {
        match self.kind {
            RepoKind::Model => format!("/api/models/{}", self.name),
            RepoKind::Dataset => format!("/api/datasets/{}", self.name),
        }
    }

    /// Where its page is, and below it its files.
    pub(crate) fn path(&self) -> String {
        match self.kind {
            RepoKind::Model => format!("/{}", self.name),
            RepoKind::Dataset => format!("/datasets/{}", self.name),
        }
    }

    /// Its folder in a cache.
    pub(crate) fn folder(&self) -> String {
        let kind = match self.kind {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
        };
        format!("{kind}--{}", self.name.replace('/', "--"))
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RepoKind::Model => write!(f, "model `{}`", self.name),
            RepoKind::Dataset => write!(f, "data set `{}`", self.name),
        }
    }
}

/// Whether this is formed as the hub's names are: one or two parts of letters, digits, `-`, `_` and `.`, at most 96
/// characters, that neither begin nor end with `-` or `.`, without `--` and `..`.
#[must_use]
pub fn could_be_name(name: &str) -> bool {
    let part = |part: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2
        && parts.iter().all(|p| part(p))
        && name.len() <= 96
        && !name.contains("--")
        && !name.contains("..")
        && !name.ends_with(".git")
}

/// Whether this is a whole commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_and_what_is_none() {
        for name in ["gpt2", "Qwen/Qwen2.5-0.5B", "trl-lib/Capybara", "a_b/c.d"] {
            assert!(could_be_name(name), "{name}");
        }
        for name in [
            "", "a/b/c", "./a", "../a", "/a/b", "a//b", "a/", "a b", "a/.b", "a/b.", "-a/b", "a--b",
            "a/b..c", "a\\b", "a/b.git", "~/a",
        ] {
            assert!(!could_be_name(name), "{name}");
        }
        assert!(Repo::model(&"a".repeat(97)).is_err());
    }

    #[test]
    fn a_snapshot_says_whose_it_is() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let of = |folder: &str| {
            Repo::of_snapshot(Path::new(&format!("/c/{folder}/snapshots/{commit}")))
                .map(|r| r.name().to_owned())
        };
        assert_eq!(of("models--Qwen--Qwen2.5-0.5B").as_deref(), Some("Qwen/Qwen2.5-0.5B"));
        assert_eq!(of("datasets--gpt2").as_deref(), Some("gpt2"));
        assert_eq!(of("spaces--a--b"), None);
        assert_eq!(Repo::of_snapshot(Path::new("/c/models--a--b/snapshots/main")), None);
    }
}
