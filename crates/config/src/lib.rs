//! Options with the names and defaults of TRL and Transformers.
//!
//! An option is declared once, as a field of a group ([`groups`]); flags, keys of a YAML or TOML file, `--help` and
//! `docs/options.md` come from that table. What an option's words mean, and which values it takes, is said by the crate that
//! computes with it: `burnish_losses`, `burnish_optim`, `burnish_peft`, `burnish_data`, `burnish_tp`, `burnish_zero`,
//! `burnish_device`. Groups make up the options of a command: [`SftOptions`] and the others.
//!
//! Flags win over the file, the file over defaults. Everything that is wrong is reported at once ([`ConfigError`]), each
//! [`Fault`] with where it was written, the nearest valid name or the values that go, before anything is loaded.
//!
//! ```
//! use burnish_config::{Command, ScoreOptions};
//!
//! let words = ["--model-name-or-path", ".", "--dataset_name=*.jsonl", "--max_length", "512"];
//! let score = ScoreOptions::parse(words).unwrap().run().unwrap();
//! assert_eq!(score.options.preparation.max_length, Some(512));
//!
//! let error = ScoreOptions::parse(["--model_name_or_path", ".", "--dataset", "*.jsonl", "--max_lenght", "1"]);
//! let message = error.unwrap_err().to_string();
//! assert!(message.contains("did you mean `max_length`?"), "{message}");
//! ```
//!
//! # Errors
//! [`ConfigError`] from [`Command::parse`].

#![forbid(unsafe_code)]

mod checks;
mod choice;
mod command;
mod commands;
pub mod explain;
mod fault;
pub mod foreign;
pub mod groups;
pub mod help;
mod invocation;
mod nearest;
mod page;
mod parse;
mod published;
mod raw;
mod run_device;
mod setting;
mod source;
mod source_spec;
pub mod table;
mod trainer;
mod translate;
mod value;

pub use command::Command;
pub use commands::*;
pub use fault::{ConfigError, Fault, Origin};
pub use invocation::{Invocation, Resolved};
pub use published::published;
pub use trainer::{RunOptions, TrainerOptions};

/// Types of single options: those of `config`, and those that their owners declare.
pub mod values {
    pub use burnish_core::Dtype;
    pub use burnish_data::{Order, SourceSpec, Strategy, Truncation};
    pub use burnish_device::{DeviceKind, Gpu};
    pub use burnish_gguf::OutType;
    pub use burnish_losses::{
        Aggregation, CorrectionMode, CpoLoss, Divergence, ImportanceLevel, KtoLoss, PolicyLoss,
        PreferenceLoss, ScaleRewards, TokenLoss,
    };
    pub use burnish_ops::Polynomials;
    pub use burnish_optim::{MomentumDtype, OptimizerName, Scale, ScheduleKind, Variant};
    pub use burnish_peft::{Bias, Init, Targets};
    pub use burnish_tp::AdapterReduce;
    pub use burnish_zero::{ReduceWhen, Stage};

    pub use crate::choice::{
        Auto, ExportFormat, HubStrategy, Interval, RolloutQuantization, SaveInterval, Transport,
    };
    pub use crate::run_device::RunDevice;
    pub use crate::setting::{
        ArgumentList, Items, JsonMap, KeywordArguments, ModelDtype, PadToMultiple, ReportTo, Resume, Steps,
        Verbatim,
    };
}
