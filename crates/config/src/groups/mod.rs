//! The groups of options that commands are composed of: each a struct with a field per option, its rules, and what it is for
//! the crate that owns the meaning.

mod convert;
mod dpo;
mod generation;
mod grpo;
mod kto;
mod logging;
mod lora;
mod model;
mod muon;
mod packing;
mod preparation;
mod quantization;
mod ranks;
mod reference;
mod reward;
mod reward_functions;
mod rloo;
mod rollout;
mod rows;
mod training;
mod win_rate;

pub use convert::ConvertTargetOptions;
pub use dpo::DpoLossOptions;
pub use generation::{GenerationOptions, PromptOptions};
pub use grpo::GrpoLossOptions;
pub use kto::KtoLossOptions;
pub use logging::LoggingOptions;
pub use lora::LoraOptions;
pub use model::{DeviceOptions, MergeTargetOptions, ModelOptions};
pub use muon::MuonOptions;
pub use packing::PackingOptions;
pub use preparation::{PreferenceRowOptions, PreparationOptions, RewardRowOptions};
pub use quantization::QuantizationOptions;
pub use ranks::{InferenceRankOptions, RankOptions};
pub use reference::{PrecomputeOptions, ReferenceOptions};
pub use reward::RewardLossOptions;
pub use reward_functions::RewardFunctionOptions;
pub use rloo::RlooLossOptions;
pub use rollout::{PromptRowOptions, RolloutOptions};
pub use rows::{InputOptions, SourceOptions};
pub use training::{BatchOptions, SupervisedOptions, TrainingOptions};
pub use win_rate::WinRateTargetOptions;
