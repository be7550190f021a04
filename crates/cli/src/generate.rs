//! `burnish generate`: continue a prompt, or every prompt of a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use burnish_config::{GenerateOptions, GenerationOptions, PreparationOptions};
use burnish_data::{Row, Source, TextStream, Tokenizer};
use burnish_models::{Generation, GenerationConfig};
use burnish_trainers::{Prepared, prepare_rows};
use serde_json::json;

use crate::model::Loaded;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<GenerateOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options;
    crate::use_threads(options.model.threads)?;
    let loaded = crate::model::load(&options.model)?;
    let prompts = &options.prompts;
    let preparation = PreparationOptions {
        chat_template_path: prompts.chat_template_path.clone(),
        eos_token: prompts.eos_token.clone(),
        pad_token: prompts.pad_token.clone(),
        ..PreparationOptions::default()
    };
    let mut rows = prepare_rows(loaded.folder.path(), &preparation, loaded.folder.spec().vocab)?;
    if prompts.apply_chat_template == Some(false) {
        rows.templates = None;
    }
    let settings = settings(&loaded, &rows.tokenizer, &options.generation, prompts.eos_token.is_some())?;
    let skip = options.generation.skip_special_tokens;
    match (&prompts.prompt.0, &prompts.dataset_name) {
        (Some(prompt), None) => one(&loaded, &rows, prompt, &settings, skip),
        (None, Some(name)) => {
            let source = Source::train(name, &prompts.dataset_test_split)?;
            let size = prompts.per_device_eval_batch_size.max(1);
            many(&loaded, &rows, &source, &settings, (size, skip), prompts.output_file.as_deref())
        }
        _ => {
            bail!("generate needs a prompt: give --prompt TEXT, or --dataset_name with a prompt in each row")
        }
    }
}

/// The folder's settings, with what the options say.
fn settings(
    loaded: &Loaded,
    tokenizer: &Tokenizer,
    options: &GenerationOptions,
    eos_given: bool,
) -> anyhow::Result<Generation> {
    let config = GenerationConfig::read(loaded.folder.path(), loaded.folder.config())?;
    let mut settings = config.generation(options.seed);
    if settings.stop.is_empty() || eos_given {
        settings.stop = tokenizer.eos_id().into_iter().collect();
    }
    settings.max_new_tokens = options.max_new_tokens.or(config.max_new_tokens).unwrap_or(256);
    let sampling = &mut settings.sampling;
    sampling.do_sample = options.do_sample.unwrap_or(sampling.do_sample);
    sampling.temperature = options.temperature.map_or(sampling.temperature, |t| t as f32);
    sampling.top_k = options.top_k.unwrap_or(sampling.top_k);
    sampling.top_p = options.top_p.map_or(sampling.top_p, |p| p as f32);
    sampling.min_p = options.min_p.map(|p| p as f32).or(sampling.min_p);
    sampling.repetition_penalty =
        options.repetition_penalty.map_or(sampling.repetition_penalty, |p| p as f32);
    Ok(settings)
}

fn one(
    loaded: &Loaded,
    rows: &Prepared,
    prompt: &str,
    settings: &Generation,
    skip: bool,
) -> anyhow::Result<ExitCode> {
    let ids = rows.prompt("--prompt", prompt)?;
    let mut stream = TextStream::new(skip);
    let mut fault = None;
    let mut out = std::io::stdout().lock();
    loaded.model.decoder.generate(&[ids], settings, &mut |_, token| {
        let said = stream.push(&rows.tokenizer, token).map_err(anyhow::Error::from).and_then(|text| {
            write!(out, "{text}")?;
            Ok(out.flush()?)
        });
        fault = said.err();
        fault.is_none()
    })?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    writeln!(out, "{}", stream.finish(&rows.tokenizer)?)?;
    Ok(ExitCode::SUCCESS)
}

fn many(
    loaded: &Loaded,
    rows: &Prepared,
    source: &Source,
    settings: &Generation,
    (size, skip): (usize, bool),
    file: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let mut out: Box<dyn Write> = match file {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| format!("{}: cannot write", path.display()))?,
        )),
        None => Box::new(std::io::stdout().lock()),
    };
    let preparer = rows.preparer();
    let mut records = source.records().peekable();
    if records.peek().is_none() {
        bail!("{}: no rows; each line holds a JSON object with a prompt", source.name());
    }
    let mut first_row = 0;
    while records.peek().is_some() {
        let mut prompts = Vec::with_capacity(size);
        for record in records.by_ref().take(size) {
            prompts.push(preparer.prompt(&Row::parse(record?, "text")?)?);
        }
        let settings = Generation { first_row, ..settings.clone() };
        let completions = loaded.model.decoder.generate(&prompts, &settings, &mut |_, _| true)?;
        for (prompt, completion) in prompts.iter().zip(completions) {
            let line = json!({
                "prompt": rows.tokenizer.decode(prompt, false)?,
                "completion": rows.tokenizer.decode(&completion.token_ids, skip)?,
                "token_ids": completion.token_ids,
                "finish_reason": completion.finish_reason.to_string(),
            });
            writeln!(out, "{line}")?;
        }
        first_row += prompts.len() as u64;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
