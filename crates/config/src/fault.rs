//! `Fault`: one invalid option, with its source, its value and the mend. All faults of a configuration are reported
//! together.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use burnish_core::{Coded, ErrorCode};

/// Faults beyond which no option is looked at: a file with so many is of something else.
pub(crate) const MOST: usize = 200;
/// Faults that a message shows.
const SHOWN: usize = 20;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In a file, at this line where it is known.
    File {
        /// The file.
        path: Arc<PathBuf>,
        /// The line, counted from 1.
        line: Option<usize>,
    },
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("command line"),
            Self::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Default => f.write_str("defaults"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No option has this name.
    #[error("{origin}: unknown option `{name}`{}", suggest(*.nearest))]
    Unknown {
        /// Where it was written.
        origin: Origin,
        /// The name as written.
        name: String,
        /// The option with the most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// No group of options and no option has this name.
    #[error("there is no help on `{topic}`: `burnish {command} --help` lists the groups{}", likely(*.nearest))]
    Topic {
        /// What was asked for.
        topic: String,
        /// The command.
        command: &'static str,
        /// The group or option with the most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// An option of another command, or of another trainer.
    #[error("{origin}: `{name}` is an option of {}, not of `burnish {command}`; take it out", list(.of))]
    Elsewhere {
        /// Where it was written.
        origin: Origin,
        /// The option.
        name: &'static str,
        /// The commands that have it.
        of: Vec<&'static str>,
        /// The command that was run.
        command: &'static str,
    },
    /// The value is not of the option's type.
    #[error("{origin}: {name}: expected {expected}, got {got}")]
    Type {
        /// Where it was written.
        origin: Origin,
        /// The option.
        name: &'static str,
        /// What it takes.
        expected: String,
        /// What was written.
        got: String,
    },
    /// The value is of the right type but out of range.
    #[error("{origin}: {name}: expected {expected}, got {got}")]
    Range {
        /// Where it was written.
        origin: Origin,
        /// The option.
        name: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What was written.
        got: String,
    },
    /// A flag without its value.
    #[error("command line: --{name} needs a value: {expected}")]
    MissingValue {
        /// The option.
        name: &'static str,
        /// What it takes.
        expected: String,
    },
    /// An option without which the command cannot run.
    #[error("--{name} is missing: {doc}")]
    Required {
        /// The option.
        name: &'static str,
        /// Its line of help.
        doc: String,
    },
    /// An option of TRL, Transformers or Accelerate that burnish does not have, with a value that asks for something.
    #[error("{origin}: {name}: {got} is not supported: {reason}")]
    Refused {
        /// Where it was written.
        origin: Origin,
        /// The option.
        name: String,
        /// What was written.
        got: String,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// Two options that contradict each other.
    #[error("{origin}: {name}: {got} does not go with {with}; {mend}")]
    Conflict {
        /// Where the first was written.
        origin: Origin,
        /// The first option.
        name: &'static str,
        /// Its value.
        got: String,
        /// The other option and its value.
        with: String,
        /// What to do.
        mend: &'static str,
    },
    /// A word on the command line that belongs to no flag.
    #[error("command line: unexpected argument {word:?}; options begin with --")]
    Stray {
        /// The word.
        word: String,
    },
    /// A path that is not there.
    #[error("{origin}: {name}: no {what} at {path:?}{hint}")]
    NotFound {
        /// Where it was written.
        origin: Origin,
        /// The option.
        name: &'static str,
        /// What was looked for: a folder, a file.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What to do, beginning with a separator, or nothing.
        hint: &'static str,
    },
    /// The configuration file cannot be read.
    #[error("{path:?}: cannot read the file: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The configuration file is neither YAML nor TOML.
    #[error("{path:?}: expected a name ending in .yaml, .yml, .json or .toml")]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// The configuration file is not well formed YAML.
    #[error("{path:?}: not valid YAML: {cause}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        cause: Box<serde_saphyr::Error>,
    },
    /// A key that is written twice.
    #[error("{path:?}: `{name}` is written twice, on lines {first} and {second}; keep one")]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The key.
        name: String,
        /// The line of the first, counted from 1.
        first: usize,
        /// The line of the second.
        second: usize,
    },
    /// The configuration file is not well formed TOML.
    #[error("{path:?}: not valid TOML: {cause}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        cause: Box<toml::de::Error>,
    },
    /// The configuration file is not a mapping from options to values.
    #[error("{path:?}: expected a mapping from options to values at the top level, got {got}")]
    NotAMapping {
        /// The file.
        path: PathBuf,
        /// What is there instead.
        got: String,
    },
}

fn likely(nearest: Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn suggest(nearest: Option<&'static str>) -> String {
    nearest.map_or_else(|| "; see --help for all of them".into(), |_| likely(nearest))
}

fn list(commands: &[&'static str]) -> String {
    let names: Vec<String> = commands.iter().map(|name| format!("`burnish {name}`")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// Everything that is wrong with the options of one command.
#[derive(Debug)]
pub struct ConfigError {
    /// The command.
    pub command: &'static str,
    /// What is wrong, in the order in which it was written. Never empty.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.faults.as_slice() {
            return write!(f, "{only}");
        }
        write!(f, "{} faults in the options of `burnish {}`:", self.faults.len(), self.command)?;
        for fault in self.faults.iter().take(SHOWN) {
            write!(f, "\n  * {fault}")?;
        }
        match self.faults.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Coded for Fault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } | Self::Topic { .. } | Self::Elsewhere { .. } | Self::Stray { .. } => {
                ErrorCode::UnknownOption
            }
            Self::Type { .. } | Self::Range { .. } | Self::MissingValue { .. } => ErrorCode::BadValue,
            Self::Required { .. } => ErrorCode::MissingOption,
            Self::Refused { .. } => ErrorCode::UnsupportedOption,
            Self::Conflict { .. } => ErrorCode::Conflict,
            Self::NotFound { .. } => ErrorCode::NotFound,
            Self::Unreadable { .. }
            | Self::Format { .. }
            | Self::Yaml { .. }
            | Self::Duplicate { .. }
            | Self::Toml { .. }
            | Self::NotAMapping { .. } => ErrorCode::BadConfig,
        }
    }
}

/// That of the first fault.
impl Coded for ConfigError {
    fn code(&self) -> ErrorCode {
        self.faults.first().map_or(ErrorCode::BadConfig, Coded::code)
    }
}
