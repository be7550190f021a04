//! `--help`, whole or of one topic, from the table of options.

use std::fmt::Write;

pub use crate::nearest::nearest_command;
pub use crate::page::options_page;

use crate::command::Command;
use crate::commands::COMMANDS;
use crate::nearest::nearest;
use crate::table::{Entry, Group};

/// Options of a command beyond which its groups are listed first.
const AT_ONCE: usize = 40;
/// Columns of a list of names.
const WIDTH: usize = 100;

const CLOSING: &str = "Names take - or _. A switch is --flag, --flag true, --flag false or --no-flag. Lists are separated by spaces or \
     commas.\n";

/// The text of `burnish <command> --help`: every option of a command that has few of them, else its groups.
pub(crate) fn text<C: Command>() -> String {
    let (groups, entries) = (C::groups(), C::entries());
    let name = C::NAME;
    let mut out = format!("{}\n\nUsage: burnish {name} [--config FILE] [OPTIONS]\n\n", C::ABOUT);
    out.push_str("  --config FILE\n      A YAML or TOML file of these options; flags win.\n");
    if entries.len() <= AT_ONCE {
        groups.iter().for_each(|group| explained::<C>(&mut out, group));
        let _ = write!(out, "\n{CLOSING}");
        return out;
    }
    entries.iter().filter(|entry| C::REQUIRED.contains(&entry.name)).for_each(|entry| {
        option::<C>(&mut out, entry);
    });
    let wide = groups.iter().map(|group| group.title.len()).max().unwrap_or(0);
    let _ = writeln!(out, "\nGroups of its {} options:", entries.len());
    for group in &groups {
        let names: Vec<&str> = group.entries.iter().map(|entry| entry.name).collect();
        let _ = writeln!(out, "  {:wide$}  {}", group.title, beginning(&names, WIDTH - wide - 4));
    }
    let _ = write!(
        out,
        "\n`burnish {name} --help GROUP` explains a group, `--help OPTION` an option, `--help all` everything.\n{CLOSING}"
    );
    out
}

/// The text of `burnish <command> --help TOPIC`: a group, an option, or `all`; `Err` names what is most like it.
pub(crate) fn topic<C: Command>(topic: &str) -> Result<String, Option<&'static str>> {
    let groups = C::groups();
    let word = topic.trim_start_matches('-').replace('-', "_").to_lowercase();
    let mut out = String::new();
    if word == "all" {
        groups.iter().for_each(|group| explained::<C>(&mut out, group));
        let _ = write!(out, "\n{CLOSING}");
    } else if let Some(group) = groups.iter().find(|group| group.title.to_lowercase() == word) {
        explained::<C>(&mut out, group);
    } else if let Some(entry) = C::entries().iter().find(|entry| entry.name == word) {
        option::<C>(&mut out, entry);
        let _ = writeln!(out, "      Named as in {}.", entry.source.name());
    } else {
        let titles = groups.iter().map(|group| group.title);
        let title = titles.max_by(|a, b| {
            let alike = |title: &str| strsim::jaro_winkler(&title.to_lowercase(), &word);
            alike(a).total_cmp(&alike(b))
        });
        let title = title.filter(|title| strsim::jaro_winkler(&title.to_lowercase(), &word) > 0.8);
        return Err(title.or_else(|| nearest(&word, &C::entries())));
    }
    Ok(out.trim_start_matches('\n').to_owned())
}

/// A group's options with what they say.
fn explained<C: Command>(out: &mut String, group: &Group) {
    let _ = writeln!(out, "\n{}:", group.title);
    group.entries.iter().for_each(|entry| option::<C>(out, entry));
}

fn option<C: Command>(out: &mut String, entry: &Entry) {
    let _ =
        writeln!(out, "  --{} {}{}", entry.name, entry.kind.placeholder(), entry.default_text(C::REQUIRED));
    let _ = writeln!(out, "      {}", entry.doc);
}

/// As many names as a line has room for, and how many more there are.
fn beginning(names: &[&str], width: usize) -> String {
    let more = |shown: usize| match names.len() - shown {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let shown =
        (1..=names.len()).rev().find(|shown| names[..*shown].join(", ").len() + more(*shown).len() <= width);
    let shown = shown.unwrap_or(1).min(names.len());
    names[..shown].join(", ") + &more(shown)
}

/// The text of `burnish --help`: what there is to run.
#[must_use]
pub fn overview() -> String {
    let mut out = String::from(
        "burnish fine-tunes language models on Burn: no Python, one program.\n\nUsage: burnish COMMAND [--config FILE] [OPTIONS]\n\nCommands:\n",
    );
    for command in COMMANDS {
        let _ = writeln!(out, "  {:11} {}", command.name, command.about);
    }
    for (name, about) in [
        ("explain", "Tell the cause of a class of errors, and what helps"),
        ("completions", "Print completions for a shell: bash, zsh, fish, elvish or powershell"),
        ("man", "Write manual pages into a folder"),
    ] {
        let _ = writeln!(out, "  {name:11} {about}");
    }
    out.push_str(
        "\n`burnish COMMAND --help` lists a command's options, with TRL's and Transformers' names and defaults.\n`burnish --version` prints the version.\n\nTo begin with, a model folder (or a name on the hub) and rows, one JSON object a line:\n  burnish data sft --model_name_or_path MODEL --dataset_name ROWS.jsonl\n  burnish sft --model_name_or_path MODEL --dataset_name ROWS.jsonl --output_dir OUT --use_peft\n  burnish chat MODEL --adapter_name_or_path OUT",
    );
    out
}
