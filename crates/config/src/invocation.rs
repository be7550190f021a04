//! `Invocation`: a parsed command line with all sources applied.

use std::collections::BTreeMap;

use crate::command::Command;
use crate::fault::Origin;

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation<C> {
    /// Run the command.
    Run(Resolved<C>),
    /// Print this text to standard output and stop.
    Help(String),
}

impl<C> Invocation<C> {
    /// The options, unless help was asked for.
    #[must_use]
    pub fn run(self) -> Option<Resolved<C>> {
        match self {
            Self::Run(resolved) => Some(resolved),
            Self::Help(_) => None,
        }
    }
}

/// Options with all sources applied: defaults, then the file, then flags.
#[derive(Debug)]
pub struct Resolved<C> {
    /// The options.
    pub options: C,
    /// The options that were written somewhere, and where.
    pub given: BTreeMap<&'static str, Origin>,
    /// What the user should know: accepted values that do less than they may seem to.
    pub notes: Vec<String>,
}

impl<C: Command> Resolved<C> {
    /// Every option and its value, as JSON: the record of a run.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        self.options.values().iter().map(|(name, raw)| ((*name).to_owned(), raw.into())).collect()
    }

    /// The options that were written somewhere, in reading order, as plain text: for people.
    #[must_use]
    pub fn written(&self) -> Vec<(String, String)> {
        let values = self.options.values();
        let given = values.iter().filter(|(name, _)| self.given.contains_key(name));
        given.map(|(name, raw)| ((*name).to_owned(), raw.plain())).collect()
    }
}
