//! One rank of an MPI job: the transports' suite, every way to fail, and how fast 64 MiB move.
//!
//! ```text
//! cargo build -p burnish-comm --example mpi_ranks
//! mpirun -n 2 target/debug/examples/mpi_ranks suite
//! mpirun -n 4 target/debug/examples/mpi_ranks silent 2
//! ```
//!
//! `cargo xtask mpi` runs all of it, also across two hosts.

mod twin;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burnish_comm::mpi::{self, Mpi, MpiError};
use burnish_comm::transport::conformance;
use burnish_comm::{Bucket, CommError, Group, Reduction, World, local};

/// How long a rank waits for the others here.
const DEADLINE: Duration = Duration::from_secs(3);
/// ... and in the suite, where ranks share cores.
const SUITE_DEADLINE: Duration = Duration::from_secs(60);
/// Elements of 64 MiB.
const ELEMENTS: usize = 16 << 20;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(status) => status,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

/// In one piece, as the launcher merges what the ranks write.
fn complain(error: &dyn Error) {
    // There is nothing to do about a standard error that is closed.
    let _ = io::stderr().write_all(format!("error: {error}\n").as_bytes());
}

fn run(words: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let task = words.first().map_or("", String::as_str);
    let number = words.get(1).map(|word| word.parse::<usize>()).transpose()?;
    match task {
        "bench" => bench(&mpi::world()?)?,
        "suite" => suite(number.unwrap_or(mpi::PIECE))?,
        _ => {
            let world = mpi::world()?.with_deadline(DEADLINE);
            if let Err(error) = fail(task, number.unwrap_or(0), &world) {
                // Said and told while the world is there: its end brings the ranks together once more, so that all
                // have spoken before the launcher sees the first one exit and stops the others.
                complain(&*error);
                world.fail(&error.to_string());
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Every check of the transports' suite, each in a world of its own, and that MPI gives the bits that threads give.
fn suite(piece: usize) -> Result<(), Box<dyn Error>> {
    let join = || Ok::<_, MpiError>(World::over(Box::new(Mpi::join(piece)?)).with_deadline(SUITE_DEADLINE));
    // Stays whole where a check breaks its own world, and brings the ranks together again.
    let outer = join()?;
    let mut failures = Vec::new();
    for check in conformance::checks() {
        let world = join()?;
        failures.extend(check.run(world).err());
        outer.group().barrier(check.name())?;
    }
    twin::compare(&outer)?;
    let mut report = String::new();
    for failure in &failures {
        report += &format!("{failure}\n");
    }
    let (rank, checks) = (outer.rank(), conformance::checks().len() - failures.len());
    report += &format!("rank {rank}: {checks} checks passed, {} failed\n", failures.len());
    // In one piece: the launcher merges what the ranks write.
    io::stdout().write_all(report.as_bytes())?;
    outer.group().barrier("reported")?;
    if failures.is_empty() { Ok(()) } else { Err("the suite failed".into()) }
}

/// Rank `culprit` fails in the way of `task`, the others make the calls that it owes them.
fn fail(task: &str, culprit: usize, world: &World) -> Result<(), Box<dyn Error>> {
    let group = world.group();
    group.barrier("start")?;
    let weights = |elements| Bucket::new(vec![1.0_f32; elements]);
    if world.rank() == culprit {
        match task {
            "panic" => panic!("rank {culprit} panicked on purpose"),
            "kill" => {
                let own = std::process::id().to_string();
                std::process::Command::new("kill").args(["-9", &own]).status()?;
            }
            "silent" => std::thread::sleep(100 * DEADLINE),
            "disagree" => {
                group.all_reduce(weights(99), Reduction::Sum, "layer.7.weight").wait()?;
            }
            "leave" => return Ok(()),
            "fail" => return Err(format!("rank {culprit} cannot read data.jsonl").into()),
            "exit" => std::process::exit(0),
            _ => return Err(format!(
                "no task `{task}`; expected suite, bench, panic, kill, silent, disagree, leave, fail or exit"
            )
            .into()),
        }
    }
    group.all_reduce(weights(100), Reduction::Sum, "layer.7.weight").wait()?;
    Ok(())
}

/// The median time of an all_reduce of 64 MiB and of a barrier, beside the same with threads.
fn bench(world: &World) -> Result<(), CommError> {
    let [large, small] = measure(&world.group())?;
    world.group().barrier("the others are done")?;
    if world.rank() == 0 {
        let ranks = world.size();
        let threads = local::run(ranks, |world| measure(&world.group()));
        let [large_local, small_local] =
            threads.into_iter().next().expect("invariant: a rank for each thread")??;
        println!(
            "{ranks} ranks: all_reduce of 64 MiB f32: mpi {large:.1?}, local {large_local:.1?}; \
             of 4 bytes: mpi {small:.1?}, local {small_local:.1?}"
        );
    }
    world.group().barrier("rank 0 is done")
}

fn measure(group: &Group) -> Result<[Duration; 2], CommError> {
    let mut medians = [Duration::ZERO; 2];
    for (median, elements, repeats) in [(0, ELEMENTS, 9), (1, 1, 1000)] {
        let mut times = Vec::new();
        for _ in 0..repeats {
            let bucket = Bucket::new(vec![1.0_f32; elements]);
            group.barrier("begin")?;
            let began = Instant::now();
            let sum = group.all_reduce(bucket, Reduction::Sum, "benchmark").wait()?;
            times.push(began.elapsed());
            assert_eq!(sum.as_slice()[elements - 1], group.size() as f32);
        }
        times.sort_unstable();
        medians[median] = times[repeats / 2];
    }
    Ok(medians)
}
