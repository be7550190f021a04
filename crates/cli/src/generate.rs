//! `burnish generate`: continue prompts.

use std::process::ExitCode;

pub(crate) fn run(_words: &[String]) -> anyhow::Result<ExitCode> {
    unimplemented!()
}
