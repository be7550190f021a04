//! Rows in a terminal: what is learned in colour, or between marks where there is none.

use std::fmt::Write;
use std::io::{IsTerminal, stdout};

use burnish_data::DataError;
use burnish_report::harmless;
use burnish_trainers::{DataView, RowsView};

use super::pieces::{Fate, pieces};
use super::summary::{Histogram, heading, lines};

/// How what is learned is told from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    /// By the terminal's colours.
    Colours,
    /// By marks around it.
    Marks,
}

impl Paint {
    /// Colours for a terminal, unless `NO_COLOR` says otherwise.
    pub(super) fn of_terminal() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if stdout().is_terminal() && !refused && !dumb { Self::Colours } else { Self::Marks }
    }

    fn around(self, fate: Fate) -> (&'static str, &'static str) {
        match (self, fate) {
            (Self::Colours, Fate::Learned) => ("\x1b[1;32m", "\x1b[0m"),
            (Self::Colours, Fate::Read) => ("\x1b[90m", "\x1b[0m"),
            (Self::Colours, Fate::Cut) => ("\x1b[9;31m", "\x1b[0m"),
            (Self::Marks, Fate::Learned) => ("\u{ab}", "\u{bb}"),
            (Self::Marks, Fate::Read) => ("", ""),
            (Self::Marks, Fate::Cut) => ("~", "~"),
        }
    }

    fn strong(self, text: &str) -> String {
        if self == Self::Colours { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Everything there is to show; text from outside has no escape codes in it.
pub(super) fn text(trainer: &str, view: &DataView, paint: Paint) -> Result<String, DataError> {
    let mut out = format!("{}\n", paint.strong(&format!("{trainer} on {}", harmless(&view.train.name))));
    for (name, line) in lines(view) {
        let _ = writeln!(out, "  {name:<11} {}", harmless(&line));
    }
    out.push('\n');
    let histogram = Histogram::of(&view.train.lengths);
    let digits = histogram.bars().last().map_or(1, |(_, last, ..)| last.to_string().len());
    for (first, last, texts, share) in histogram.bars() {
        let bar = "#".repeat((share * 40.0).ceil() as usize);
        let range = if first == last {
            format!("{:digits$}    {last:>digits$}", "")
        } else {
            format!("{first:>digits$} to {last:>digits$}")
        };
        let _ = writeln!(out, "  {range} tokens {bar} {texts}");
    }
    rows(&mut out, view, &view.train, paint)?;
    if let Some(eval) = view.eval.as_ref().filter(|eval| !eval.shown.is_empty()) {
        let _ = write!(out, "\n{}", paint.strong("evaluation"));
        rows(&mut out, view, eval, paint)?;
    }
    out.push('\n');
    if view.findings.is_empty() {
        out += "nothing odd was found\n";
    }
    for finding in &view.findings {
        let message = finding.to_string();
        let _ = writeln!(out, "{} {}", paint.strong("found:"), harmless(&message));
    }
    Ok(out)
}

fn rows(out: &mut String, view: &DataView, rows: &RowsView, paint: Paint) -> Result<(), DataError> {
    if !rows.shown.is_empty() {
        let parts = [(Fate::Learned, "learned"), (Fate::Read, "read"), (Fate::Cut, "cut off")];
        let parts = parts.map(|(fate, name)| {
            let (before, after) = paint.around(fate);
            format!("{before}{name}{after}")
        });
        let _ = writeln!(out, "\n{}", parts.join(", "));
    }
    for row in &rows.shown {
        for text in &row.texts {
            let title = heading(text, view.row_use);
            let place = row.place.to_string();
            let _ = writeln!(out, "\n{}", paint.strong(&format!("{}, {title}", harmless(&place))));
            let mut fate = None;
            for piece in pieces(&view.prepared.tokenizer, text)? {
                if fate != Some(piece.fate) {
                    out.push_str(fate.map_or("", |fate| paint.around(fate).1));
                    out.push_str(paint.around(piece.fate).0);
                    fate = Some(piece.fate);
                }
                out.push_str(&harmless(&piece.text));
            }
            out.push_str(fate.map_or("", |fate| paint.around(fate).1));
            out.push('\n');
        }
    }
    Ok(())
}
