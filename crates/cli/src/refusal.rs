//! `Refusal`: an error of the program itself, with the class that `burnish explain` knows it by.

use std::error::Error;
use std::fmt;

use burnish_core::{Coded, ErrorCode};

/// What a command cannot do.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: ErrorCode,
    text: String,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, text: String) -> Self {
        Self { code, text }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Refusal {}

/// `refusal!(Code, "text {}", arguments)`: the error itself.
macro_rules! refusal {
    ($code:ident, $($text:tt)+) => {
        anyhow::Error::new($crate::refusal::Refusal::new(burnish_core::ErrorCode::$code, format!($($text)+)))
    };
}

/// `refuse!(Code, "text {}", arguments)`: ends the function with it.
macro_rules! refuse {
    ($code:ident, $($text:tt)+) => {
        return Err($crate::refusal::refusal!($code, $($text)+))
    };
}

/// `require!(condition, Code, "text {}", arguments)`: ends the function with it unless the condition holds.
macro_rules! require {
    ($condition:expr, $code:ident, $($text:tt)+) => {
        let holds: bool = $condition;
        if !holds {
            $crate::refusal::refuse!($code, $($text)+)
        }
    };
}

pub(crate) use {refusal, refuse, require};

/// The class of an error, by the first of its causes that has one.
pub(crate) fn code_of(error: &anyhow::Error) -> Option<ErrorCode> {
    error.chain().find_map(|cause| {
        macro_rules! first {
            ($($type:ty,)+) => {
                $(if let Some(error) = cause.downcast_ref::<$type>() {
                    return Some(error.code());
                })+
            };
        }
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return Some(refusal.code);
        }
        first![
            burnish_checkpoint::CheckpointError,
            burnish_comm::CommError,
            burnish_comm::launch::LaunchError,
            burnish_comm::tcp::TcpError,
            burnish_config::ConfigError,
            burnish_core::OptionFault,
            burnish_data::DataError,
            burnish_device::DeviceError,
            burnish_gguf::GgufError,
            burnish_losses::LossError,
            burnish_models::ModelError,
            burnish_ops::OpsError,
            burnish_optim::OptimError,
            burnish_peft::PeftError,
            burnish_report::ReportError,
            burnish_rewards::RewardError,
            burnish_trainers::TrainError,
            burnish_weight_files::WeightFileError,
        ];
        #[cfg(feature = "hub")]
        first![burnish_hub::HubError,];
        #[cfg(feature = "serve")]
        first![burnish_serve::ServeError,];
        first![std::io::Error,];
        None
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use anyhow::Context as _;
    use burnish_models::ModelError;
    use burnish_trainers::TrainError;

    use super::*;

    #[test]
    fn the_class_is_that_of_the_innermost_crate_whatever_is_said_around_it() {
        let missing = ModelError::Missing { path: "config.json".into() };
        let error = anyhow::Error::new(TrainError::from(missing)).context("adapter x");
        assert_eq!(code_of(&error), Some(ErrorCode::NotAModel));

        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = Err::<(), _>(full).context("cannot write a").unwrap_err();
        assert_eq!(code_of(&error), Some(ErrorCode::DiskFull));

        let faults = burnish_config::ConfigError { command: "sft", faults: Vec::new() };
        assert_eq!(code_of(&faults.into()), Some(ErrorCode::BadConfig));
        assert_eq!(code_of(&refusal!(NoRows, "{}: no rows", "x")), Some(ErrorCode::NoRows));
    }
}
