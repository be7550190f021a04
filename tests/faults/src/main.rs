//! Faults, tried on the program as its users run it: every attempt has to end right or with one clear error, within
//! bounds of time and memory.

mod classes;
mod lab;
mod mutation;
mod random;
mod running;
mod table;
mod verdict;

use std::path::{PathBuf, absolute};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use clap::Parser;

use classes::CLASSES;
use lab::Lab;
use random::Random;
use table::Table;
use verdict::{Outcome, Verdict};

/// Tries faults on the program.
#[derive(Parser)]
struct Arguments {
    /// The program.
    #[arg(long)]
    program: PathBuf,
    /// The folder with `models/llama` and `data`.
    #[arg(long)]
    fixtures: PathBuf,
    /// One class only.
    #[arg(long)]
    class: Option<String>,
    /// Attempts of each class; by default each has its own number.
    #[arg(long)]
    count: Option<usize>,
    /// One attempt of the class only, with what it said.
    #[arg(long)]
    only: Option<usize>,
    /// A twentieth of the attempts, and every written case.
    #[arg(long)]
    quick: bool,
    /// Attempts at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where the table goes besides standard output.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    // Some attempts are made in folders of their own.
    let lab = Lab::new(&absolute(&arguments.program)?, &absolute(&arguments.fixtures)?)?;
    let mut table = Table::default();
    for class in
        CLASSES.iter().filter(|class| arguments.class.as_deref().is_none_or(|name| name == class.name))
    {
        let written = (class.written)(&lab);
        let drawn = match (arguments.count, arguments.quick) {
            (Some(count), _) => count.saturating_sub(written.min(count)),
            (None, true) => class.drawn / 20,
            (None, false) => class.drawn,
        };
        let all: Vec<usize> = match arguments.only {
            Some(only) => vec![only],
            None => (0..written + drawn).collect(),
        };
        let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| -> Result<()> {
            let workers: Vec<_> = (0..arguments.jobs.max(1))
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        while let Some(&attempt) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                            let mut random = Random::of(class.name, attempt);
                            let outcome = (class.attempt)(&lab, attempt, &mut random)
                                .with_context(|| format!("attempt {attempt} of {}", class.name))?;
                            if !outcome.verdict.is_fine() || arguments.only.is_some() {
                                show(class.name, attempt, &outcome);
                            }
                            if let Ok(mut outcomes) = outcomes.lock() {
                                outcomes.push((attempt, outcome));
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
        })?;
        table.add(class.name, outcomes.into_inner().unwrap_or_default());
    }
    let text = table.to_string();
    println!("{text}");
    if let Some(path) = &arguments.output {
        std::fs::write(path, format!("{text}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(if table.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(class: &str, attempt: usize, outcome: &Outcome) {
    let Outcome { what, verdict, said, seconds, peak } = outcome;
    let said: String = said.chars().take(1500).collect();
    let name = if *verdict == Verdict::Right { "right" } else { verdict.name() };
    println!("-- {class} {attempt}: {name}: {what} ({seconds:.1} s, {} MB)\n{said}", peak >> 20);
}
