//! `burnish watch`: runs as they go on.

use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burnish_checkpoint::LockOwner;
use burnish_config::WatchOptions;
use burnish_report::{harmless, replace, runs_page};

use super::text::text;
use super::{read, with_folders};

/// Figures of a run on a terminal.
const ROWS: usize = 14;

/// Shows runs until the last of them ends, or once where nobody watches.
pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<WatchOptions>(&with_folders(words))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let WatchOptions { runs, watch } = resolved.options;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    ctrlc::set_handler(move || asked.store(true, Ordering::SeqCst))?;
    let terminal = stdout().is_terminal();
    let stays = (terminal || runs.html.is_some()) && !watch.once;
    let seconds = watch.interval.ceil().clamp(1.0, 3600.0) as u32;
    loop {
        let folders = read(&runs.output_dirs)?;
        let going_on: Vec<bool> =
            runs.output_dirs.iter().map(|folder| LockOwner::of(folder).is_some()).collect();
        let last = !stays || !going_on.contains(&true) || stop.load(Ordering::SeqCst);
        let shown = text(&folders, &going_on, if terminal { ROWS } else { usize::MAX });
        if terminal && stays {
            // The cursor goes home, and each line ends what was there before.
            let shown = harmless(&shown).replace('\n', "\x1b[K\n");
            write!(stdout().lock(), "\x1b[H{shown}\x1b[J").and_then(|()| stdout().flush())?;
        } else if last {
            crate::voice::result(shown.trim_end())?;
        }
        if let Some(path) = &runs.html {
            replace(path, runs_page(&folders, (!last).then_some(seconds)).as_bytes())?;
        }
        if last {
            return Ok(ExitCode::SUCCESS);
        }
        let until = Instant::now() + Duration::from_secs_f64(watch.interval);
        while Instant::now() < until && !stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
