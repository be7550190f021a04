//! Configs and command lines in the style of published ones, each with what becomes of it (`acceptance/expected.txt`).
//!
//! `cargo xtask acceptance` counts them; `--write` writes what is expected, to be read before it is committed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use burnish_config::{
    Command, ConfigError, DpoOptions, Fault, GrpoOptions, KtoOptions, RewardOptions, RlooOptions, SftOptions,
    published,
};

/// `cargo xtask acceptance --write` sets it.
const WRITE: &str = "BURNISH_WRITE_ACCEPTANCE";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance")
}

/// What becomes of words: the keys that are noted, or what is refused.
fn outcome(command: &str, words: &[String]) -> String {
    fn notes<C: Command>(words: &[String]) -> Result<Vec<String>, ConfigError> {
        C::parse_to_plan(words.iter().cloned()).map(|invocation| invocation.run().unwrap().notes)
    }
    let read = match command {
        "sft" => notes::<SftOptions>(words),
        "dpo" => notes::<DpoOptions>(words),
        "kto" => notes::<KtoOptions>(words),
        "reward" => notes::<RewardOptions>(words),
        "grpo" => notes::<GrpoOptions>(words),
        "rloo" => notes::<RlooOptions>(words),
        other => return format!("refused: no command {other}"),
    };
    match read {
        Ok(notes) => {
            let keys: Vec<String> = notes.iter().flat_map(|note| keys(note)).collect();
            if keys.is_empty() { "accepted".into() } else { format!("accepted; noted: {}", keys.join(", ")) }
        }
        Err(error) => format!("refused: {}", error.faults.iter().map(name).collect::<Vec<_>>().join(", ")),
    }
}

/// The keys that begin a note.
fn keys(note: &str) -> Vec<String> {
    let before = note.split_once(": ").map_or(note, |(before, _)| before);
    before.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

fn name(fault: &Fault) -> String {
    match fault {
        Fault::Refused { name, got, .. } => format!("{name} {got}"),
        Fault::Type { name, got, .. } | Fault::Range { name, got, .. } => format!("{name} {got}"),
        Fault::Unknown { name, .. } => format!("{name} (unknown)"),
        Fault::Conflict { name, with, .. } => format!("{name} with {with}"),
        Fault::Unreadable { path, .. } => format!("{} (no file)", path.display()),
        other => other.to_string(),
    }
}

/// A line as a shell splits it, as far as these lines go.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == ' ' => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

fn outcomes() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder().join("configs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let command = text.lines().next().unwrap().strip_prefix("# burnish ").unwrap();
        let words = ["--config".to_owned(), file.display().to_string()];
        all.insert(file.file_name().unwrap().to_string_lossy().into_owned(), outcome(command, &words));
    }
    let lines = std::fs::read_to_string(folder().join("lines.txt")).unwrap();
    for line in lines.lines().filter(|line| !line.starts_with('#')) {
        let in_folder = |word: String| {
            if word.starts_with("configs/") { folder().join(word).display().to_string() } else { word }
        };
        let words: Vec<String> = split(line).into_iter().map(in_folder).collect();
        let said = match published(&words) {
            Some(words) => outcome(&words[0], &words[1..]),
            None => "refused: not a line that starts a trainer".into(),
        };
        all.insert(line.to_owned(), said);
    }
    all
}

#[test]
fn published_configs_and_lines_have_their_fates() {
    let outcomes = outcomes();
    let mut page = String::new();
    for (what, outcome) in &outcomes {
        let _ = writeln!(page, "{what}\n    {outcome}");
    }
    let path = folder().join("expected.txt");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    for (kind, is_config) in [("configs", true), ("command lines", false)] {
        let of_kind: Vec<&String> = outcomes
            .iter()
            .filter(|(what, _)| what.ends_with(".yaml") == is_config)
            .map(|(_, o)| o)
            .collect();
        let accepted = of_kind.iter().filter(|outcome| outcome.starts_with("accepted")).count();
        println!("{kind}: {} of {} accepted as they are", accepted, of_kind.len());
        assert!(of_kind.len() >= 30);
    }
    for (what, outcome) in outcomes.iter().filter(|(_, outcome)| outcome.starts_with("refused")) {
        println!("  {what}: {outcome}");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differ: Vec<_> = page.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
    assert!(
        page == expected,
        "differs from expected.txt; run cargo xtask acceptance --write and read what changed: {differ:#?}"
    );
}
