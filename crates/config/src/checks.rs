//! Collection of the faults that rules of options find, before anything is loaded.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use burnish_core::{OptionFault, OptionFaults};

use crate::fault::{Fault, Origin};
use crate::raw::Raw;
use crate::table::Entry;

pub(crate) const MODEL_HINT: &str =
    "; burnish reads local folders: download the model first, for instance with `hf download`";
pub(crate) const AT_LEAST_1: &str = "a whole number that is at least 1";
pub(crate) const AT_LEAST_0: &str = "a number that is at least 0";
pub(crate) const ABOVE_0: &str = "a number above 0";

/// Whether a number is finite and not negative.
pub(crate) fn at_least_0(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

/// Whether a name may be one of the Hub's: `name` or `owner/name`, without the ending of a file. Such a name is looked for when
/// it is opened, as it may be a folder's as well.
pub(crate) fn is_hub_name(name: &str) -> bool {
    const ENDINGS: [&str; 8] = ["json", "jsonl", "ndjson", "csv", "tsv", "txt", "parquet", "arrow"];
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && part.chars().all(plain) && !part.starts_with(['.', '-']) && !part.ends_with('.')
    };
    let ending = name.rsplit_once('.').is_some_and(|(_, end)| ENDINGS.contains(&end));
    let (owner, repository) = name.split_once('/').unwrap_or(("hub", name));
    !ending && part(owner) && part(repository) && name.len() <= 96
}

/// Where a command's checks put what they find.
#[derive(Debug)]
pub struct Checks<'a> {
    given: &'a BTreeMap<&'static str, Origin>,
    values: &'a [(&'static str, Raw)],
    plans: bool,
    faults: &'a mut Vec<Fault>,
    notes: &'a mut Vec<String>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(
        (given, values): (&'a BTreeMap<&'static str, Origin>, &'a [(&'static str, Raw)]),
        plans: bool,
        faults: &'a mut Vec<Fault>,
        notes: &'a mut Vec<String>,
    ) -> Self {
        Self { given, values, plans, faults, notes }
    }

    /// Whether the options are those of a plan, and nothing is run.
    #[must_use]
    pub(crate) fn plans(&self) -> bool {
        self.plans
    }

    /// Whether the option was written somewhere.
    #[must_use]
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Whether the option was written, and not as null.
    #[must_use]
    pub(crate) fn says_something(&self, name: &str) -> bool {
        self.is_given(name) && self.values.iter().any(|(known, raw)| *known == name && !raw.is_nothing())
    }

    pub(crate) fn origin(&self, name: &str) -> Origin {
        self.given.get(name).cloned().unwrap_or(Origin::Default)
    }

    pub(crate) fn value(&self, name: &str) -> String {
        self.values
            .iter()
            .find(|(known, _)| *known == name)
            .map_or_else(String::new, |(_, raw)| raw.to_string())
    }

    /// A fault unless the value is in range; an option that several rules find out of range is reported once.
    pub(crate) fn range(&mut self, name: &'static str, holds: bool, expected: &'static str) {
        let known = |fault: &Fault| matches!(fault, Fault::Range { name: other, .. } if *other == name);
        if !holds && !self.faults.iter().any(known) {
            self.faults.push(Fault::Range {
                origin: self.origin(name),
                name,
                expected,
                got: self.value(name),
            });
        }
    }

    /// A fault that two options contradict each other.
    pub(crate) fn conflict(&mut self, name: &'static str, with: impl Display, mend: &'static str) {
        let (origin, got, with) = (self.origin(name), self.value(name), with.to_string());
        self.faults.push(Fault::Conflict { origin, name, got, with, mend });
    }

    /// What an option's owner says is wrong.
    pub(crate) fn owner(&mut self, faults: OptionFaults) {
        for fault in faults {
            match fault {
                OptionFault::Range { option, expected, .. } => self.range(option, false, expected),
                OptionFault::Conflict { option, with, mend, .. } => self.conflict(option, with, mend),
            }
        }
    }

    /// A fault that is neither a range nor a contradiction.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Something the user should know that is no fault.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// A fault unless the option has a value. An option whose value was refused is not reported again.
    pub(crate) fn required(&mut self, name: &str, entries: &[Entry]) {
        let has = |name: &str| self.values.iter().any(|(known, raw)| *known == name && !raw.is_nothing());
        // Several data sets stand in for one.
        let set = has(name) || name == "dataset_name" && has("datasets");
        let refused = self
            .faults
            .iter()
            .any(|fault| matches!(fault, Fault::Type { name: known, .. } if *known == name));
        if let (false, false, Some(entry)) = (set, refused, entries.iter().find(|entry| entry.name == name)) {
            self.faults
                .push(Fault::Required { name: entry.name, doc: entry.doc.trim_end_matches('.').to_owned() });
        }
    }

    pub(crate) fn folder(&mut self, name: &'static str, path: &Path, hint: &'static str) {
        if !path.as_os_str().is_empty() && !path.is_dir() && !path.to_str().is_some_and(is_hub_name) {
            let origin = self.origin(name);
            self.faults.push(Fault::NotFound { origin, name, what: "folder", path: path.to_owned(), hint });
        }
    }

    pub(crate) fn rows(&mut self, name: &'static str, path: &str) {
        let local = !path.contains(['*', '?', '[', '{']) && !is_hub_name(path);
        if !path.is_empty() && local && !Path::new(path).exists() {
            let hint = "; expected a file or folder of rows, a glob in quotes, or the owner/name of a data set on the hub";
            let origin = self.origin(name);
            self.faults.push(Fault::NotFound {
                origin,
                name,
                what: "file or folder",
                path: path.into(),
                hint,
            });
        }
    }
}
