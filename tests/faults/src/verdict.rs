//! `Verdict`: what an attempt showed.

use crate::running::Ended;

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// It succeeded, and its result is right.
    Right,
    /// It failed with one clear error.
    Clear,
    /// It failed, and the error does not say what or where.
    Unclear,
    /// A panic, or an end by a signal that nobody sent.
    Panic,
    /// It was still running at its bound of time.
    Hang,
    /// It held more than 1 GiB.
    Memory,
    /// It succeeded and should not have, or its result is another than it has to be.
    Wrong,
    /// A complete checkpoint is gone.
    Lost,
}

impl Verdict {
    pub(crate) const ALL: [Self; 8] = [
        Self::Right,
        Self::Clear,
        Self::Unclear,
        Self::Panic,
        Self::Hang,
        Self::Memory,
        Self::Wrong,
        Self::Lost,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Clear => "clear errors",
            Self::Unclear => "unclear",
            Self::Panic => "panics",
            Self::Hang => "hangs",
            Self::Memory => "over 1 GiB",
            Self::Wrong => "wrong successes",
            Self::Lost => "lost checkpoints",
        }
    }

    pub(crate) fn is_fine(self) -> bool {
        matches!(self, Self::Right | Self::Clear)
    }
}

/// An attempt and what came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) what: String,
    pub(crate) verdict: Verdict,
    /// What it said, and what was missing in it.
    pub(crate) said: String,
    pub(crate) seconds: f64,
    pub(crate) peak: u64,
}

/// Judges a run: bounds and panics first; then `names`, of which an error has to have one (none asked where empty), and
/// `right`, which says what is wrong with a success.
pub(crate) fn judge(
    what: impl Into<String>,
    ended: &Ended,
    names: &[&str],
    right: impl FnOnce(&Ended) -> Option<String>,
) -> Outcome {
    let mut said: String = ended.stderr.trim_end().to_owned();
    let verdict = if ended.hung {
        Verdict::Hang
    } else if ended.grew {
        Verdict::Memory
    } else if panicked(ended) {
        Verdict::Panic
    } else if ended.code == Some(0) {
        match right(ended) {
            None => Verdict::Right,
            Some(why) => {
                said = format!("{why}\n{said}");
                Verdict::Wrong
            }
        }
    } else if let Some(why) = unclear(&ended.stderr, names) {
        said = format!("{why}\n{said}");
        Verdict::Unclear
    } else {
        Verdict::Clear
    };
    Outcome { what: what.into(), verdict, said, seconds: ended.seconds, peak: ended.peak }
}

fn panicked(ended: &Ended) -> bool {
    let ours = ["panicked at", "stack overflow", "memory allocation of", "this is a fault of burnish"];
    ended.code == Some(70)
        || ended.code.is_none()
        || matches!(ended.code, Some(101 | 134 | 136 | 139))
        || ours.iter().any(|text| ended.stderr.contains(text))
}

/// Why an error is not clear.
fn unclear(stderr: &str, names: &[&str]) -> Option<String> {
    let errors = stderr.lines().filter(|line| line.starts_with("error: ")).count();
    if errors != 1 {
        return Some(format!("expected one line that begins with `error: `, got {errors}"));
    }
    let at = stderr.find("error: ").unwrap_or_default();
    let error = &stderr[at..];
    if error.len() > 4_000 {
        return Some(format!("an error of {} bytes", error.len()));
    }
    if error.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        return Some("control characters in an error".to_owned());
    }
    if !error.contains("\nhelp: burnish explain ") {
        return Some("an error without a code that `burnish explain` knows".to_owned());
    }
    let jargon = ["untagged enum", "at line 0", "Os {", "Error(\"", "called `Option", "(os error "];
    if let Some(word) = jargon.iter().find(|word| error.contains(*word)) {
        return Some(format!("a library's jargon: {word}"));
    }
    if !names.is_empty() && !names.iter().any(|name| error.contains(name)) {
        return Some(format!("expected one of {names:?} in the error"));
    }
    None
}
