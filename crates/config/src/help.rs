//! `--help` and the reference, from the table.

use std::fmt::Write;

use crate::command::{COMMANDS, Command};
use crate::foreign::{ALIASES, Accepts, FOREIGN};
use crate::raw::Raw;
use crate::table::Entry;

/// The text of `burnish <command> --help`.
pub(crate) fn text<C: Command>() -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}\n\nUsage: burnish {} [--config FILE] [OPTIONS]", C::ABOUT, C::NAME);
    out.push_str("\n  --config FILE\n      A YAML or TOML file of these options; flags win.\n");
    for (title, entries) in C::groups() {
        let _ = writeln!(out, "\n{title}:");
        for entry in entries {
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

/// One command's page, in Markdown.
pub(crate) fn reference<C: Command>() -> String {
    let mut out = String::new();
    let _ = writeln!(out, "## `burnish {}`\n\n{}.\n", C::NAME, C::ABOUT);
    for (title, entries) in C::groups() {
        let _ = writeln!(out, "### {title}\n\n| option | default | from | what it does |\n|---|---|---|---|");
        for entry in entries {
            let default = if C::REQUIRED.contains(&entry.name) {
                "required".into()
            } else if entry.default.is_nothing() && !matches!(entry.default, Raw::Text(_)) {
                String::new()
            } else {
                format!("`{}`", entry.default.plain())
            };
            let doc = entry.doc.replace('|', "\\|");
            let _ = writeln!(out, "| `{}` | {default} | {} | {doc} |", entry.name, entry.source.name());
        }
        out.push('\n');
    }
    out
}

/// The whole reference, in Markdown: every command, other spellings, and what a TRL config may name besides.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Options\n\n<!-- Written by `cargo xtask docs` from crates/config; do not edit. -->\n\nEvery option is a flag \
         (`--learning_rate 1e-4`, `--learning-rate=1e-4`) and a key of the file that `--config` names (YAML or TOML); \
         flags win.\nA switch is `--flag`, `--flag true`, `--flag false` or `--no-flag`.\nLists are separated by spaces or \
         commas.\nNames and defaults are those of the project in the third column.\n\n",
    );
    for command in COMMANDS {
        out.push_str(&(command.reference)());
    }
    out.push_str("## Other spellings\n\n| written | read as |\n|---|---|\n");
    for (alias, meant) in ALIASES {
        let _ = writeln!(out, "| `{alias}` | `{meant}` |");
    }
    out.push_str(
        "\n## Keys of TRL, Transformers and Accelerate that burnish does not have\n\nThey may stand in a config with the \
         values shown; any other value is refused with the reason.\n\n| key | accepted | why |\n|---|---|---|\n",
    );
    for foreign in FOREIGN {
        let accepted = match foreign.accepts {
            Accepts::Any => "anything".into(),
            Accepts::Nothing => "nothing, false, 0".into(),
            Accepts::Only(word) => format!("`{word}`"),
        };
        let _ = writeln!(out, "| `{}` | {accepted} | {} |", foreign.names.join("`, `"), foreign.reason);
    }
    out
}
