//! The one table that a run of the checks prints.

use std::fmt;

use serde_json::json;

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds; with what was measured.
    Passed(String),
    /// It does not; with what was expected and found.
    Failed(String),
    /// It does not apply here; with the reason.
    LeftOut(String),
}

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The group of the check.
    pub group: &'static str,
    /// The check.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
}

impl Row {
    /// As a line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        let (verdict, figure) = self.verdict.words();
        json!({"group": self.group, "check": self.name, "verdict": verdict, "figure": figure, "seconds": self.seconds})
            .to_string()
    }
}

impl Verdict {
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(figure) => ("passed", figure),
            Self::Failed(why) => ("FAILED", why),
            Self::LeftOut(why) => ("left out", why),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, figure) = self.verdict.words();
        write!(f, "{:9} {:8} {:44} {:>7.1} s  {figure}", self.group, verdict, self.name, self.seconds)
    }
}

/// All lines.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// In the order in which they were made.
    pub rows: Vec<Row>,
}

impl Table {
    /// How many passed, failed and were left out.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        let of = |pick: fn(&Verdict) -> bool| self.rows.iter().filter(|row| pick(&row.verdict)).count();
        [
            of(|v| matches!(v, Verdict::Passed(_))),
            of(|v| matches!(v, Verdict::Failed(_))),
            of(|v| matches!(v, Verdict::LeftOut(_))),
        ]
    }
}
