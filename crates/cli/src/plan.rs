//! `burnish plan`: what a run will hold and send.

use std::process::ExitCode;

use burnish_config::{Command, PlanOptions};
use burnish_trainers::{RunPlan, TrainError, Trainer, WithTrainer, trainer_names, with_trainer};

use crate::refusal::refuse;

/// Plans a run of the trainer that the first word names, with that trainer's options; of `sft` where none does.
pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    match words.split_first() {
        Some((trainer, rest)) if !trainer.starts_with('-') => {
            with_trainer(trainer, Plan(rest)).unwrap_or_else(|| {
                let known = trainer_names().join("|");
                refuse!(
                    UnknownCommand,
                    "there is no plan of `{trainer}`; `burnish plan [{known}] [OPTIONS]` takes the options of the trainer"
                )
            })
        }
        _ => of::<PlanOptions>(words, RunPlan::new),
    }
}

struct Plan<'a>(&'a [String]);

impl WithTrainer for Plan<'_> {
    type Output = anyhow::Result<ExitCode>;

    fn with<T: Trainer>(self) -> Self::Output {
        of::<T::Options>(self.0, T::plan)
    }
}

fn of<C: Command>(
    words: &[String],
    plan: impl FnOnce(&C) -> Result<RunPlan, TrainError>,
) -> anyhow::Result<ExitCode> {
    if let Some(resolved) = crate::resolved(C::parse_to_plan(words.iter().cloned())?)? {
        crate::voice::result(plan(&resolved.options)?.to_string().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}
