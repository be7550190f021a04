//! `kill -9` at any moment, of one writer or of one of three: what was reported as saved loads, whole.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use burnish_checkpoint::{Attempt, CheckpointWriter, Share, TrainerState, Written, latest, rotate};
use burnish_core::Dtype;
use burnish_core::random::Stream;
use burnish_weight_files::{TensorSpec, WeightFileError};

use crate::ranks::piece;
use crate::tensor;

const FOLDER: &str = "BURNISH_TEST_CRASH_FOLDER";
const RANKS: &str = "BURNISH_TEST_CRASH_RANKS";
const RANK: &str = "BURNISH_TEST_CRASH_RANK";
const ROUNDS: u64 = 100;
/// Elements of each tensor: three of them make saving take long enough to be hit.
const ELEMENTS: usize = 1 << 18;
const ROWS: usize = ELEMENTS / 4;

/// One rank's rows of everything.
fn write(mut writer: CheckpointWriter, step: u64, share: Share) -> Written {
    let rows = |rows: usize| rows * share.rank / share.ranks..rows * (share.rank + 1) / share.ranks;
    for (k, name) in ["a", "b", "c"].into_iter().enumerate() {
        let whole = tensor(step + k as u64, ELEMENTS);
        let mine = piece(&whole, &rows(ROWS));
        writer.rows(name, "exp_avg", &whole.shape, rows(ROWS), mine.view()).unwrap();
    }
    let model = tensor(step, ELEMENTS);
    let specs = [TensorSpec::new("x", Dtype::F32, &model.shape)];
    let folder = writer.folder();
    folder
        .tensor_rows::<WeightFileError>(
            "model",
            &specs,
            |_| rows(ROWS),
            |_, rows| Ok(piece(&model, &rows).bytes.into()),
        )
        .unwrap();
    writer.trainer_state(&TrainerState { global_step: step, ..Default::default() }).unwrap();
    writer.finish().unwrap()
}

fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(FOLDER, folder);
    command
}

/// Another rank than the lead: writes what it is told to, says when it is done.
/// Run as a test of its own it has no folder and nothing to do.
#[test]
fn child_that_follows() {
    let (Some(folder), Ok(rank), Ok(ranks)) =
        (std::env::var_os(FOLDER), std::env::var(RANK), std::env::var(RANKS))
    else {
        return;
    };
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<u64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
        let attempt = Attempt::from_words([words[1], words[2]]);
        let share = Share { attempt, rank: rank.parse().unwrap(), ranks: ranks.parse().unwrap() };
        let writer = CheckpointWriter::shared(Path::new(&folder), words[0], share).unwrap();
        write(writer, words[0], share).commit().unwrap();
        println!("\nwritten");
    }
}

/// The lead: resumes, then saves without end (each step twice, so that replacing is hit too), saying what is done.
/// The pipes to the other ranks are the barriers.
#[test]
fn child_that_saves_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let ranks: usize = std::env::var(RANKS).unwrap().parse().unwrap();
    let mut others: Vec<(Child, BufReader<std::process::ChildStdout>)> = (1..ranks)
        .map(|rank| {
            let mut other = child("crash::child_that_follows", folder)
                .env(RANK, rank.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            println!("\nrank {}", other.id());
            let out = BufReader::new(other.stdout.take().unwrap());
            (other, out)
        })
        .collect();
    let mut step = latest(folder).unwrap().checkpoint.map_or(0, |c| c.step());
    loop {
        step += 1;
        for _ in 0..2 {
            let share = Share { attempt: Attempt::fresh(), rank: 0, ranks };
            let [a, b] = share.attempt.to_words();
            // The folder is there before the others hear of it.
            let writer = CheckpointWriter::shared(folder, step, share).unwrap();
            for (other, _) in &mut others {
                writeln!(other.stdin.as_mut().unwrap(), "{step} {a} {b}").unwrap();
            }
            let written = write(writer, step, share);
            for (_, out) in &mut others {
                let mut lines = out.lines();
                while lines.next().expect("the other rank lives").unwrap() != "written" {}
            }
            written.commit().unwrap();
            println!("\nsaved {step}");
            std::io::stdout().flush().unwrap();
        }
        rotate(folder, None, Some(2), None).unwrap();
    }
}

fn unfinished(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| burnish_weight_files::is_unfinished(n)).collect()
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Kills a random rank at random moments.
fn killed(ranks: usize) {
    let dir = tempfile::tempdir().unwrap();
    let stream = Stream::new(42, "moments of death");
    let mut reported = 0_u64;
    let mut seen = Vec::new();
    let mut interrupted = 0;
    for round in 0..ROUNDS {
        let mut lead = child("crash::child_that_saves_until_killed", dir.path())
            .env(RANKS, ranks.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (report, reports) = mpsc::channel();
        let (name, names) = mpsc::channel();
        let out = BufReader::new(lead.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(step) = line.strip_prefix("saved ").and_then(|s| s.parse::<u64>().ok()) {
                    report.send(step).unwrap();
                } else if let Some(pid) = line.strip_prefix("rank ").and_then(|s| s.parse::<u32>().ok()) {
                    name.send(pid).unwrap();
                }
            }
        });
        // All ranks hold this pipe: at its end they are all gone.
        let mut errors = lead.stderr.take().unwrap();
        let gone = std::thread::spawn(move || errors.read_to_end(&mut Vec::new()).unwrap());
        // Wait until it is saving, then a random while within about two saves.
        let first = reports.recv_timeout(Duration::from_secs(60)).expect("the child saves");
        std::thread::sleep(Duration::from_micros((stream.uniform_f64(2 * round) * 60_000.0) as u64));
        let pids: Vec<u32> = std::iter::once(lead.id()).chain(names.try_iter()).collect();
        assert_eq!(pids.len(), ranks);
        kill(pids[(stream.uniform_f64(2 * round + 1) * ranks as f64) as usize]);
        lead.wait().unwrap();
        reader.join().unwrap();
        gone.join().unwrap();
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
        let model = checkpoint.weight_rows("x", &[ROWS, 4], 0..ROWS).unwrap();
        assert_eq!(model, tensor(step, ELEMENTS));
        assert_eq!(checkpoint.trainer_state().unwrap().global_step, step);
        // No leftovers but those of this round, which opening cleaned.
        assert_eq!(unfinished(dir.path()), [""; 0]);
        seen.push(step);
    }
    // The moments were worth choosing: many fell inside a save or a removal. (When another rank than the lead dies, the
    // lead cleans up itself.)
    println!("{interrupted} of {ROUNDS} kills left unfinished work behind");
    assert!(interrupted >= ROUNDS as usize / 4 / ranks, "{interrupted}");
    assert!(seen.is_sorted() && seen.last() > seen.first(), "{seen:?}");
}

#[test]
fn one_writer_killed_at_random_moments() {
    killed(1);
}

#[test]
fn one_of_three_writers_killed_at_random_moments() {
    killed(3);
}
