//! `docs/options.md`, from the table of options: commands with the groups that they take, then each group once.

use std::fmt::Write;

use crate::commands::COMMANDS;
use crate::foreign::{ALIASES, Fate, NOTED, REFUSED, TRANSLATED, UNUSED};
use crate::raw::Raw;
use crate::table::{Entry, Group};

/// A group with the commands that take it.
struct Taken {
    group: Group,
    by: Vec<&'static str>,
}

impl Taken {
    /// Its heading: the title, with the commands where other groups have the same.
    fn heading(&self, all: &[Self]) -> String {
        let title = self.group.title;
        let alike = all.iter().filter(|other| other.group.title == title).count();
        if alike == 1 { title.to_owned() } else { format!("{title}: {}", self.by.join(", ")) }
    }

    /// A link to its heading, as GitHub names it.
    fn link(&self, all: &[Self]) -> String {
        let heading = self.heading(all);
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect();
        format!("[{}](#{anchor})", self.group.title)
    }
}

/// Every group once, in the order in which commands first take it.
fn groups() -> Vec<Taken> {
    let mut all: Vec<Taken> = Vec::new();
    for command in COMMANDS {
        for group in (command.groups)() {
            match all.iter_mut().find(|known| known.group.name == group.name) {
                Some(known) => known.by.push(command.name),
                None => all.push(Taken { group, by: vec![command.name] }),
            }
        }
    }
    all
}

fn shown(entry: &Entry) -> String {
    if entry.default.is_nothing() && !matches!(entry.default, Raw::Text(_)) {
        String::new()
    } else {
        format!("`{}`", entry.default.plain())
    }
}

/// The whole page, in Markdown: commands, groups, other spellings, and what a TRL config may name besides.
#[must_use]
pub fn options_page() -> String {
    let mut out = String::from(
        "# Options\n\n<!-- Written by `cargo xtask docs` from crates/config; do not edit. -->\n\nEvery option is a flag \
         (`--learning_rate 1e-4`, `--learning-rate=1e-4`) and a key of the file that `--config` names (YAML or TOML); \
         flags win.\nA switch is `--flag`, `--flag true`, `--flag false` or `--no-flag`.\nLists are separated by spaces or \
         commas.\nNames and defaults are those of the project in the third column.\n`burnish COMMAND --help` lists a command's \
         options with its defaults.\n\n## Commands\n\n",
    );
    let all = groups();
    for command in COMMANDS {
        let _ = writeln!(out, "### `burnish {}`\n\n{}.\n", command.name, command.about);
        let own = (command.groups)();
        let taken = |group: &Group| all.iter().find(|taken| taken.group.name == group.name);
        let links: Vec<String> = own.iter().filter_map(taken).map(|taken| taken.link(&all)).collect();
        let _ = writeln!(out, "* Groups: {}", links.join(", "));
        let quoted: Vec<String> = command.required.iter().map(|name| format!("`{name}`")).collect();
        if !quoted.is_empty() {
            let _ = writeln!(out, "* Required: {}", quoted.join(", "));
        }
        let shared = own.iter().flat_map(|group| (group.shared)());
        let pairs = own.iter().flat_map(|group| &group.entries).zip(shared);
        let differ: Vec<String> = pairs
            .filter(|(entry, shared)| entry.default != shared.default)
            .map(|(entry, _)| format!("`{}` {}", entry.name, shown(entry)))
            .collect();
        if !differ.is_empty() {
            let _ = writeln!(out, "* Defaults of its own: {}", differ.join(", "));
        }
        out.push('\n');
    }
    out.push_str("## Groups\n\n");
    for taken in &all {
        let _ = writeln!(out, "### {}\n", taken.heading(&all));
        let _ = writeln!(out, "Taken by {}.\n", taken.by.join(", "));
        out.push_str("| option | default | from | what it does |\n|---|---|---|---|\n");
        for entry in (taken.group.shared)() {
            let doc = entry.doc.replace('|', "\\|");
            let (default, source) = (shown(&entry), entry.source.name());
            let _ = writeln!(out, "| `{}` | {default} | {source} | {doc} |", entry.name);
        }
        out.push('\n');
    }
    out.push_str("## Other spellings\n\n| written | read as |\n|---|---|\n");
    for (alias, meant) in ALIASES {
        let _ = writeln!(out, "| `{alias}` | `{meant}` |");
    }
    out.push_str(
        "\n## Keys that are read as options\n\nWhat is written for an option itself wins over what a launcher's file \
         says.\n\n| key | says |\n|---|---|\n",
    );
    for (names, says) in TRANSLATED {
        let _ = writeln!(out, "| `{}` | {says} |", names.join("`, `"));
    }
    out.push_str(
        "\n## Keys that are noted\n\nThey change no result here, or have an equivalent: a line at the start names those that \
         ask for something, and the run goes on.\n`--no_KEY` says `false`.\n\n| key | instead |\n|---|---|\n",
    );
    for foreign in NOTED.iter().chain(UNUSED) {
        let _ = writeln!(out, "| `{}` | {} |", foreign.names.join("`, `"), foreign.reason);
    }
    out.push_str(
        "\n## Keys that are refused\n\nA run without what they ask for would be another run.\nNull, false, 0 and empty values \
         are accepted, and those shown.\n\n| key | accepted | the mend |\n|---|---|---|\n",
    );
    for foreign in REFUSED {
        let accepted = match foreign.fate {
            Fate::RefusedBut(words) if !words.is_empty() => format!("`{}`", words.join("`, `")),
            _ => String::new(),
        };
        let _ = writeln!(out, "| `{}` | {accepted} | {} |", foreign.names.join("`, `"), foreign.reason);
    }
    out
}
