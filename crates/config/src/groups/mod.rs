//! The groups of options that commands are composed of.

mod convert;
mod data;
mod dpo;
mod generation;
mod grpo;
mod kto;
mod logging;
mod lora;
mod model;
mod muon;
mod ranks;
mod reference;
mod reward;
mod reward_functions;
mod rloo;
mod rollout;
mod training;
mod win_rate;

pub use convert::ConvertTargetOptions;
pub use data::{
    InputOptions, PackingOptions, PreferenceRowOptions, PreparationOptions, RewardRowOptions, SourceOptions,
};
pub use dpo::DpoLossOptions;
pub use generation::{GenerationOptions, PromptOptions};
pub use grpo::GrpoLossOptions;
pub use kto::KtoLossOptions;
pub use logging::LoggingOptions;
pub use lora::LoraOptions;
pub use model::{DeviceOptions, MergeTargetOptions, ModelOptions};
pub use muon::MuonOptions;
pub use ranks::{InferenceRankOptions, RankOptions};
pub use reference::{PrecomputeOptions, ReferenceOptions};
pub use reward::RewardLossOptions;
pub use reward_functions::RewardFunctionOptions;
pub use rloo::RlooLossOptions;
pub use rollout::{PromptRowOptions, RolloutOptions};
pub use training::{BatchOptions, SupervisedOptions, TrainingOptions};
pub use win_rate::WinRateTargetOptions;
