//! The commands, each with the groups it is made of and the rules between them.

mod convert;
mod doctor;
mod dpo;
mod eval;
mod generate;
mod grpo;
mod kto;
mod merge;
mod plan;
mod reward;
mod rloo;
mod score;
mod sft;
mod win_rate;

pub use convert::ConvertOptions;
pub use doctor::DoctorOptions;
pub use dpo::DpoOptions;
pub use eval::EvalOptions;
pub use generate::GenerateOptions;
pub use grpo::GrpoOptions;
pub use kto::KtoOptions;
pub use merge::MergeOptions;
pub use plan::PlanOptions;
pub use reward::RewardOptions;
pub use rloo::RlooOptions;
pub use score::ScoreOptions;
pub use sft::SftOptions;
pub use win_rate::WinRateOptions;

use crate::command::CommandInfo;

/// Every command, in the order of `burnish --help`.
pub const COMMANDS: &[CommandInfo] = &[
    CommandInfo::of::<SftOptions>(),
    CommandInfo::of::<DpoOptions>(),
    CommandInfo::of::<KtoOptions>(),
    CommandInfo::of::<RewardOptions>(),
    CommandInfo::of::<GrpoOptions>(),
    CommandInfo::of::<RlooOptions>(),
    CommandInfo::of::<GenerateOptions>(),
    CommandInfo::of::<ScoreOptions>(),
    CommandInfo::of::<EvalOptions>(),
    CommandInfo::of::<WinRateOptions>(),
    CommandInfo::of::<PlanOptions>(),
    CommandInfo::of::<MergeOptions>(),
    CommandInfo::of::<ConvertOptions>(),
    CommandInfo::of::<DoctorOptions>(),
];
