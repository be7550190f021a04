//! `burnish score`: each row's log-probability.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use burnish_config::ScoreOptions;
use burnish_data::{Collator, Example, Row, Source};
use burnish_losses::TokenLoss;
use burnish_models::Mode;
use burnish_trainers::{MicroBatch, prepare_rows, supervised};
use serde_json::json;

use crate::model::Loaded;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<ScoreOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options;
    crate::use_threads(options.model.threads)?;
    let loaded = crate::model::load(&options.model)?;
    let rows = prepare_rows(loaded.folder.path(), &options.preparation, loaded.folder.spec().vocab)?;
    let source = Source::train(&options.input.dataset_name, &options.input.dataset_test_split)?;
    let mut out: Box<dyn Write> = match &options.input.output_file {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| format!("{}: cannot write", path.display()))?,
        )),
        None => Box::new(std::io::stdout().lock()),
    };
    let size = options.batches.per_device_eval_batch_size.max(1);
    let preparer = rows.preparer();
    let mut completion_only = options.preparation.completion_only_loss;
    let mut records = source.records().peekable();
    if records.peek().is_none() {
        bail!("{}: no rows to score", source.name());
    }
    let mut index = 0;
    while records.peek().is_some() {
        let mut examples = Vec::with_capacity(size);
        for record in records.by_ref().take(size) {
            let row = Row::parse(record?, &rows.rules.text_field)?;
            let only = *completion_only.get_or_insert(row.has_prompt_and_completion);
            examples.push(preparer.prepared(&row, only)?);
        }
        for (sum, tokens) in scores(&loaded, &examples)? {
            writeln!(out, "{}", json!({"index": index, "sum_logprob": sum, "num_tokens": tokens}))?;
            index += 1;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The log-probability of each row's targets and their number; both 0 for a row without any.
fn scores(loaded: &Loaded, examples: &[Option<Example>]) -> anyhow::Result<Vec<(f64, u64)>> {
    let mut sums = vec![(0.0, 0); examples.len()];
    let (places, present): (Vec<usize>, Vec<&Example>) =
        examples.iter().enumerate().filter_map(|(i, e)| Some((i, e.as_ref()?))).unzip();
    let batch = MicroBatch::new(Collator::default().batch(&present, 0));
    if batch.targets.is_empty() {
        return Ok(sums);
    }
    let pass = loaded.model.decoder.pass(Mode::Score);
    let scored = supervised(&loaded.model.decoder, &batch, &pass, TokenLoss::Nll, 1.0)?;
    for (&token, &log_prob) in batch.rows.iter().zip(&scored.stats.log_prob) {
        // Each row is one document here: nothing is packed.
        let row = batch.tokens.documents.partition_point(|d| d.end <= token);
        let (sum, tokens) = &mut sums[places[row]];
        *sum += f64::from(log_prob);
        *tokens += 1;
    }
    Ok(sums)
}
