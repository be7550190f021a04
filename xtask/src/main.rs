//! Developer commands. `cargo xtask --help` lists them.

mod example;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Developer commands of burnish.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the example's data files.
    ExampleData {
        /// Only compare the files with what would be written.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let root = root();
    match Arguments::parse().command {
        Task::ExampleData { check } => example::run(&root.join("examples/data"), check),
    }
}

/// The workspace's root folder.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}
