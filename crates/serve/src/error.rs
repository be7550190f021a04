//! Errors of a server, apart from what its clients ask.

use burnish_core::{Coded, ErrorCode};
use burnish_data::DataError;
use burnish_models::ModelError;
use thiserror::Error;

/// An error of [`Engine`](crate::Engine) or [`serve`](crate::serve).
#[derive(Debug, Error)]
pub enum ServeError {
    /// A name is taken.
    #[error("two models are called `{name}`; give each adapter a name of its own")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A thread did not start.
    #[error("cannot start a thread for `{name}`")]
    Thread {
        /// The model's name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// The listener failed.
    #[error("cannot take connections")]
    Listen {
        /// Why.
        #[from]
        source: std::io::Error,
    },
    /// The model cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer or its templates cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl Coded for ServeError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NameTaken { .. } => ErrorCode::Conflict,
            Self::Thread { .. } => ErrorCode::BadEnvironment,
            Self::Listen { .. } => ErrorCode::CannotListen,
            Self::Model(error) => error.code(),
            Self::Data(error) => error.code(),
        }
    }
}
