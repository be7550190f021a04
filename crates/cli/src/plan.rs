//! `burnish plan`: what a run will hold and send.

use std::process::ExitCode;

use burnish_config::{Command, DpoOptions, KtoOptions, PlanOptions, RewardOptions, SftOptions};
use burnish_trainers::{PlanOf, RunPlan, TrainError};

/// Plans a run of the trainer that the first word names, with that trainer's options; of `sft` where none does.
pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let (trainer, rest) = match words.split_first() {
        Some((word, rest)) if !word.starts_with('-') => (word.as_str(), rest),
        _ => ("", words),
    };
    match trainer {
        "" => of::<PlanOptions>(rest, RunPlan::new),
        "sft" => of::<SftOptions>(rest, |options| RunPlan::of(PlanOf::Sft(options))),
        "dpo" => of::<DpoOptions>(rest, |options| RunPlan::of(PlanOf::Dpo(options))),
        "kto" => of::<KtoOptions>(rest, |options| RunPlan::of(PlanOf::Kto(options))),
        "reward" => of::<RewardOptions>(rest, |options| RunPlan::of(PlanOf::Reward(options))),
        other => anyhow::bail!(
            "there is no plan of `{other}`; `burnish plan [sft|dpo|kto|reward] [OPTIONS]` takes the options of the trainer"
        ),
    }
}

fn of<C: Command>(
    words: &[String],
    plan: impl FnOnce(&C) -> Result<RunPlan, TrainError>,
) -> anyhow::Result<ExitCode> {
    if let Some(resolved) = crate::resolved(C::parse_to_plan(words.iter().cloned())?)? {
        print!("{}", plan(&resolved.options)?);
    }
    Ok(ExitCode::SUCCESS)
}
