//! Lines of the program: results on standard output, everything else on standard error.
//!
//! Nobody has to listen: a closed standard error stops nothing, and a closed standard output ends a command that prints
//! its result, quietly. Text from outside is shown without its escape codes.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use burnish_report::{beside_bars, harmless};
use burnish_trainers::TrainError;

/// The status of a command whose reader went away, as shells have it of SIGPIPE.
const NO_READER: u8 = 141;

/// Says a line of talk.
pub(crate) fn say(text: impl Display) {
    say_painted(harmless(&text.to_string()));
}

/// Says a line of talk whose escape codes are all our own.
pub(crate) fn say_painted(text: impl Display) {
    let _ = beside_bars(|| writeln!(io::stderr(), "{text}"));
}

/// Says what the user should know.
pub(crate) fn note(text: impl Display) {
    say(format_args!("note: {text}"));
}

/// Says why the command failed; the status that it ends with. After a panic all has been said.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    if crate::panics::happened() {
        return ExitCode::from(crate::panics::STATUS);
    }
    if lost_reader(error) {
        return ExitCode::from(NO_READER);
    }
    // In one piece: other ranks, and programs that a run started, write there too.
    let help = crate::refusal::code_of(error).map(|code| format!("\nhelp: burnish explain {code}"));
    say(format_args!("error: {}{}", shortened(&told(error)), help.unwrap_or_default()));
    ExitCode::from(1)
}

/// The messages of an error and of what caused it, each once, without the numbers of the operating system.
fn told(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for message in error.chain().map(|cause| without_number(&cause.to_string())) {
        if told.is_empty() {
            told = message;
        } else if !told.contains(&message) {
            told = format!("{told}: {message}");
        }
    }
    told
}

/// A message without ` (os error 2)`, which says again what stands before it.
fn without_number(message: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = message.split(NUMBER);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |told, part| match part.split_once(')') {
        Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => told + rest,
        _ => told + NUMBER + part,
    })
}

/// What comes from outside may be of any length: of a word of more than 300 characters the first 200 are enough.
fn shortened(text: &str) -> String {
    let short = |word: &str| match word.char_indices().nth(300) {
        None => word.to_owned(),
        Some(_) => word.chars().take(200).chain("...".chars()).collect(),
    };
    text.split_inclusive(char::is_whitespace).map(short).collect()
}

/// Prints a result, with a line break after it.
///
/// # Errors
/// If standard output takes nothing any more.
pub(crate) fn result(text: impl Display) -> anyhow::Result<()> {
    let text = text.to_string();
    painted(if io::stdout().is_terminal() { harmless(&text) } else { text.as_str().into() })
}

/// Prints a result whose escape codes are all our own, with a line break after it.
///
/// # Errors
/// If standard output takes nothing any more.
pub(crate) fn painted(text: impl Display) -> anyhow::Result<()> {
    let written = beside_bars(|| {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush())
    });
    written.map_err(|source| TrainError::Lines { to: "standard output".to_owned(), source }.into())
}

/// Prints what closes a run that is done: whether anybody reads it changes nothing.
pub(crate) fn closing(text: impl Display) {
    let _ = result(text);
}

/// Whether standard output's reader is gone.
fn lost_reader(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<TrainError>() {
        Some(TrainError::Lines { to, source }) => {
            to == "standard output" && source.kind() == io::ErrorKind::BrokenPipe
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_told_once_and_without_numbers() {
        let missing = io::Error::from_raw_os_error(2);
        let text = missing.to_string();
        let error = anyhow::Error::new(missing).context(format!("cannot read `a`: {text}"));
        assert_eq!(told(&error), "cannot read `a`: No such file or directory");
        let error = anyhow!("the cause (os error x)").context("the effect");
        assert_eq!(told(&error), "the effect: the cause (os error x)");
    }
}
