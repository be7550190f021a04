//! The commands, each with the groups it is made of and the rules between them.

mod chat;
mod compare;
mod convert;
mod cpo;
mod data;
mod doctor;
mod dpo;
mod eval;
mod export;
mod generate;
mod grpo;
mod inspect;
mod kto;
mod merge;
mod orpo;
mod plan;
mod quantize;
mod reward;
mod rloo;
mod score;
mod serve;
mod sft;
mod watch;
mod win_rate;

use crate::command::CommandInfo;

macro_rules! commands {
    ($($module:ident::$options:ident),+ $(,)?) => {
        $(pub use $module::$options;)+

        /// Every command, in the order of `burnish --help`.
        pub const COMMANDS: &[CommandInfo] = &[$(CommandInfo::of::<$options>()),+];
    };
}

// A new command is named here, beside its module above.
commands! {
    sft::SftOptions,
    dpo::DpoOptions,
    kto::KtoOptions,
    cpo::CpoOptions,
    orpo::OrpoOptions,
    reward::RewardOptions,
    grpo::GrpoOptions,
    rloo::RlooOptions,
    data::DataOptions,
    watch::WatchOptions,
    compare::CompareOptions,
    generate::GenerateOptions,
    chat::ChatOptions,
    serve::ServeOptions,
    score::ScoreOptions,
    eval::EvalOptions,
    win_rate::WinRateOptions,
    plan::PlanOptions,
    merge::MergeOptions,
    quantize::QuantizeOptions,
    export::ExportOptions,
    convert::ConvertOptions,
    inspect::InspectOptions,
    doctor::DoctorOptions,
}
