//! `burnish plan`: what a run will hold and send.

use std::process::ExitCode;

use burnish_config::PlanOptions;
use burnish_trainers::RunPlan;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<PlanOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    print!("{}", RunPlan::new(&resolved.options)?);
    Ok(ExitCode::SUCCESS)
}
