//! Linear regression on four processes that find each other as torchrun's do: each has a quarter of the rows, and the sum
//! of the gradients is that of all of them.

use std::process::Command;

use anyhow::{Result, ensure};
use burnish_comm::{Bucket, Reduction, World};

const RANKS: usize = 4;

/// What a launcher starts. `y = 2 x - 3`, of eight rows; the ranks take turns.
fn train() -> Result<()> {
    let world = World::from_env()?;
    let group = world.group();
    let rows: Vec<f32> = (0..8).skip(world.rank()).step_by(world.size()).map(|i| i as f32 / 4.0).collect();
    let [mut slope, mut offset] = [0.0_f32; 2];
    for _ in 0..400 {
        let errors = rows.iter().map(|x| (x, slope * x + offset - (2.0 * x - 3.0)));
        let gradient = errors.fold([0.0; 2], |[a, b], (x, error)| [a + error * x, b + error]);
        let gradient = group.all_reduce(Bucket::new(gradient.to_vec()), Reduction::Sum, "gradient").wait()?;
        slope -= 0.05 * gradient.as_slice()[0];
        offset -= 0.05 * gradient.as_slice()[1];
    }
    ensure!((slope - 2.0).abs() < 1e-3 && (offset + 3.0).abs() < 1e-3, "got y = {slope} x + {offset}");
    println!("rank {} of {}: y = {slope:.4} x + {offset:.4}", world.rank(), world.size());
    Ok(())
}

fn main() -> Result<()> {
    if std::env::var_os("WORLD_SIZE").is_some() {
        return train();
    }
    // What `torchrun --nproc-per-node 4` does.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command.env("WORLD_SIZE", RANKS.to_string()).env("RANK", rank.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).spawn()
    };
    let ranks = (0..RANKS).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut rank in ranks {
        ensure!(rank.wait()?.success(), "a rank failed");
    }
    Ok(())
}
