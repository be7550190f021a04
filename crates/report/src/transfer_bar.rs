//! `TransferBar`: how far a download is, as a bar on a terminal and one line before and after elsewhere.

use std::fmt;
use std::io::Write as _;

use indicatif::{ProgressBar, ProgressStyle};

use crate::wording::{bytes, harmless};
use crate::work_bars;

/// The progress of downloads, on standard error.
#[derive(Default)]
pub struct TransferBar {
    /// What is being fetched: whose, and how much of it.
    current: Option<(String, u64)>,
    bar: Option<ProgressBar>,
    terminal: bool,
    sends: bool,
}

impl fmt::Debug for TransferBar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferBar").field("current", &self.current).finish_non_exhaustive()
    }
}

impl TransferBar {
    /// A bar if `terminal`, lines otherwise.
    #[must_use]
    pub fn new(terminal: bool) -> Self {
        Self { terminal, ..Self::default() }
    }

    /// Of what is sent rather than fetched.
    #[must_use]
    pub fn sending(self) -> Self {
        Self { sends: true, ..self }
    }

    /// Of what is fetched from `from` (or sent to it), `done` of `total` bytes are here, the last of `file`.
    pub fn tell(&mut self, from: &str, file: &str, done: u64, total: u64) {
        let current = (from.to_owned(), total);
        if self.current.as_ref() != Some(&current) {
            self.current = Some(current);
            if self.terminal {
                let bar = work_bars::bar(total);
                let style = "{bar:24.cyan/dim} {bytes}/{total_bytes} {msg} · {bytes_per_sec}, {eta} left";
                bar.set_style(ProgressStyle::with_template(style).expect("invariant: the template is valid"));
                self.bar = Some(bar);
            } else {
                let (verb, of) = if self.sends { ("sending", "to") } else { ("fetching", "of") };
                // Talk: a closed standard error stops nothing.
                let _ = writeln!(std::io::stderr(), "{verb} {} {of} {}", bytes(total), harmless(from));
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_message(file.to_owned());
            bar.set_position(done);
            if done >= total {
                bar.finish_and_clear();
            }
        }
    }
}
