//! Errors of adapters.

use std::fmt;
use std::path::PathBuf;

use burnish_core::{Choice, Coded, ErrorCode};
use burnish_weight_files::WeightFileError;

use crate::PeftType;

/// An adapter that cannot be configured, planned, loaded, saved or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeftError {
    /// A file that cannot be read or written.
    #[error(transparent)]
    Store(#[from] WeightFileError),
    /// A folder without an adapter.
    #[error("no adapter_config.json in `{}`{}", path.display(), subfolders(found))]
    NoAdapter {
        /// The folder.
        path: PathBuf,
        /// Subfolders that hold an adapter.
        found: Vec<String>,
    },
    /// A configuration file that is not one.
    #[error("`{}` is not an adapter configuration: {reason}", path.display())]
    CorruptConfig {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        reason: String,
    },
    /// A method other than LoRA.
    #[error(
        "peft_type is {peft_type}, burnish reads {} adapters (in adapter_config.json); {}",
        PeftType::WORDS.join(", "),
        instead_of(peft_type)
    )]
    UnsupportedMethod {
        /// The method as written.
        peft_type: String,
    },
    /// A setting that a method does not have, or not with such a value.
    #[error("peft_type {peft_type}: `{key}` {reason}")]
    MethodKey {
        /// The method.
        peft_type: &'static str,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key that changes the arithmetic in a way that burnish does not compute.
    #[error(
        "adapter_config.json has `{key}: {value}`, which changes the arithmetic and is not supported; {mend}"
    )]
    UnsupportedKey {
        /// The key.
        key: String,
        /// Its value as JSON.
        value: String,
        /// What to do about it.
        mend: &'static str,
    },
    /// A Burn module that carries adapters already.
    #[cfg(feature = "burn")]
    #[error("the module has an adapter at `{path}` already; merge it first, or begin with a pristine base")]
    Adapted {
        /// The path of a factor.
        path: String,
    },
    /// A configuration file whose values break a rule.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The rule.
        source: Box<PeftError>,
    },
    /// A value outside its range.
    #[error("`{key}` is {got}; expected {expected}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What was given.
        got: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A size that sides of a module have to be multiples of.
    #[error(
        "`{key}` is {got}, and {sides:?} of `{module}` are no multiples of it; {} would do",
        common(sides)
    )]
    Divides {
        /// The key.
        key: &'static str,
        /// The size.
        got: usize,
        /// The module.
        module: String,
        /// Its sides.
        sides: Vec<usize>,
    },
    /// Two keys that exclude each other.
    #[error("`{key}` cannot be used {condition}")]
    Conflict {
        /// The key.
        key: &'static str,
        /// The circumstance.
        condition: &'static str,
    },
    /// An adapter that cannot share a batch with others.
    #[error(
        "adapter `{adapter}` cannot be in one batch with others because of `{key}`: LoRA and rsLoRA on linear layers of blocks can; use it on its own"
    )]
    NotMixed {
        /// What the adapter is called.
        adapter: String,
        /// What of its configuration.
        key: &'static str,
    },
    /// A rank that an initialisation cannot fill.
    #[error("`init_lora_weights: {init}` on `{module}` with rank {got}; expected {expected}")]
    InitRank {
        /// The initialisation.
        init: String,
        /// The module.
        module: String,
        /// Its rank.
        got: usize,
        /// What would work.
        expected: String,
    },
    /// Values that need the base weight, asked for without it.
    #[error(
        "`{name}` starts from the base weight: use the factors of `decompose` (`magnitude` for a magnitude)"
    )]
    NeedsBase {
        /// The factor.
        name: String,
    },
    /// No targets given and none known for the architecture.
    #[error(
        "no {key} given and no default known for model_type `{model_type}`; name them{}",
        if *key == "target_modules" { ", or use \"all-linear\"" } else { "" }
    )]
    NoDefaultTargets {
        /// The configuration key.
        key: &'static str,
        /// The model type of `config.json`.
        model_type: String,
    },
    /// A pattern that is not a regular expression.
    #[error("`{key}` pattern `{pattern}` is not a regular expression: {reason}")]
    BadPattern {
        /// The configuration key.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// The parser's words.
        reason: String,
    },
    /// Patterns that match nothing.
    #[error("{}", dead_patterns(.0))]
    DeadPatterns(Vec<DeadPattern>),
    /// Targets that all fell away.
    #[error(
        "no module is left to adapt: {candidates} matched target_modules, all were excluded by exclude_modules or modules_to_save"
    )]
    NothingLeft {
        /// How many modules matched before exclusion.
        candidates: usize,
    },
    /// Patterns whose order decides, which files do not keep.
    #[error(
        "`{key}` patterns `{first}` and `{second}` both match `{module}` and give different values; adapter_config.json \
         keeps patterns sorted, so a reloaded adapter would use `{second}`: make the patterns disjoint"
    )]
    PatternOrder {
        /// `rank_pattern` or `alpha_pattern`.
        key: &'static str,
        /// The pattern that wins in the order given.
        first: String,
        /// The pattern that wins in sorted order.
        second: String,
        /// A module on which they differ.
        module: String,
    },
    /// A file that does not hold exactly the adapter's tensors.
    #[error("`{}` does not fit this model and configuration:{differences}", path.display())]
    Mismatch {
        /// The weights.
        path: PathBuf,
        /// All differences.
        differences: Differences,
    },
    /// A tensor of another shape than the plan's.
    #[error("`{name}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// The plan's shape.
        expected: Vec<usize>,
        /// The tensor's shape.
        got: Vec<usize>,
    },
    /// A merge that would put NaN or infinity into the weights.
    #[error(
        "merging `{module}` gives values that are not finite; the base is unchanged: the adapter is damaged or diverged"
    )]
    NotFinite {
        /// The module.
        module: String,
    },
    /// A tensor that the merge needs.
    #[error("`{name}` is needed to merge and is not there; the adapter is of another base")]
    MissingBase {
        /// The parameter.
        name: String,
    },
    /// An adapter that no weights would do the same as.
    #[error(
        "an adapter of `{key}: {value}` cannot become {what}: {reason}; leave it beside its base, as PEFT does"
    )]
    BesideBase {
        /// What of its configuration.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why.
        reason: &'static str,
        /// What it is to become.
        what: &'static str,
    },
    /// An adapter bias without a base bias to add it to.
    #[error(
        "`{module}` has lora_bias but its base layer has no bias, so it cannot be merged; keep the adapter separate"
    )]
    NoBaseBias {
        /// The module.
        module: String,
    },
}

