//! `Table`: attempts and how they went, by class.

use std::fmt;

use crate::verdict::{Outcome, Verdict};

/// What the issue allows of unclear messages over all classes.
const UNCLEAR: usize = 10;

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

struct Row {
    class: &'static str,
    attempts: usize,
    counts: [usize; Verdict::ALL.len()],
    slowest: f64,
    largest: u64,
    /// Those that are not fine.
    faults: Vec<(usize, String, Verdict)>,
}

impl Table {
    pub(crate) fn add(&mut self, class: &'static str, mut outcomes: Vec<(usize, Outcome)>) {
        outcomes.sort_by_key(|(attempt, _)| *attempt);
        let count = |verdict: Verdict| outcomes.iter().filter(|(_, o)| o.verdict == verdict).count();
        self.rows.push(Row {
            class,
            attempts: outcomes.len(),
            counts: Verdict::ALL.map(count),
            slowest: outcomes.iter().map(|(_, o)| o.seconds).fold(0.0, f64::max),
            largest: outcomes.iter().map(|(_, o)| o.peak).max().unwrap_or(0),
            faults: outcomes
                .into_iter()
                .filter(|(_, o)| !o.verdict.is_fine())
                .map(|(attempt, o)| (attempt, o.what, o.verdict))
                .collect(),
        });
    }

    fn total(&self, verdict: Verdict) -> usize {
        let at = Verdict::ALL.iter().position(|&v| v == verdict).unwrap_or_default();
        self.rows.iter().map(|row| row.counts[at]).sum()
    }

    /// Whether nothing but a few unclear messages was found.
    pub(crate) fn passed(&self) -> bool {
        Verdict::ALL.iter().all(|&verdict| match verdict {
            Verdict::Unclear => self.total(verdict) <= UNCLEAR,
            verdict => verdict.is_fine() || self.total(verdict) == 0,
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Verdict::ALL.map(Verdict::name);
        writeln!(f, "| class | attempts | {} | slowest | largest |", names.join(" | "))?;
        writeln!(f, "|---|{}", "---:|".repeat(names.len() + 3))?;
        for row in &self.rows {
            let counts = row.counts.map(|count| count.to_string()).join(" | ");
            let (class, attempts) = (row.class, row.attempts);
            writeln!(
                f,
                "| {class} | {attempts} | {counts} | {:.1} s | {} MB |",
                row.slowest,
                row.largest / 1_000_000
            )?;
        }
        let attempts: usize = self.rows.iter().map(|row| row.attempts).sum();
        let counts = Verdict::ALL.map(|verdict| self.total(verdict).to_string()).join(" | ");
        write!(f, "| all | {attempts} | {counts} | | |")?;
        for row in &self.rows {
            for (attempt, what, verdict) in &row.faults {
                write!(f, "\n\n`--class {} --only {attempt}`: {}: {what}", row.class, verdict.name())?;
            }
        }
        Ok(())
    }
}
