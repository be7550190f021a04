//! `burnish plan`: what a run will hold and send, and on a GPU by its name how long a step takes.

use std::process::ExitCode;

use burnish_config::groups::{ModelOptions, TrainingOptions};
use burnish_config::{Command, GenerateOptions, PlanOptions, RunOptions, TrainerOptions};
use burnish_device::best;
use burnish_trainers::{
    GenerationPlan, RunPlan, TrainError, Trainer, WithTrainer, trainer_names, with_trainer,
};

use serde_json::Value;

use crate::refusal::refuse;
use crate::train::choose_products;

/// What asks for JSON instead of tables, beside the options of any trainer.
const JSON: &str = "--json";

/// Plans a run of the trainer that the first word names, or `generate`, with its options; a run of `sft` where none does.
pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let json = words.iter().any(|word| word == JSON);
    let words: Vec<String> = words.iter().filter(|word| *word != JSON).cloned().collect();
    match words.split_first() {
        Some((word, rest)) if word == GenerateOptions::NAME => {
            let shown = |plan: GenerationPlan| (plan.to_string(), plan.to_json());
            of::<GenerateOptions>(rest, json, |options| GenerationPlan::new(options).map(shown))
        }
        Some((trainer, rest)) if !trainer.starts_with('-') => {
            with_trainer(trainer, Plan { words: rest, json }).unwrap_or_else(|| {
                let known = trainer_names().join("|");
                refuse!(
                    UnknownCommand,
                    "there is no plan of `{trainer}`; `burnish plan [{known}|generate] [OPTIONS]` takes the options of what it names"
                )
            })
        }
        _ => of::<PlanOptions>(&words, json, |options| {
            RunPlan::new(&as_trained(options, (&options.model, &options.training))?).map(shown)
        }),
    }
}

struct Plan<'a> {
    words: &'a [String],
    json: bool,
}

impl WithTrainer for Plan<'_> {
    type Output = anyhow::Result<ExitCode>;

    fn with<T: Trainer>(self) -> Self::Output {
        of::<T::Options>(self.words, self.json, |options| {
            let RunOptions { model, training, .. } = options.run_options();
            T::plan(&as_trained(options, (&model, &training))?).map(shown)
        })
    }
}

/// The options as a run here would have them: a GPU is planned for wherever it is named.
fn as_trained<C: Command + Clone>(
    options: &C,
    (model, training): (&ModelOptions, &TrainingOptions),
) -> Result<C, TrainError> {
    let mut options = options.clone();
    let kind = model.device.kind().unwrap_or_else(|| best().0);
    choose_products(&mut options, (model, training), kind)?;
    Ok(options)
}

/// A plan as tables and as JSON.
fn shown(plan: RunPlan) -> (String, Value) {
    (plan.to_string(), plan.to_json())
}

fn of<C: Command>(
    words: &[String],
    json: bool,
    plan: impl FnOnce(&C) -> Result<(String, Value), TrainError>,
) -> anyhow::Result<ExitCode> {
    if let Some(resolved) = crate::resolved(C::parse_to_plan(words.iter().cloned())?)? {
        let (tables, record) = plan(&resolved.options)?;
        if json {
            crate::voice::result(serde_json::to_string_pretty(&record)?)?;
        } else {
            crate::voice::result(tables.trim_end())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
