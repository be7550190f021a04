//! `WorkBars`: long work as bars on a terminal and now and then a line elsewhere, beside the bar of a run.
//!
//! All bars of a process are one block at the bottom of the terminal; whoever prints beside them does so through
//! [`beside_bars`].

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use burnish_core::work::{UnderWay, Unit, under_way};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::wording::{bytes, count, duration, harmless};

/// Work that is over sooner is not shown.
const SHORTEST: Duration = Duration::from_secs(1);
/// Work that is over sooner gets no line where there is no terminal; the next line comes when it has taken twice as long.
const FIRST_LINE: Duration = Duration::from_secs(10);
/// How often work is looked at.
const LOOK: Duration = Duration::from_millis(100);

static BARS: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
static SHOWN: LazyLock<Mutex<Shown>> = LazyLock::new(Mutex::default);

/// Bars, and when a line is next due, by what is done.
#[derive(Default)]
struct Shown {
    bars: HashMap<String, ProgressBar>,
    due: HashMap<String, Duration>,
}

/// Shows the work of this process from now on, on standard error.
///
/// # Errors
/// If no thread can be started to look at it.
pub fn show_work() -> std::io::Result<()> {
    let terminal = std::io::stderr().is_terminal();
    let look = move || {
        loop {
            std::thread::sleep(LOOK);
            update(terminal);
        }
    };
    std::thread::Builder::new().name("work".to_owned()).spawn(look).map(drop)
}

/// Prints beside the bars: takes them away, `say`s, and brings back those of what is not over.
pub fn beside_bars<R>(say: impl FnOnce() -> R) -> R {
    if let Ok(mut shown) = SHOWN.try_lock() {
        settle(&mut shown, &under_way());
    }
    BARS.suspend(say)
}

/// A bar among the others.
pub(crate) fn bar(total: u64) -> ProgressBar {
    BARS.add(ProgressBar::new(total))
}

fn update(terminal: bool) {
    let now = under_way();
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    settle(&mut shown, &now);
    for work in now {
        if terminal {
            if work.elapsed >= SHORTEST {
                let bar = shown.bars.entry(work.what.clone()).or_insert_with(|| bar_of(&work));
                bar.set_length(work.total.max(work.done));
                bar.set_position(work.done);
                bar.set_prefix(pace(&work));
                bar.tick();
            }
        } else if work.elapsed >= *shown.due.get(&work.what).unwrap_or(&FIRST_LINE) {
            // Talk: a closed standard error stops nothing.
            let _ = writeln!(std::io::stderr(), "{}", line(&work));
            shown.due.insert(work.what, work.elapsed * 2);
        }
    }
}

/// Takes away what is over.
fn settle(shown: &mut Shown, now: &[UnderWay]) {
    let goes_on = |what: &String| now.iter().any(|work| work.what == *what);
    shown.bars.retain(|what, bar| {
        let stays = goes_on(what);
        if !stays {
            bar.finish_and_clear();
            BARS.remove(bar);
        }
        stays
    });
    shown.due.retain(|what, _| goes_on(what));
}

fn bar_of(work: &UnderWay) -> ProgressBar {
    let amount = match (work.total, work.unit) {
        (0, Unit::Bytes) => "{bytes}",
        (_, Unit::Bytes) => "{bytes}/{total_bytes}",
        (0, _) => "{human_pos}",
        _ => "{human_pos}/{human_len}",
    };
    let of = if work.unit == Unit::Bytes { "" } else { unit(work.unit) };
    let beginning = if work.total == 0 { "{spinner}" } else { "{bar:24.cyan/dim}" };
    let style =
        format!("{beginning} {{msg}} · {amount} {of} · {{elapsed}} gone, {{prefix}}").replace("  ", " ");
    let style = ProgressStyle::with_template(&style).expect("invariant: the template is valid");
    let style = if work.total == 0 { style } else { style.progress_chars("━╸─") };
    let bar = bar(work.total).with_style(style).with_message(shortened(&work.what));
    bar.with_elapsed(work.elapsed).with_position(work.done).with_prefix(pace(work))
}

/// The time that is left at the pace so far; where nobody knows how much there is, the pace.
fn pace(work: &UnderWay) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let (done, total) = (work.done.max(1) as f64, work.total.max(work.done) as f64);
    if work.total > 0 {
        return format!("{} left", duration(work.elapsed.mul_f64((total / done - 1.0).min(1e6))));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "three digits are shown")]
    let each = (done / work.elapsed.as_secs_f64().max(1e-3)) as u64;
    match work.unit {
        Unit::Bytes => format!("{}/s", bytes(each)),
        Unit::Rows | Unit::Tensors => format!("{} {}/s", count(each), unit(work.unit)),
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "bytes",
        Unit::Rows => "rows",
        Unit::Tensors => "tensors",
    }
}

/// What is done, so that the bar stays in its line.
fn shortened(what: &str) -> String {
    let what = harmless(what);
    match what.char_indices().nth(40) {
        Some((at, _)) => format!("{}...", &what[..at]),
        None => what.into_owned(),
    }
}

fn line(work: &UnderWay) -> String {
    let amount = |of: u64| match work.unit {
        Unit::Bytes => bytes(of),
        Unit::Rows | Unit::Tensors => count(of),
    };
    let of = match (work.total, work.unit) {
        (0, Unit::Bytes) => String::new(),
        (0, other) => format!(" {}", unit(other)),
        (total, Unit::Bytes) => format!(" of {}", amount(total)),
        (total, other) => format!(" of {} {}", amount(total), unit(other)),
    };
    format!("{}: {}{of} after {}", shortened(&work.what), amount(work.done), duration(work.elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(unit: Unit, done: u64, total: u64) -> UnderWay {
        UnderWay {
            what: "loading \u{1b}[31mmodel".into(),
            unit,
            done,
            total,
            elapsed: Duration::from_secs(12),
        }
    }

    #[test]
    fn a_line_says_how_far_it_is_without_foreign_codes() {
        let said = line(&work(Unit::Tensors, 40, 291));
        assert!(said.ends_with(": 40 of 291 tensors after 12 s"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said}");
        assert!(line(&work(Unit::Bytes, 1 << 30, 0)).ends_with(": 1.07 GB after 12 s"));
        assert!(line(&work(Unit::Rows, 512, 0)).ends_with(": 512 rows after 12 s"));
    }

    #[test]
    fn what_is_left_follows_from_the_pace_so_far() {
        assert_eq!(pace(&work(Unit::Tensors, 25, 100)), "36 s left");
        assert_eq!(pace(&work(Unit::Rows, 24_000, 0)), "2.00k rows/s");
        assert!(pace(&work(Unit::Bytes, 0, 1 << 40)).ends_with(" left"));
    }

    #[test]
    fn bars_go_when_their_work_is_over() {
        let mut shown = Shown::default();
        let own = work(Unit::Rows, 1, 0);
        shown.bars.insert(own.what.clone(), bar_of(&own));
        shown.due.insert(own.what.clone(), own.elapsed);
        settle(&mut shown, std::slice::from_ref(&own));
        assert_eq!((shown.bars.len(), shown.due.len()), (1, 1));
        settle(&mut shown, &[]);
        assert_eq!((shown.bars.len(), shown.due.len()), (0, 0));
    }
}
