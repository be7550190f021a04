//! One rank of a job over NCCL: every sound check of the transports' suite in one world, or one breaking check.
//!
//! ```text
//! export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2
//! RANK=1 cargo run -p burnish-comm --features cuda --example nccl_ranks &
//! RANK=0 cargo run -p burnish-comm --features cuda --example nccl_ranks
//! ```
//!
//! An argument names a check; without one, all sound checks run. Breaking checks need a launch each.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use burnish_comm::{World, conformance, nccl};

/// How long a rank waits for the others.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives how many checks failed.
fn run() -> Result<usize, Box<dyn Error>> {
    let wanted = std::env::args().nth(1);
    let world: World = nccl::world()?.with_deadline(DEADLINE);
    let mut failures = 0;
    let mut ran = 0;
    for check in conformance::checks() {
        let chosen = wanted.as_ref().map_or(!check.breaks(), |name| check.name() == name);
        if !chosen {
            continue;
        }
        ran += 1;
        if let Err(failure) = check.run(world.clone()) {
            println!("{failure}");
            failures += 1;
        }
    }
    if ran == 0 {
        let names: Vec<&str> = conformance::checks().iter().map(conformance::Check::name).collect();
        return Err(
            format!("no check `{}`; name one of: {}", wanted.unwrap_or_default(), names.join(", ")).into()
        );
    }
    println!("rank {}: {} checks passed, {failures} failed", world.rank(), ran - failures);
    Ok(failures)
}
