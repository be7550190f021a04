//! Configs and command lines in the style of published ones, each with what becomes of it (`acceptance/expected.txt`).
//!
//! `cargo xtask acceptance` counts them; `--write` writes what is expected, to be read before it is committed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use burnish_config::{
    Command, ConfigError, CpoOptions, DpoOptions, Fault, GrpoOptions, KtoOptions, OrpoOptions, RewardOptions,
    RlooOptions, SftOptions, published,
};

/// `cargo xtask acceptance --write` sets it.
const WRITE: &str = "BURNISH_WRITE_ACCEPTANCE";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance")
}

/// Options that say what scores completions, one of which `grpo` and `rloo` need.
const SCORES: [&str; 3] = ["reward_funcs", "reward_model_name_or_path", "reward_command"];

/// What becomes of words.
enum Fate {
    /// It runs, after these notes.
    Accepted(Vec<String>),
    /// It does not, for these faults.
    Refused(Vec<Fault>),
    NoCommand(String),
}

fn fate(command: &str, words: &[String]) -> Fate {
    /// The notes; or, where the run itself would find that nothing scores completions, that as a fault.
    fn notes<C: Command>(words: &[String]) -> Result<Vec<String>, ConfigError> {
        let read = C::parse_to_plan(words.iter().cloned()).map(|invocation| invocation.run().unwrap());
        // Models and rows that are not here hide what else is written.
        let named = ["--model_name_or_path", "a/b", "--dataset_name", "c/d"].map(str::to_owned);
        let elsewhere = C::parse_to_plan(words.iter().cloned().chain(named));
        let values = elsewhere.ok().and_then(|invocation| invocation.run()).map(|all| all.to_json());
        let unscored = values.is_some_and(|values| {
            let mut scores = SCORES.iter().filter_map(|name| values.get(*name)).peekable();
            scores.peek().is_some() && scores.all(|value| value.as_array().is_some_and(Vec::is_empty))
        });
        let missing = Fault::Required { name: SCORES[0], doc: "what scores completions".into() };
        match read {
            Ok(_) if unscored => Err(ConfigError { command: C::NAME, faults: vec![missing] }),
            Ok(read) => Ok(read.notes),
            Err(mut error) => {
                error.faults.extend(unscored.then_some(missing));
                Err(error)
            }
        }
    }
    let read = match command {
        "sft" => notes::<SftOptions>(words),
        "dpo" => notes::<DpoOptions>(words),
        "kto" => notes::<KtoOptions>(words),
        "cpo" => notes::<CpoOptions>(words),
        "orpo" => notes::<OrpoOptions>(words),
        "reward" => notes::<RewardOptions>(words),
        "grpo" => notes::<GrpoOptions>(words),
        "rloo" => notes::<RlooOptions>(words),
        other => return Fate::NoCommand(other.to_owned()),
    };
    read.map_or_else(|error| Fate::Refused(error.faults), Fate::Accepted)
}

/// What becomes of words: the keys that are noted, or what is refused.
fn outcome(command: &str, words: &[String]) -> String {
    match fate(command, words) {
        Fate::Accepted(notes) => {
            let keys: Vec<String> = notes.iter().flat_map(|note| keys(note)).collect();
            if keys.is_empty() { "accepted".into() } else { format!("accepted; noted: {}", keys.join(", ")) }
        }
        Fate::Refused(faults) => format!("refused: {}", named(&faults)),
        Fate::NoCommand(other) => format!("refused: no command {other}"),
    }
}

fn named(faults: &[Fault]) -> String {
    faults.iter().map(name).collect::<Vec<_>>().join(", ")
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
        Fault::Required { name, .. } => format!("{name} (missing)"),
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

/// `cargo xtask acceptance --configs` sets it.
const CONFIGS: &str = "BURNISH_ACCEPTANCE_CONFIGS";
/// `cargo xtask acceptance --lines` sets it.
const LINES: &str = "BURNISH_ACCEPTANCE_LINES";

/// How many of a kind are taken.
#[derive(Default)]
struct Tally {
    accepted: usize,
    /// Taken, but for models, rows and files that are named and not here.
    without_files: usize,
    /// Taken, but for what the script or the rest of the line has to say: a reward, a model, rows.
    incomplete: Vec<(String, String)>,
    refused: Vec<(String, String)>,
}

impl Tally {
    fn count(&mut self, what: String, fate: Fate) {
        match fate {
            Fate::Accepted(_) => self.accepted += 1,
            Fate::Refused(mut faults) => {
                faults.retain(|fault| !matches!(fault, Fault::NotFound { .. }));
                if faults.is_empty() {
                    self.without_files += 1;
                } else if faults.iter().all(|fault| matches!(fault, Fault::Required { .. })) {
                    self.incomplete.push((what, named(&faults)));
                } else {
                    self.refused.push((what, named(&faults)));
                }
            }
            Fate::NoCommand(other) => self.refused.push((what, format!("no command {other}"))),
        }
    }

    fn print(&self, kind: &str) {
        let taken = self.accepted + self.without_files;
        println!(
            "{kind}: {taken} of {} taken ({} of them name models, rows or files that are not here); {} leave something to \
             their script or line, {} are refused",
            taken + self.incomplete.len() + self.refused.len(),
            self.without_files,
            self.incomplete.len(),
            self.refused.len(),
        );
        for (what, why) in self.incomplete.iter().chain(&self.refused) {
            println!("  {what}: {why}");
        }
    }
}

/// The command that a config is for: its first line `# burnish COMMAND`, else the word for it in its path.
fn command_of(path: &Path, text: &str) -> String {
    let first = text.lines().next().and_then(|line| line.strip_prefix("# burnish "));
    let lower = path.display().to_string().to_lowercase();
    let named = ["grpo", "dpo", "kto", "rloo", "orpo", "cpo", "reward", "sft"]
        .into_iter()
        .find(|c| lower.contains(c));
    first.or(named).unwrap_or("sft").trim().to_owned()
}

/// Files of configs in a folder and those in it.
fn configs_in(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            configs_in(&path, into);
        } else if matches!(ending, "yaml" | "yml" | "json" | "toml") {
            into.push(path);
        }
    }
}

/// What `cargo xtask acceptance --configs FOLDER --lines FILE` names; without, the corpus that is kept.
#[test]
fn given_configs_and_lines() {
    let given = (std::env::var_os(CONFIGS), std::env::var_os(LINES));
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance");
    let (configs, lines) = match given {
        (None, None) => (Some(kept.join("configs").into()), Some(kept.join("lines.txt").into())),
        given => given,
    };
    if let Some(folder) = configs {
        let mut files = Vec::new();
        configs_in(Path::new(&folder), &mut files);
        files.sort();
        let mut tally = Tally::default();
        for file in files {
            let command = command_of(&file, &std::fs::read_to_string(&file).unwrap());
            let words = ["--config".to_owned(), file.display().to_string()];
            tally.count(file.display().to_string(), fate(&command, &words));
        }
        tally.print("configs");
    }
    if let Some(file) = lines {
        let file = Path::new(&file);
        let beside = |word: String| {
            let there = file.parent().unwrap().join(&word);
            if there.is_file() { there.display().to_string() } else { word }
        };
        let mut tally = Tally::default();
        for line in std::fs::read_to_string(file).unwrap().lines() {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            let words: Vec<String> = split(line).into_iter().map(beside).collect();
            let fate = match published(&words) {
                Some(words) => fate(&words[0], &words[1..]),
                None => Fate::NoCommand("in this line".into()),
            };
            tally.count(line.to_owned(), fate);
        }
        tally.print("command lines");
    }
}
