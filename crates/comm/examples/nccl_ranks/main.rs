//! Ranks over NCCL, as processes or as threads of one process: the transports' suite, elements that stay on the device,
//! and single steps that a test lets go wrong.
//!
//! ```text
//! export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
//! RANK=1 cargo run -p burnish-comm --features cuda --example nccl_ranks -- suite &
//! RANK=0 cargo run -p burnish-comm --features cuda --example nccl_ranks -- suite
//! cargo run -p burnish-comm --features cuda --example nccl_ranks -- --threads 2 suite
//! ```
//!
//! Words: `suite` (all sound checks in one world), `check NAME` (one of them, or a breaking one, which needs a launch),
//! `breaking` (threads: every breaking check in worlds of its own), `device` (elements that stay on the device), `steps`
//! (three sums of 1000 elements), `sum N` (one sum of N elements), `doctor` (what there is to run on). `--deadline MS`
//! comes before the word.

mod counts;
mod device;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use burnish_comm::transport::conformance;
use burnish_comm::transport::conformance::Check;
use burnish_comm::{Bucket, Reduction, World, local, nccl};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What to run, by the words of the command line.
struct Job {
    threads: Option<usize>,
    deadline: Duration,
    word: String,
    argument: String,
}

impl Job {
    fn from_arguments() -> Result<Self> {
        let mut job = Self {
            threads: None,
            deadline: Duration::from_secs(60),
            word: "suite".to_owned(),
            argument: String::new(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--threads" => job.threads = Some(next()?.parse()?),
                "--deadline" => job.deadline = Duration::from_millis(next()?.parse()?),
                _ => {
                    job.word = word;
                    job.argument = words.by_ref().collect::<Vec<_>>().join(" ");
                }
            }
        }
        Ok(job)
    }
}

fn run() -> Result<()> {
    let job = Job::from_arguments()?;
    match (job.word.as_str(), job.threads) {
        ("doctor", _) => {
            let nccl::Available { version, path, driver, devices } = nccl::available()?;
            println!("NCCL {version} from {}, CUDA {driver}, {devices} devices", path.display());
            Ok(())
        }
        ("breaking", Some(ranks)) => {
            for check in conformance::checks().iter().filter(|check| check.breaks()) {
                threads(ranks, &job, |world| Ok(check.run(world)?))?;
            }
            println!("breaking checks passed");
            Ok(())
        }
        (_, Some(ranks)) => threads(ranks, &job, |world| rank(&job, world)),
        (_, None) => rank(&job, nccl::world()?.with_deadline(job.deadline)),
    }
}

/// Runs `program` on every rank's thread; the first error stands for all.
fn threads(ranks: usize, job: &Job, program: impl Fn(World) -> Result<()> + Sync) -> Result<()> {
    let worlds = nccl::worlds(ranks)?.into_iter().map(|world| world.with_deadline(job.deadline)).collect();
    let mut first = Ok(());
    for result in local::run_worlds(worlds, program) {
        if let Err(error) = result.map_err(Into::into).and_then(|result| result) {
            println!("error: {error}");
            first = first.and(Err(error));
        }
    }
    first
}

/// One rank's part.
fn rank(job: &Job, world: World) -> Result<()> {
    let number = world.rank();
    let chosen: Vec<&Check> = match job.word.as_str() {
        "suite" => conformance::checks().iter().filter(|check| !check.breaks()).collect(),
        "check" => conformance::checks().iter().filter(|check| check.name() == job.argument).collect(),
        "device" => {
            device::run(&world)?;
            println!("rank {number}: device memory passed");
            return Ok(());
        }
        "steps" => {
            for step in 0..3 {
                sum(&world, 1000, &format!("layer.{step}.weight"))?;
            }
            println!("rank {number}: 3 steps passed");
            return Ok(());
        }
        "sum" => {
            sum(&world, job.argument.parse()?, "layer.0.weight")?;
            println!("rank {number}: a sum passed");
            return Ok(());
        }
        other => return Err(format!("no word `{other}`; see the head of this example").into()),
    };
    if chosen.is_empty() {
        let names: Vec<&str> = conformance::checks().iter().map(Check::name).collect();
        return Err(format!("no check `{}`; name one of: {}", job.argument, names.join(", ")).into());
    }
    for check in &chosen {
        check.run(world.clone())?;
    }
    println!("rank {number}: {} checks passed", chosen.len());
    Ok(())
}

fn sum(world: &World, elements: usize, what: &str) -> Result<()> {
    let bucket = Bucket::new(vec![1.0_f32; elements]);
    let got = world.group().all_reduce(bucket, Reduction::Sum, what).wait()?;
    if got.as_slice().iter().any(|&value| value != world.size() as f32) {
        return Err(format!("{what}: not the sum of {} ranks", world.size()).into());
    }
    Ok(())
}
