//! Supervised fine-tuning from own code: rows from memory, a closure that hears of every step and ends the run.

use std::ops::ControlFlow::{Break, Continue};

use anyhow::{Context, Result, ensure};
use burnish_config::{Command, SftOptions};
use burnish_trainers::{Ranks, RunInputs, Sft, Stop, Trainer};

/// The program's options, by their names.
const OPTIONS: [&str; 6] = [
    concat!("--model_name_or_path=", env!("CARGO_MANIFEST_DIR"), "/../../base"),
    "--use_peft",
    "--learning_rate=2e-3",
    "--max_steps=40",
    "--logging_steps=1",
    "--disable_tqdm=true",
];

fn main() -> Result<()> {
    let output = tempfile::tempdir()?;
    let words =
        OPTIONS.map(str::to_owned).into_iter().chain([format!("--output_dir={}", output.path().display())]);
    let options = SftOptions::parse_to_plan(words)?.run().context("no help was asked for")?.options;
    let rows = (1..9)
        .map(|n| serde_json::json!({"prompt": format!("{n} and {n}?"), "completion": format!(" {}", 2 * n)}));
    let (ranks, device) = (Ranks::alone(), burn::tensor::Device::flex());
    let run = Sft::open(options, RunInputs::new(&ranks, &device).rows(rows))?;
    let run = run.on_step(|record| if record.get("loss") < Some(0.5) { Break(()) } else { Continue(()) });
    let outcome = run.run(&ranks, &Stop::never())?;
    let losses: Vec<f64> = outcome.records.iter().filter_map(|record| record.get("loss")).collect();
    println!("{} steps, loss {:.3} to {:.3}", outcome.steps, losses[0], losses[losses.len() - 1]);
    ensure!(losses[losses.len() - 1] < losses[0], "the loss fell: {losses:?}");
    Ok(())
}
