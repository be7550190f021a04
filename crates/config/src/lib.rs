//! Options with the names and defaults of TRL and Transformers.
//!
//! Each option is declared once, in a group ([`groups`]); flags, keys of a YAML or TOML file, `--help` and the reference
//! all come from that table. Groups make up the options of a command: [`SftOptions`], [`DpoOptions`], [`GenerateOptions`],
//! [`ScoreOptions`], [`EvalOptions`], [`WinRateOptions`], [`MergeOptions`], [`ConvertOptions`].
//!
//! Flags win over the file, the file over defaults. Everything that is wrong is reported at once ([`ConfigError`]), each
//! [`Fault`] with its place, the nearest valid name or the values that go; nothing is loaded before.
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

#![forbid(unsafe_code)]

mod check;
mod choice;
mod command;
mod fault;
mod foreign;
pub mod groups;
mod help;
mod raw;
mod setting;
mod source;
mod table;
mod trainer;
mod value;

pub use check::Checks;
pub use choice::{
    AdapterReduce, BiasTraining, DeviceChoice, DpoLoss, FDivergence, GrpoLoss, ImportanceSampling, Interval,
    KtoLossType, LoraInit, LossType, ModelDtype, MuonCoefficients, MuonScale, MuonVariant, Optimizer,
    PackingStrategy, ReduceWhen, RewardAggregation, RewardScale, SamplerCorrectionMode, Sampling,
    SaveInterval, Scheduler, SlotDtype, Transport, Truncation,
};
pub use command::{
    COMMANDS, Command, CommandInfo, ConvertOptions, DoctorOptions, DpoOptions, EvalOptions, GenerateOptions,
    GrpoOptions, Invocation, KtoOptions, MergeOptions, PlanOptions, Resolved, RewardOptions, RlooOptions,
    ScoreOptions, SftOptions, WinRateOptions, nearest_command,
};
pub use fault::{ConfigError, Fault, Origin};
pub use foreign::{ALIASES, Accepts, FOREIGN, Foreign};
pub use groups::{
    BatchOptions, ConvertTargetOptions, DeviceOptions, DpoLossOptions, GenerationOptions, GrpoLossOptions,
    InferenceRankOptions, InputOptions, KtoLossOptions, LoggingOptions, LoraOptions, MergeTargetOptions,
    ModelOptions, MuonOptions, PackingOptions, PrecomputeOptions, PreferenceRowOptions, PreparationOptions,
    PromptOptions, PromptRowOptions, RankOptions, ReferenceOptions, RewardFunctionOptions, RewardLossOptions,
    RewardRowOptions, RlooLossOptions, RolloutOptions, SourceOptions, SupervisedOptions, TrainingOptions,
};
pub use help::{markdown, overview};
pub use raw::Raw;
pub use setting::{Items, Modules, PadToMultiple, ReportTo, Resume, Steps, Verbatim, ZeroStage};
pub use table::{Entry, Mismatch, OptionGroup, Source};
pub use trainer::{RunOptions, TrainerOptions};
pub use value::{Kind, OptionValue};
