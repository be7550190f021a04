//! `burnish score`: each row's log-probability, or its score where the model is one that scores texts.

use std::process::ExitCode;

use burnish_config::ScoreOptions;
use burnish_config::groups::named_adapters;
use burnish_data::{Collator, Example, Row, Source};
use burnish_losses::TokenLoss;
use burnish_models::{Decoder, ModelError, Output};
use burnish_trainers::{MicroBatch, TrainError, prepare_rows, scores_adapted, scoring_pass, supervised};
use serde_json::json;

use crate::model::{Lines, Loaded};
use crate::refusal::refuse;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<ScoreOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options;
    let mut loaded = Loaded::open(&options.model, &options.quantization, &options.ranks)?;
    loaded.inference = loaded.inference.with_adapters(named_adapters(&options.adapters.lora_modules))?;
    let folder = loaded.inference.folder();
    let rows = prepare_rows(folder.tokenizer_path(), &options.preparation, folder.spec().vocab)?;
    let source = Source::train(&options.input.dataset_name, &options.input.dataset_test_split)?;
    let parse = |record| Row::parse(record, &rows.rules.text_field);
    let Some(first) = source.records().next() else { refuse!(NoRows, "{}: no rows to score", source.name()) };
    // The first row decides for all, whichever rank scores it.
    let of_texts = folder.spec().output == Output::Score;
    let completion_only = match options.preparation.completion_only_loss {
        _ if of_texts => false,
        Some(only) => only,
        None => parse(first?)?.has_prompt_and_completion,
    };
    let preparer = rows.preparer();
    let size = options.batches.per_device_eval_batch_size;
    let score = |decoder: &Decoder, first_row: u64, records: Vec<_>| -> Result<String, TrainError> {
        let (mut examples, mut adapters) = (Vec::with_capacity(records.len()), Vec::new());
        for record in records {
            adapters.push(loaded.inference.adapter_of(&record)?);
            examples.push(preparer.prepared(&parse(record)?, completion_only)?);
        }
        let mut said = String::new();
        if of_texts {
            let texts: Vec<Vec<u32>> = examples
                .into_iter()
                .map(|example| example.map(|e| e.input_ids).unwrap_or_default())
                .collect();
            let scores = scores_adapted(decoder, &texts, &adapters, rows.tokenizer.pad_id())?;
            for ((index, score), text) in (first_row..).zip(scores).zip(&texts) {
                score.map_or(Ok(()), |score| number(index, f64::from(score)))?;
                let line = json!({"index": index, "score": score, "num_tokens": text.len()});
                said.push_str(&format!("{line}\n"));
            }
            return Ok(said);
        }
        for (index, (sum, tokens)) in (first_row..).zip(scores(decoder, &examples, &adapters)?) {
            number(index, sum)?;
            let line = json!({"index": index, "sum_logprob": sum, "num_tokens": tokens});
            said.push_str(&format!("{line}\n"));
        }
        Ok(said)
    };
    loaded.run(
        |rank| {
            let mut lines = Lines::new(options.input.output_file.as_deref(), rank)?;
            let say = |first_row, records| score(rank.decoder(), first_row, records);
            rank.in_order(source.records(), size, say, |text| lines.write(text))
        },
        Ok,
    )
}

/// That a row's result is a number.
fn number(index: u64, value: f64) -> Result<(), ModelError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(ModelError::ResultNotFinite { what: format!("row {}", index + 1), value })
}

/// The log-probability of each row's targets, by its adapter, and their number; both 0 for a row without any.
fn scores(
    decoder: &Decoder,
    examples: &[Option<Example>],
    adapters: &[Option<usize>],
) -> Result<Vec<(f64, u64)>, TrainError> {
    let mut sums = vec![(0.0, 0); examples.len()];
    let (places, present): (Vec<usize>, Vec<&Example>) =
        examples.iter().enumerate().filter_map(|(i, e)| Some((i, e.as_ref()?))).unzip();
    let batch = MicroBatch::new(Collator::default().batch(&present, 0));
    if batch.targets.is_empty() {
        return Ok(sums);
    }
    let pass = scoring_pass(decoder, places.iter().map(|&place| adapters[place]).collect())?;
    let scored = supervised(decoder, &batch, &pass, TokenLoss::Nll, 1.0)?;
    for (&token, &log_prob) in batch.rows.iter().zip(&scored.facts.stats().log_prob) {
        // Each row is one document here: nothing is packed.
        let row = batch.tokens.documents.partition_point(|d| d.end <= token);
        let (sum, tokens) = &mut sums[places[row]];
        *sum += f64::from(log_prob);
        *tokens += 1;
    }
    Ok(sums)
}