impl PeftError {
    /// With the file that the value stands in, where the message does not name it.
    pub(crate) fn in_file(self, path: PathBuf) -> Self {
        match self {
            Self::BadValue { .. } | Self::Conflict { .. } | Self::BadPattern { .. } => {
                Self::InFile { path, source: Box::new(self) }
            }
            other => other,
        }
    }
}

/// A pattern that matches no module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadPattern {
    /// The configuration key.
    pub key: &'static str,
    /// The pattern or name.
    pub pattern: String,
    /// The most similar module names (or last segments of them).
    pub nearest: Vec<String>,
}

/// How a file differs from what a plan expects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Keys of the plan that the file does not hold.
    pub missing: Vec<String>,
    /// Keys of the file that the plan does not know.
    pub unexpected: Vec<String>,
    /// Key, expected shape, stored shape.
    pub shapes: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl Differences {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.shapes.is_empty()
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.missing {
            write!(f, "\n  missing    {key}")?;
        }
        for key in &self.unexpected {
            write!(f, "\n  unexpected {key}")?;
        }
        for (key, expected, got) in &self.shapes {
            write!(f, "\n  shape      {key}: expected {expected:?}, got {got:?}")?;
        }
        Ok(())
    }
}

fn subfolders(found: &[String]) -> String {
    if found.is_empty() {
        return "; expected a folder written by PEFT's or burnish's save".into();
    }
    format!("; its subfolders {} hold adapters: name one of them", found.join(", "))
}

fn dead_patterns(dead: &[DeadPattern]) -> String {
    let each = dead.iter().map(|d| {
        let near =
            if d.nearest.is_empty() { String::new() } else { format!("; nearest: {}", d.nearest.join(", ")) };
        format!("`{}` entry `{}` matches no module{near}", d.key, d.pattern)
    });
    each.collect::<Vec<_>>().join("\n")
}

/// The way on from an adapter of another method: what learns tokens or keys, or weighs adapters token by token, changes no
/// weight, so there is nothing to merge.
fn instead_of(peft_type: &str) -> &'static str {
    match peft_type {
        "MULTITASK_PROMPT_TUNING" | "CPT" | "CARTRIDGE" | "ADAPTION_PROMPT" => {
            "it cannot be merged either: run it with PEFT, or train a LoRA adapter instead"
        }
        "XLORA" => {
            "its classifier weighs LoRA adapters token by token, which no merged weight does: use these adapters by themselves, each row its own (lora_modules), or a weighted sum of them (burnish merge)"
        }
        _ => "merge it into its base with PEFT first",
    }
}

/// The largest number that all are multiples of.
fn common(sides: &[usize]) -> usize {
    let of_two = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    sides.iter().copied().fold(0, of_two)
}

impl Coded for PeftError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoAdapter { .. } | Self::CorruptConfig { .. } => ErrorCode::NotAnAdapter,
            Self::UnsupportedMethod { .. } | Self::MethodKey { .. } | Self::UnsupportedKey { .. } => {
                ErrorCode::UnsupportedAdapter
            }
            #[cfg(feature = "burn")]
            Self::Adapted { .. } => ErrorCode::Internal,
            Self::NeedsBase { .. } => ErrorCode::Internal,
            Self::BadValue { .. } | Self::Divides { .. } | Self::InitRank { .. } => ErrorCode::BadValue,
            Self::Conflict { .. } | Self::NotMixed { .. } => ErrorCode::Conflict,
            Self::NoDefaultTargets { .. }
            | Self::BadPattern { .. }
            | Self::DeadPatterns(..)
            | Self::NothingLeft { .. }
            | Self::PatternOrder { .. } => ErrorCode::NoTarget,
            Self::Mismatch { .. } | Self::Shape { .. } => ErrorCode::AdapterMismatch,
            Self::NotFinite { .. } => ErrorCode::NotFinite,
            Self::MissingBase { .. } | Self::BesideBase { .. } | Self::NoBaseBias { .. } => {
                ErrorCode::CannotMerge
            }
            Self::Store(error) => error.code(),
            Self::InFile { source, .. } => source.code(),
        }
    }
}
