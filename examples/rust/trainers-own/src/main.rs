//! A trainer of one's own: supervised fine-tuning in which every row counts the same, however long it is.

use anyhow::{Context, Result, ensure};
use burnish_config::{Command, SftOptions};
use burnish_data::{Collator, Example, Step};
use burnish_losses::{LossTerms, MetricSums, Metrics};
use burnish_models::ForwardContext;
use burnish_trainers::{
    Counts, LossPart, MicroBatch, Rank, Ranks, Resumed, Rows, Run, RunInputs, Setup, Stop, Task, TrainError,
    log_probs,
};
use serde_json::json;

struct RowMean(Vec<Example>);

impl Task for RowMean {
    type Batch = MicroBatch;
    type State = ();
    type StepInputs = ();

    fn tokens(&self) -> usize {
        self.0.iter().map(Example::len).sum()
    }
    fn metrics(&self) -> Metrics {
        Metrics { sums: vec!["mean_token_accuracy"], ..Metrics::default() }
    }
    fn state(&self, _: &Rank<'_>, _: Option<&Resumed>) -> Result<(), TrainError> {
        Ok(())
    }
    fn batch(&self, rank: &Rank<'_>, _: &(), step: &Step, micro: usize) -> MicroBatch {
        let places = rank.places(step, micro);
        let rows: Vec<&Example> = step.rows[places.clone()].iter().map(|&row| &self.0[row]).collect();
        if rows.is_empty() {
            return MicroBatch::empty();
        }
        MicroBatch::new(Collator::default().batch(&rows, places.start))
    }
    fn num_tokens(&self, batch: &MicroBatch) -> usize {
        batch.num_tokens
    }
    fn counts(&self, batches: &[MicroBatch]) -> Vec<f64> {
        let rows = |b: &MicroBatch| if b.targets.is_empty() { 0 } else { b.tokens.documents.len() };
        vec![batches.iter().map(rows).sum::<usize>() as f64]
    }
    fn step_inputs(&self, _: &Rank<'_>, _: &(), _: &[MicroBatch], _: &Counts) -> Result<(), TrainError> {
        Ok(())
    }
    fn loss(
        &self,
        rank: &Rank<'_>,
        pass: &ForwardContext,
        (_, batch): (usize, &MicroBatch),
        counts: &Counts,
        _: &(),
    ) -> Result<LossPart, TrainError> {
        let (scores, stats) = log_probs(rank.decoder(), batch, pass, 1.0)?;
        let mut terms = LossTerms { gradient: vec![0.0; 2 * batch.targets.len()], ..LossTerms::default() };
        for row in batch.tokens.documents.iter() {
            let targets: Vec<usize> =
                (0..batch.rows.len()).filter(|&at| row.contains(&batch.rows[at])).collect();
            for &at in &targets {
                let weight = 1.0 / (targets.len() as f64 * counts.all[0]);
                terms.value -= weight * f64::from(stats.log_prob[at]);
                terms.gradient[at] = -weight as f32;
            }
        }
        let mut tally = MetricSums::new();
        let right = stats.is_top1.iter().filter(|&&top| top).count();
        tally.add("mean_token_accuracy", right as f64, stats.is_top1.len() as f64);
        Ok(LossPart::known(terms.on_tape(&scores)?, terms.value, tally))
    }
}

/// The program's options, by their names.
const OPTIONS: [&str; 6] = [
    concat!("--model_name_or_path=", env!("CARGO_MANIFEST_DIR"), "/../../base"),
    "--use_peft",
    "--learning_rate=2e-3",
    "--max_steps=10",
    "--logging_steps=1",
    "--disable_tqdm=true",
];

fn main() -> Result<()> {
    let output = tempfile::tempdir()?;
    let words =
        OPTIONS.map(str::to_owned).into_iter().chain([format!("--output_dir={}", output.path().display())]);
    let options = SftOptions::parse_to_plan(words)?.run().context("no help was asked for")?.options;
    let rows =
        (1..9).map(|n| json!({"prompt": format!("{n} and {n}?"), "completion": format!(" {}", 2 * n)}));
    let (ranks, device) = (Ranks::alone(), burn::tensor::Device::flex());
    let setup = Setup::open(&options, &mut RunInputs::new(&ranks, &device).rows(rows))?;
    let prepare = |name: &str, rows: Rows<'_>| Ok(setup.prepared().preparer().prepare(name, rows)?);
    let rows = setup.datasets(prepare, prepare)?.0.examples;
    let outcome = Run::new(setup, rows.len(), RowMean(rows))?.run(&ranks, &Stop::never())?;
    let losses: Vec<f64> = outcome.records.iter().filter_map(|record| record.get("loss")).collect();
    println!("{} steps, loss {:.3} to {:.3}", outcome.steps, losses[0], losses[losses.len() - 1]);
    ensure!(losses[losses.len() - 1] < losses[0], "the loss fell: {losses:?}");
    Ok(())
}
