//! `Progress`: a bar on a terminal, one line per logging step elsewhere.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::record::Record;
use crate::wording::{bytes, count, duration, figure, harmless};
use crate::work_bars;

/// The figures of a plain line, with the words that introduce them.
const LINE: &[(&str, &str)] = &[
    ("loss", "loss"),
    ("grad_norm", "grad norm"),
    ("learning_rate", "lr"),
    ("mean_token_accuracy", "accuracy"),
    ("entropy", "entropy"),
];

/// The progress of a run, on standard error.
pub struct Progress {
    total: u64,
    /// Steps that were done before this process began.
    before: u64,
    began: Instant,
    voice: Voice,
}

enum Voice {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let voice = match self.voice {
            Voice::Bar(_) => "bar",
            Voice::Lines(_) => "lines",
        };
        f.debug_struct("Progress")
            .field("total", &self.total)
            .field("before", &self.before)
            .field("voice", &voice)
            .finish()
    }
}

impl Progress {
    /// Progress of a run of `total` steps of which `before` are done: a bar if standard error is a terminal and `plain` is
    /// not set, lines otherwise.
    #[must_use]
    pub fn new(total: u64, before: u64, plain: Option<bool>) -> Self {
        if plain.unwrap_or(!io::stderr().is_terminal()) {
            return Self::lines(total, before, Box::new(io::stderr()));
        }
        let bar = work_bars::bar(total);
        bar.set_style(
            ProgressStyle::with_template("{bar:24.cyan/dim} {pos}/{len} {msg} · {elapsed} gone, {eta} left")
                .expect("invariant: the template is valid")
                .progress_chars("━╸─"),
        );
        bar.set_position(before);
        bar.reset_eta();
        Self { total, before, began: Instant::now(), voice: Voice::Bar(bar) }
    }

    /// Progress in lines, to any writer.
    #[must_use]
    pub fn lines(total: u64, before: u64, to: Box<dyn Write + Send>) -> Self {
        Self { total, before, began: Instant::now(), voice: Voice::Lines(to) }
    }

    /// A step is done. Moves the bar; says nothing in lines.
    pub fn step(&mut self, step: u64, loss: f64, tokens_per_second: f64, peak_memory: Option<u64>) {
        if let Voice::Bar(bar) = &self.voice {
            bar.set_position(step);
            bar.set_message(phrase(Some(loss), tokens_per_second, peak_memory));
        }
    }

    /// A logging step: says its figures in a line; on a terminal above the bar if it was an evaluation.
    pub fn log(&mut self, record: &Record) {
        let line = self.line(record);
        match &mut self.voice {
            Voice::Bar(bar) => {
                if record.figures().any(|(name, _)| name.starts_with("eval_")) {
                    bar.println(line);
                }
            }
            // Progress is talk: a closed standard error does not stop a run.
            Voice::Lines(to) => drop(writeln!(to, "{line}")),
        }
    }

    /// Says something beside the progress: a checkpoint was saved, an evaluation begins.
    pub fn note(&mut self, text: &str) {
        let text = harmless(text);
        match &mut self.voice {
            Voice::Bar(bar) => bar.println(text),
            Voice::Lines(to) => drop(writeln!(to, "{text}")),
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        match &mut self.voice {
            Voice::Bar(bar) => bar.finish_and_clear(),
            Voice::Lines(to) => drop(to.flush()),
        }
    }

    fn line(&self, record: &Record) -> String {
        let width = self.total.to_string().len();
        let mut parts =
            vec![format!("step {:>width$}/{} · epoch {:.2}", record.step, self.total, record.epoch)];
        for prefix in ["", "eval_"] {
            for (name, word) in LINE {
                if let Some(value) = record.get(&format!("{prefix}{name}")) {
                    parts.push(format!("{}{word} {}", prefix.replace('_', " "), figure(value)));
                }
            }
        }
        if let Some(speed) = record.get("tokens_per_second") {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "three digits are shown"
            )]
            let memory = record.get("peak_memory_bytes").map(|bytes| bytes as u64);
            parts.push(phrase(None, speed, memory));
        }
        if let Some(left) = self.left(record.step) {
            parts.push(format!("{} left", duration(left)));
        }
        parts.join(" · ")
    }

    /// The time that the remaining steps will take at the pace so far.
    fn left(&self, step: u64) -> Option<Duration> {
        let done = step.checked_sub(self.before).filter(|done| *done > 0)?;
        let rest = self.total.checked_sub(step).filter(|rest| *rest > 0)?;
        #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
        Some(self.began.elapsed().mul_f64(rest as f64 / done as f64))
    }
}

fn phrase(loss: Option<f64>, tokens_per_second: f64, peak_memory: Option<u64>) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "three digits are shown")]
    let speed = count(tokens_per_second.max(0.0).round() as u64);
    let loss = loss.map_or_else(String::new, |loss| format!("loss {} · ", figure(loss)));
    let memory = peak_memory.map_or_else(String::new, |peak| format!(" · {}", bytes(peak)));
    format!("{loss}{speed} tokens/s{memory}")
}
