//! Errors of the hub and its cache.

use std::io;
use std::path::{Path, PathBuf};

use burnish_core::{Coded, ErrorCode};

/// What went wrong between a name and a folder of files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Something that cannot be a name.
    #[error(
        "`{name}` cannot be the name of a repository; expected `owner/name`, or the path of a folder that is there"
    )]
    Name {
        /// As given.
        name: String,
    },
    /// Offline, and the cache does not have it.
    #[error(
        "{repo} is not whole in the cache `{cache}` (missing: {missing}), and the hub is not asked: {why}; run once with \
         the hub in reach, or give the path of a local folder"
    )]
    NotCached {
        /// The repository.
        repo: String,
        /// The cache.
        cache: PathBuf,
        /// What is not there.
        missing: String,
        /// Why the hub is not asked.
        why: String,
    },
    /// The hub knows no such repository, or does not show it.
    #[error(
        "{endpoint} has no {repo}, or shows it only to its owners, and no folder here has that name; check the spelling, \
         or set HF_TOKEN if it is private"
    )]
    NotFound {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository has no such revision.
    #[error("{repo} has no revision `{revision}`; name a branch, a tag or a commit of it")]
    NoRevision {
        /// The repository.
        repo: String,
        /// As given.
        revision: String,
    },
    /// The repository has to be asked for.
    #[error("{repo} is gated: accept its conditions at {page} and set HF_TOKEN to a token of that account")]
    Gated {
        /// The repository.
        repo: String,
        /// Its page.
        page: String,
    },
    /// The token is not taken.
    #[error(
        "{url} answers {status}: the token is not valid, or may not read this; set HF_TOKEN, or take it out"
    )]
    Token {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// Nothing can be written without a token.
    #[error("uploading needs a token that may write: set HF_TOKEN (https://huggingface.co/settings/tokens)")]
    NoToken,
    /// The token may not write.
    #[error(
        "the hub answers {status}: the token may not write to {repo}{said}; set HF_TOKEN to one that may, or name a \
         repository of its account"
    )]
    MayNotWrite {
        /// The repository.
        repo: String,
        /// The status.
        status: u16,
        /// The beginning of what it said, or nothing.
        said: String,
    },
    /// Too many requests.
    #[error("{url} asks to wait for {seconds} seconds (too many requests); try again later, or set HF_TOKEN")]
    RateLimit {
        /// The address.
        url: String,
        /// How long.
        seconds: u64,
    },
    /// Another status than expected.
    #[error("{url} answers {status} after {attempts} attempts{said}")]
    Status {
        /// The address.
        url: String,
        /// The status.
        status: u16,
        /// How often it was asked.
        attempts: usize,
        /// The beginning of what it said, or nothing.
        said: String,
    },
    /// No answer.
    #[error(
        "no answer from {url} after {attempts} attempts: {reason}; check the network, or set HF_HUB_OFFLINE=1 to use the cache"
    )]
    Unreachable {
        /// The address.
        url: String,
        /// How often it was asked.
        attempts: usize,
        /// The last failure.
        reason: String,
    },
    /// An address that this build cannot ask.
    #[error("{url} needs TLS, which this build leaves out; build with the feature `tls`")]
    NoTls {
        /// The address.
        url: String,
    },
    /// A redirect that is not followed.
    #[error("{url} redirects to {location:?}, which is not followed: {reason}")]
    Redirect {
        /// The address.
        url: String,
        /// Where it leads.
        location: String,
        /// Why not.
        reason: &'static str,
    },
    /// An answer that is not what the interface promises.
    #[error("{url} answers something else than the hub does: {reason}; check HF_ENDPOINT")]
    Answer {
        /// The address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// A file name that would leave the cache.
    #[error("{repo} lists a file {file:?}, which is no name within a folder; nothing was written")]
    FileName {
        /// The repository.
        repo: String,
        /// The name.
        file: String,
    },
    /// A file of another length than was said.
    #[error("{file} of {repo}: {got} bytes came, {expected} were said; run again, what is whole is kept")]
    Length {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// The length that was said.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// A file that is not what its digest says.
    #[error("{file} of {repo} has the digest {got}, expected {expected}; it was deleted, run again")]
    Digest {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// The digest that was said.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A model without weights that can be read.
    #[error(
        "{repo} has no .safetensors weights (it has {found}); use a repository or revision with model.safetensors, or \
         convert it and give the folder"
    )]
    NoWeights {
        /// The repository.
        repo: String,
        /// Weights of other formats, or nothing.
        found: String,
    },
    /// The operating system refused.
    #[error("cannot use `{path}`: {source}; check HF_HOME and HF_HUB_CACHE, and the room on that disk")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl HubError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// Whether the hub was not reached, so that the cache may stand in, and asking later may help.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::RateLimit { .. })
            || matches!(self, Self::Status { status, .. } if *status >= 500)
    }
}

impl Coded for HubError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Name { .. } | Self::NotFound { .. } | Self::NoRevision { .. } | Self::NoWeights { .. } => {
                ErrorCode::NotOnHub
            }
            Self::NotCached { .. }
            | Self::RateLimit { .. }
            | Self::Status { .. }
            | Self::Unreachable { .. } => ErrorCode::HubUnreachable,
            Self::Gated { .. } | Self::Token { .. } | Self::NoToken | Self::MayNotWrite { .. } => {
                ErrorCode::HubToken
            }
            Self::NoTls { .. } => ErrorCode::NotBuilt,
            Self::Redirect { .. }
            | Self::Answer { .. }
            | Self::FileName { .. }
            | Self::Length { .. }
            | Self::Digest { .. } => ErrorCode::HubAnswer,
            Self::Io { source, .. } => source.code(),
        }
    }
}
