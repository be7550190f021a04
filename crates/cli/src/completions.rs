//! `burnish completions` and `burnish man`: what shells and `man` know of the program, from the table of options.

use std::path::Path;
use std::process::ExitCode;

use burnish_config::table::{COMMANDS, CommandInfo, ValueKind};
use burnish_core::ErrorCode;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueEnum, ValueHint};
use clap_complete::Shell;

use crate::refusal::{refusal, refuse, require};

/// Prints what a shell completes.
pub(crate) fn print(words: &[String]) -> anyhow::Result<ExitCode> {
    let shells: Vec<String> = Shell::value_variants().iter().map(Shell::to_string).collect();
    let shell = match words {
        [word] => Shell::from_str(word, true).ok(),
        _ => None,
    };
    let Some(shell) = shell else {
        refuse!(
            UnknownCommand,
            "expected a shell, `burnish completions {}`; for bash: `burnish completions bash > ~/.local/share/bash-completion/completions/burnish`",
            shells.join("|")
        )
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut described(), "burnish", &mut text);
    crate::voice::painted(String::from_utf8(text)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the program and one for each command.
pub(crate) fn manual(words: &[String]) -> anyhow::Result<ExitCode> {
    let [folder] = words else {
        refuse!(
            MissingOption,
            "expected a folder, `burnish man ~/.local/share/man/man1`; then `man burnish-sft` shows a page"
        )
    };
    require!(
        !folder.starts_with('-'),
        UnknownOption,
        "expected a folder, got {folder}: `burnish man ~/.local/share/man/man1`"
    );
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(described(), folder))
        .map_err(|error| refusal!(CannotWrite, "cannot write pages into {}: {error}", folder.display()))?;
    crate::voice::note(format_args!("{} pages are in {}", COMMANDS.len() + 1, folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// The program as clap describes one; it does not read the command line.
fn described() -> Command {
    let program = Command::new("burnish")
        .about("Fine-tunes language models on Burn: no Python, one program")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true);
    let codes = ErrorCode::ALL.map(ErrorCode::name);
    let shells = PossibleValuesParser::new(Shell::value_variants().iter().map(Shell::to_string));
    program
        .subcommands(COMMANDS.iter().map(command))
        .subcommand(
            Command::new("explain")
                .about("Tell the cause of a class of errors, and what helps")
                .arg(Arg::new("CODE").value_parser(PossibleValuesParser::new(codes))),
        )
        .subcommand(
            Command::new("completions")
                .about("Print completions for a shell")
                .arg(Arg::new("shell").required(true).value_parser(shells)),
        )
        .subcommand(
            Command::new("man")
                .about("Write manual pages into a folder")
                .arg(Arg::new("folder").required(true).value_hint(ValueHint::DirPath)),
        )
}

fn command(command: &CommandInfo) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_hint(ValueHint::FilePath)
        .help("A YAML or TOML file of these options; flags win");
    let mut described = Command::new(command.name).about(command.about).arg(config);
    for group in (command.groups)() {
        for entry in group.entries {
            let (doc, default) = (entry.doc.trim_end_matches('.'), entry.default_text(command.required));
            let arg = Arg::new(entry.name)
                .long(entry.name)
                .help(format!("{doc}{default}"))
                .help_heading(group.title);
            let arg = match entry.kind {
                ValueKind::Choice(words) => {
                    arg.value_parser(PossibleValuesParser::new(words.iter().copied()))
                }
                ValueKind::Bool => {
                    arg.value_parser(PossibleValuesParser::new(["true", "false"])).num_args(0..=1)
                }
                ValueKind::Path => arg.value_name("PATH").value_hint(ValueHint::AnyPath),
                kind => arg.value_name(kind.placeholder()),
            };
            described = described.arg(arg);
        }
    }
    described
}
