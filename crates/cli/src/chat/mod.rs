//! `burnish chat`: a conversation in the terminal.

mod command;
mod session;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use burnish_config::ChatOptions;
use burnish_models::Decoder;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::refusal::{refusal, refuse};
use crate::served::{Served, adapters, name_of};
use command::Command;
use session::Session;

/// What the base is called among adapters.
const BASE: &str = "base";

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let words = crate::first_as("model_name_or_path", words);
    let Some(resolved) = crate::options::<ChatOptions>(&words)? else { return Ok(ExitCode::SUCCESS) };
    let ChatOptions { model, quantization, target, generation } = resolved.options;
    let (served, base) = Served::open(&model, &quantization)?;
    let folder = served.folder();
    let rows = served.rows(target.chat_template_path.as_ref(), target.eos_token.as_ref())?;
    let settings = crate::generate::settings(folder, &rows, &generation, target.eos_token.is_some())?;
    let tools = target.tools_path.as_ref().map(|path| {
        let text = burnish_core::file::read_to_string(path)
            .with_context(|| format!("tools_path: cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(|error| refusal!(BadConfig, "tools_path: {} is no JSON: {error}", path.display()))
    });
    let mut models: Vec<(String, Decoder)> = vec![(BASE.to_owned(), base)];
    for (name, path) in adapters(&model, &target.lora_modules) {
        if models.iter().any(|(known, _)| *known == name) {
            refuse!(Conflict, "two models are called `{name}`; give each of lora_modules a name of its own");
        }
        models.push((name, served.adapter(&path)?));
    }

    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    ctrlc::set_handler(move || asked.store(true, Ordering::SeqCst))?;
    let mut session = Session::new(&models, &rows, settings, generation.skip_special_tokens, &stop);
    session.system = target.system_prompt.0;
    session.tools = tools.transpose()?;
    if std::io::stdin().is_terminal() {
        crate::voice::say(session.greeting(&name_of(&model.model_name_or_path)));
    }
    talk(&mut session, &stop)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads lines until there are no more, or the user leaves.
fn talk(session: &mut Session<'_>, stop: &AtomicBool) -> anyhow::Result<()> {
    let terminal = std::io::stdin().is_terminal();
    let mut editor = terminal.then(DefaultEditor::new).transpose()?;
    let mut lines = std::io::stdin().lines();
    let mut left = false;
    loop {
        let line = match &mut editor {
            Some(editor) => match editor.readline("> ") {
                Ok(line) => line,
                // Once for a line that one thought better of, twice to leave.
                Err(ReadlineError::Interrupted) if !left => {
                    left = true;
                    crate::voice::say("Ctrl-C again, Ctrl-D or /exit leaves");
                    continue;
                }
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(()),
                Err(error) => refuse!(CannotRead, "cannot read from the terminal: {error}"),
            },
            None => match lines.next() {
                Some(line) => line.context("cannot read from standard input")?,
                None => return Ok(()),
            },
        };
        left = false;
        if line.trim().is_empty() {
            continue;
        }
        if let Some(editor) = &mut editor {
            let _ = editor.add_history_entry(&line);
        }
        stop.store(false, Ordering::SeqCst);
        let said = match Command::parse(&line) {
            Ok(Some(Command::Exit)) => return Ok(()),
            Ok(Some(command)) => session.command(command),
            Ok(None) => session.say(&line),
            Err(mend) => {
                crate::voice::say(mend);
                continue;
            }
        };
        match said {
            Ok(()) => {}
            // What one turn cannot do, the next may.
            Err(error) if terminal && !crate::panics::happened() => {
                crate::voice::failed(&error);
            }
            Err(error) => return Err(error),
        }
    }
}
