//! `--help`, and the page of all options, from the table of options.

use std::fmt::Write;

pub use crate::nearest::nearest_command;
pub use crate::page::options_page;

use crate::command::Command;
use crate::commands::COMMANDS;
use crate::raw::Raw;
use crate::table::Entry;

/// The text of `burnish <command> --help`.
pub(crate) fn text<C: Command>() -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}\n\nUsage: burnish {} [--config FILE] [OPTIONS]", C::ABOUT, C::NAME);
    out.push_str("\n  --config FILE\n      A YAML or TOML file of these options; flags win.\n");
    for group in C::groups() {
        let _ = writeln!(out, "\n{}:", group.title);
        for entry in group.entries {
            let _ =
                writeln!(out, "  --{} {}{}", entry.name, entry.kind.placeholder(), default_of::<C>(&entry));
            let _ = writeln!(out, "      {}", entry.doc);
        }
    }
    out.push_str(
        "\nNames take - or _. A switch is --flag, --flag true, --flag false or --no-flag. Lists are separated by spaces \
         or commas.\n",
    );
    out
}

fn default_of<C: Command>(entry: &Entry) -> String {
    if C::REQUIRED.contains(&entry.name) {
        return " (required)".into();
    }
    match &entry.default {
        Raw::Null => String::new(),
        raw if raw.is_nothing() => String::new(),
        raw => format!(" [{}]", raw.plain()),
    }
}

/// The text of `burnish --help`: what there is to run.
#[must_use]
pub fn overview() -> String {
    let mut out = String::from(
        "Post-training of language models on one machine.\n\nUsage: burnish COMMAND [OPTIONS]\n\n",
    );
    for command in COMMANDS {
        let _ = writeln!(out, "  {:10} {}", command.name, command.about);
    }
    out.push_str(
        "\n`burnish COMMAND --help` lists a command's options. `burnish --version` prints the version.\n",
    );
    out
}
