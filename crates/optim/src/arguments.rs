//! `Arguments`: the named values that one option holds, as `optim_args` and `lr_scheduler_kwargs` do.

use std::collections::BTreeMap;

use burnish_core::{OptionFaults, alternatives};

/// Values by name, as they were written.
///
/// ```
/// use burnish_optim::Arguments;
/// let arguments = Arguments::parse("momentum=0.9, nesterov=true").unwrap();
/// assert_eq!(arguments.iter().collect::<Vec<_>>(), [("momentum", "0.9"), ("nesterov", "true")]);
/// assert!(Arguments::parse("momentum").is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(BTreeMap<String, String>);

impl Arguments {
    /// Reads `name=value,name=value`; `None` if a part has no name or no `=`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let pair = |part: &str| {
            let (name, value) = part.split_once('=')?;
            let (name, value) = (name.trim(), value.trim());
            (!name.is_empty() && !value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        parts.map(pair).collect::<Option<_>>().map(Self)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the arguments of `option` for what `of` names, as in `optim: sgd`.
    pub(crate) fn reader(&self, option: &'static str, of: String) -> ArgumentReader<'_> {
        ArgumentReader { option, of, left: &self.0, known: Vec::new(), faults: OptionFaults::default() }
    }
}

impl FromIterator<(String, String)> for Arguments {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// Takes arguments one by one; what nobody has asked for is a fault in the end.
pub(crate) struct ArgumentReader<'a> {
    option: &'static str,
    of: String,
    left: &'a BTreeMap<String, String>,
    known: Vec<&'static str>,
    faults: OptionFaults,
}

impl ArgumentReader<'_> {
    fn fault(&mut self, what: &str, mend: &'static str) {
        let (option, of) = (self.option, &self.of);
        let sentence = format!("`{option}` does not go with {of}: {what}; {mend}");
        self.faults.conflict(option, true, format!("{of} ({what})"), mend, sentence);
    }

    fn text(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        self.left.get(name).filter(|text| !matches!(text.as_str(), "None" | "null" | "none")).cloned()
    }

    fn read<T>(&mut self, name: &'static str, expected: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let value = read(&text);
        if value.is_none() {
            self.fault(&format!("`{name}` is {expected}, not {text}"), "give it such a value");
        }
        value
    }

    /// A number that `takes` is true of, if it is there.
    pub(crate) fn optional(
        &mut self,
        name: &'static str,
        takes: impl Fn(f64) -> bool,
        expected: &str,
    ) -> Option<f64> {
        self.read(name, expected, |text| text.parse().ok().filter(|&x: &f64| !x.is_nan() && takes(x)))
    }

    /// A number that `takes` is true of.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        default: f64,
        takes: impl Fn(f64) -> bool,
        expected: &str,
    ) -> f64 {
        self.optional(name, takes, expected).unwrap_or(default)
    }

    /// A number from 0 to below 1.
    pub(crate) fn share(&mut self, name: &'static str, default: f64) -> f64 {
        self.number(name, default, |x| (0.0..1.0).contains(&x), "a number from 0 to below 1")
    }

    /// A number that is at least 0.
    pub(crate) fn at_least_0(&mut self, name: &'static str, default: f64) -> f64 {
        self.number(name, default, |x| x >= 0.0 && x.is_finite(), "a number that is at least 0")
    }

    /// A whole number, if it is there.
    pub(crate) fn count(&mut self, name: &'static str) -> Option<u64> {
        // Python's dictionaries say 3.0 for 3 where they were read from arithmetic.
        let whole = |text: &str| {
            let number: f64 = text.parse().ok()?;
            (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
        };
        self.read(name, "a whole number that is not negative", whole)
    }

    /// True or false.
    pub(crate) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        let flag = |text: &str| match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" => Some(true),
            "false" | "0" | "no" => Some(false),
            _ => None,
        };
        self.read(name, "true or false", flag).unwrap_or(default)
    }

    /// The place of one of `words`.
    pub(crate) fn word(&mut self, name: &'static str, words: &[&str], default: usize) -> usize {
        let place = |text: &str| words.iter().position(|word| *word == text);
        self.read(name, &alternatives(words), place).unwrap_or(default)
    }

    /// A fault where `holds` is false, in a sentence that names the arguments.
    pub(crate) fn rule(&mut self, holds: bool, what: &str, mend: &'static str) {
        if !holds {
            self.fault(what, mend);
        }
    }

    /// What was wrong; also what nobody asked for.
    pub(crate) fn finish(mut self) -> OptionFaults {
        let known = match &self.known[..] {
            [] => "takes no arguments".to_owned(),
            names => format!("takes {}", names.join(", ")),
        };
        let unknown: Vec<String> =
            self.left.keys().filter(|name| !self.known.contains(&name.as_str())).cloned().collect();
        for name in unknown {
            self.fault(&format!("it {known}, and no `{name}`"), "take it out");
        }
        self.faults
    }
}
