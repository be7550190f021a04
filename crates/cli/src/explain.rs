//! `burnish explain`: cause and mend of a class of errors.

use std::process::ExitCode;

use burnish_config::explain;

use crate::refusal::refuse;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let text = match words {
        [] => explain::codes(),
        [word] if word == "--help" || word == "-h" => explain::codes(),
        [code] => match explain::explained(code) {
            Ok(text) => text,
            Err(nearest) => {
                refuse!(
                    UnknownCommand,
                    "there is no code `{code}`; did you mean `{nearest}`? `burnish explain` lists all"
                )
            }
        },
        _ => {
            refuse!(UnknownCommand, "expected one code, `burnish explain CODE`; `burnish explain` lists all")
        }
    };
    crate::voice::result(text)?;
    Ok(ExitCode::SUCCESS)
}
