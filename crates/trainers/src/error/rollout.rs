//! A rollout server that could not be used.

use burnish_core::{Coded, ErrorCode};

/// A server that could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// No answer.
    #[error(
        "{url}: no answer from the rollout server: {reason}; check rollout_url and that the server runs, or raise \
         rollout_timeout"
    )]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why.
        reason: String,
    },
    /// It refused.
    #[error("{url}: the rollout server answered with status {status}: {body}; {mend}")]
    Refused {
        /// What was asked.
        url: String,
        /// HTTP's number.
        status: u16,
        /// The beginning of what it said.
        body: String,
        /// What helps.
        mend: &'static str,
    },
    /// It answered with what nobody asked for.
    #[error(
        "{url}: the rollout server answered with {reason}; it has to run the model that trains, with its tokenizer"
    )]
    NotAskedFor {
        /// What was asked.
        url: String,
        /// What it is.
        reason: String,
    },
    /// It said something else.
    #[error("{url}: the rollout server's answer has no {what}; {mend}: {body}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is missing.
        what: &'static str,
        /// What helps.
        mend: &'static str,
        /// The beginning of what it said.
        body: String,
    },
}

impl Coded for RolloutError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unreachable { .. }
            | Self::Refused { .. }
            | Self::NotAskedFor { .. }
            | Self::Answer { .. } => ErrorCode::RolloutServer,
        }
    }
}
