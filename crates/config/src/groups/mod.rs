//! The groups of options that commands are composed of.

mod convert;
mod data;
mod generation;
mod logging;
mod lora;
mod model;
mod muon;
mod ranks;
mod training;

pub use convert::ConvertTargetOptions;
pub use data::{InputOptions, PackingOptions, PreparationOptions, SourceOptions};
pub use generation::{GenerationOptions, PromptOptions};
pub use logging::LoggingOptions;
pub use lora::LoraOptions;
pub use model::{MergeTargetOptions, ModelOptions};
pub use muon::MuonOptions;
pub use ranks::{InferenceRankOptions, RankOptions};
pub use training::{BatchOptions, TrainingOptions};
