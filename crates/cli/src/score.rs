//! `burnish score`: each row's log-probability.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use burnish_config::ScoreOptions;
use burnish_data::{Collator, Example, Source};
use burnish_losses::TokenLoss;
use burnish_models::Mode;
use burnish_trainers::{MicroBatch, prepare_rows, supervised};
use serde_json::json;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<ScoreOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options;
    crate::use_threads(options.model.threads)?;
    let loaded = crate::model::load(&options.model)?;
    let rows = prepare_rows(loaded.folder.path(), &options.preparation, loaded.folder.spec().vocab)?;
    let source = Source::train(&options.input.dataset_name, &options.input.dataset_test_split)?;
    let data = rows.preparer().prepare(&source.name(), source.records())?;
    let mut out: Box<dyn Write> = match &options.input.output_file {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| format!("{}: cannot write", path.display()))?,
        )),
        None => Box::new(std::io::stdout().lock()),
    };
    let size = options.batches.per_device_eval_batch_size.max(1);
    for (number, chunk) in data.examples.chunks(size).enumerate() {
        let examples: Vec<&Example> = chunk.iter().collect();
        let batch = MicroBatch::new(Collator::default().batch(&examples, number * size));
        let pass = loaded.model.decoder.pass(Mode::Score);
        let scored = supervised(&loaded.model.decoder, &batch, &pass, TokenLoss::Nll, 1.0)?;
        let mut sums = vec![(0.0_f64, 0_u64); chunk.len()];
        for (&token, log_prob) in batch.rows.iter().zip(&scored.stats.log_prob) {
            // Rows are documents here: nothing is packed.
            let row = batch.tokens.documents.partition_point(|d| d.end <= token);
            sums[row].0 += f64::from(*log_prob);
            sums[row].1 += 1;
        }
        for (i, (sum, tokens)) in sums.into_iter().enumerate() {
            writeln!(
                out,
                "{}",
                json!({"index": number * size + i, "sum_logprob": sum, "num_tokens": tokens})
            )?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
