//! `kill -9` at any moment: what was reported as saved loads, whole.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use burnish_checkpoint::{CheckpointWriter, TrainerState, latest, rotate};
use burnish_core::random::Stream;

use crate::tensor;

const FOLDER: &str = "BURNISH_TEST_CRASH_FOLDER";
const ROUNDS: u64 = 32;
/// Elements of each tensor: three of them make saving take long enough to be hit.
const ELEMENTS: usize = 1 << 18;

fn save(folder: &Path, step: u64) {
    let mut writer = CheckpointWriter::new(folder, step).unwrap();
    for (k, name) in ["a", "b", "c"].into_iter().enumerate() {
        writer.tensor(name, "exp_avg", tensor(step + k as u64, ELEMENTS).view()).unwrap();
    }
    writer.folder().tensors("adapter_model", &[("x".into(), tensor(step, 64).view())]).unwrap();
    writer.trainer_state(&TrainerState { global_step: step, ..Default::default() }).unwrap();
    writer.commit().unwrap();
}

/// The child: resumes, then saves without end (each step twice, so that replacing is hit too), saying what is done.
/// Run as a test of its own it has no folder and nothing to do.
#[test]
fn child_that_saves_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let mut step = latest(folder).unwrap().checkpoint.map_or(0, |c| c.step());
    loop {
        step += 1;
        for _ in 0..2 {
            save(folder, step);
            println!("\nsaved {step}");
            std::io::stdout().flush().unwrap();
        }
        rotate(folder, Some(2), None).unwrap();
    }
}

fn unfinished(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| burnish_store::is_unfinished(n)).collect()
}

#[test]
fn killed_at_random_moments() {
    let dir = tempfile::tempdir().unwrap();
    let stream = Stream::new(42, "moments of death");
    let mut reported = 0_u64;
    let mut seen = Vec::new();
    let mut interrupted = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child_that_saves_until_killed", "--nocapture"])
            .env(FOLDER, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (report, reports) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(step) = line.strip_prefix("saved ").and_then(|s| s.parse::<u64>().ok()) {
                    report.send(step).unwrap();
                }
            }
        });
        // Wait until it is saving, then a random while within about two saves.
        let first = reports.recv_timeout(Duration::from_secs(60)).expect("the child saves");
        std::thread::sleep(Duration::from_micros((stream.uniform_f64(round) * 60_000.0) as u64));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        reader.join().unwrap();
        reported = reports.try_iter().chain([first, reported]).max().unwrap();

        interrupted += usize::from(!unfinished(dir.path()).is_empty());
        let found = latest(dir.path()).unwrap();
        assert!(found.skipped.is_empty(), "{:?}", found.skipped);
        let checkpoint = found.checkpoint.expect("a checkpoint was reported as saved");
        checkpoint.verify().unwrap();
        let step = checkpoint.step();
        assert!(step >= reported, "step {reported} was reported as saved, {step} is the newest");
        for (k, name) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(checkpoint.read(name, "exp_avg").unwrap(), tensor(step + k as u64, ELEMENTS));
        }
        assert_eq!(checkpoint.trainer_state().unwrap().global_step, step);
        // No leftovers but those of this round, which opening cleaned.
        assert_eq!(unfinished(dir.path()), [""; 0]);
        seen.push(step);
    }
    // The moments were worth choosing: many fell inside a save or a removal.
    println!("{interrupted} of {ROUNDS} kills left unfinished work behind");
    assert!(interrupted >= ROUNDS as usize / 4, "{interrupted}");
    assert!(seen.is_sorted() && seen.last() > seen.first(), "{seen:?}");
}
