//! Rules of options: what is wrong with a value, as data, so that whoever knows where it was written can say so too.

use std::fmt;

/// An option that breaks a rule of its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionFault {
    /// A value that the option does not take.
    Range {
        /// The option.
        option: &'static str,
        /// Its value.
        got: String,
        /// What it takes.
        expected: &'static str,
        /// Why, if it is not plain; begins with a separator.
        because: &'static str,
    },
    /// A value that does not go with that of another option.
    Conflict {
        /// The option.
        option: &'static str,
        /// The other option and its value.
        with: String,
        /// What to do.
        mend: &'static str,
        /// The contradiction and the mend in a sentence that names both options.
        sentence: String,
    },
}

impl OptionFault {
    /// The option that breaks the rule.
    #[must_use]
    pub fn option(&self) -> &'static str {
        match self {
            Self::Range { option, .. } | Self::Conflict { option, .. } => option,
        }
    }
}

impl fmt::Display for OptionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { option, got, expected, because } => {
                write!(f, "`{option}` is {got}; use {expected}{because}")
            }
            Self::Conflict { sentence, .. } => f.write_str(sentence),
        }
    }
}

impl std::error::Error for OptionFault {}

/// Every rule that options break, in the order in which they are checked.
///
/// ```
/// use burnish_core::OptionFaults;
///
/// let (beta, epsilon) = (0.0, 0.2);
/// let mut faults = OptionFaults::default();
/// faults.range("beta", beta > 0.0, beta, "a number above 0");
/// faults.range("epsilon", epsilon >= 0.0, epsilon, "a number that is at least 0");
/// assert_eq!(faults.first().unwrap_err().to_string(), "`beta` is 0; use a number above 0");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionFaults(Vec<OptionFault>);

impl OptionFaults {
    /// A fault unless the value is one that the option takes.
    pub fn range(
        &mut self,
        option: &'static str,
        holds: bool,
        got: impl fmt::Display,
        expected: &'static str,
    ) {
        self.range_because(option, holds, got, expected, "");
    }

    /// As [`Self::range`], with the reason.
    pub fn range_because(
        &mut self,
        option: &'static str,
        holds: bool,
        got: impl fmt::Display,
        expected: &'static str,
        because: &'static str,
    ) {
        if !holds {
            self.0.push(OptionFault::Range { option, got: got.to_string(), expected, because });
        }
    }

    /// A fault where two options contradict each other.
    pub fn conflict(
        &mut self,
        option: &'static str,
        contradicts: bool,
        with: impl fmt::Display,
        mend: &'static str,
        sentence: impl Into<String>,
    ) {
        if contradicts {
            self.0.push(OptionFault::Conflict {
                option,
                with: with.to_string(),
                mend,
                sentence: sentence.into(),
            });
        }
    }

    /// The first of them.
    ///
    /// # Errors
    /// If there is one.
    pub fn first(self) -> Result<(), OptionFault> {
        self.0.into_iter().next().map_or(Ok(()), Err)
    }

    /// Adds those of other options.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

impl IntoIterator for OptionFaults {
    type Item = OptionFault;
    type IntoIter = std::vec::IntoIter<OptionFault>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
