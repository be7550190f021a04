//! `burnish generate`: continue a prompt, or every prompt of a file.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use burnish_config::GenerateOptions;
use burnish_config::groups::{GenerationOptions, PreparationOptions, named_adapters};
use burnish_data::{Row, Source, TextStream};
use burnish_models::{Completion, Generation, GenerationConfig, ModelFolder};
use burnish_trainers::{Inference, InferenceRank, Prepared, TrainError, prepare_rows};
use serde_json::json;

use crate::model::{Lines, Loaded};
use crate::refusal::refuse;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let Some(resolved) = crate::options::<GenerateOptions>(words)? else { return Ok(ExitCode::SUCCESS) };
    let options = resolved.options;
    let mut loaded = Loaded::open(&options.model, &options.quantization, &options.ranks)?;
    loaded.inference = loaded.inference.with_adapters(named_adapters(&options.adapters.lora_modules))?;
    let folder = loaded.inference.folder();
    let prompts = &options.prompts;
    let preparation = PreparationOptions {
        chat_template_path: prompts.chat_template_path.clone(),
        eos_token: prompts.eos_token.clone(),
        pad_token: prompts.pad_token.clone(),
        ..PreparationOptions::default()
    };
    let mut rows = prepare_rows(folder.tokenizer_path(), &preparation, folder.spec().vocab)?;
    if prompts.apply_chat_template == Some(false) {
        rows.templates = None;
    }
    let settings = settings(folder, &rows, &options.generation, prompts.eos_token.is_some())?;
    let skip = options.generation.skip_special_tokens;
    let reach = Reach { limit: folder.spec().max_positions, said: AtomicBool::new(false) };
    match (&prompts.prompt.0, &prompts.dataset_name) {
        (Some(prompt), None) => {
            let ids = rows.prompt("--prompt", prompt)?;
            let file = prompts.output_file.as_deref();
            loaded.run(|rank| one(rank, &rows, &ids, &settings, (skip, &reach), file), Ok)
        }
        (None, Some(name)) => {
            let source = Source::train(name, &prompts.dataset_test_split)?;
            if source.records().next().is_none() {
                refuse!(NoRows, "{}: no rows; each line holds a JSON object with a prompt", source.name());
            }
            let size = prompts.per_device_eval_batch_size;
            let file = prompts.output_file.as_deref();
            let of = (&loaded.inference, &source);
            loaded.run(|rank| many(rank, &rows, of, &settings, (size, skip, &reach), file), Ok)
        }
        _ => {
            refuse!(
                MissingOption,
                "generate needs a prompt: give --prompt TEXT, or --dataset_name with a prompt in each row"
            )
        }
    }
}

/// The folder's settings, with what the options say.
pub(crate) fn settings(
    folder: &ModelFolder,
    rows: &Prepared,
    options: &GenerationOptions,
    eos_given: bool,
) -> anyhow::Result<Generation> {
    let config = GenerationConfig::read(folder.path(), folder.config())?;
    let mut settings = config.generation(options.seed);
    settings.stop = rows.stop_tokens(&config, eos_given);
    settings.max_new_tokens = options.max_new_tokens.or(config.max_new_tokens).unwrap_or(256);
    settings.min_new_tokens = options.min_new_tokens.unwrap_or(settings.min_new_tokens);
    let Generation { min_new_tokens, max_new_tokens, .. } = settings;
    if options.min_new_tokens.is_some() && min_new_tokens > max_new_tokens {
        refuse!(
            Conflict,
            "min_new_tokens: {min_new_tokens}, but max_new_tokens is {max_new_tokens}; raise max_new_tokens"
        );
    }
    settings.disable_compile = options.disable_compile;
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

/// How far a model's positions go.
struct Reach {
    limit: usize,
    /// Whether it was said that a text goes further.
    said: AtomicBool,
}

impl Reach {
    /// Says it once of a text that goes further: Transformers goes on as well.
    fn note(&self, prompt: &[u32], completion: &Completion) {
        let got = prompt.len() + completion.token_ids.len();
        if got > self.limit && !self.said.swap(true, Ordering::Relaxed) {
            crate::voice::note(format_args!(
                "prompt and completion are {got} tokens together, but max_position_embeddings is {}: what comes after \
                 that is likely to be worse; lower max_new_tokens",
                self.limit
            ));
        }
    }
}

/// One prompt, said token by token by the lead, and kept in `file` where there is one. Ranks that do not share layers with
/// it have nothing to do.
fn one(
    rank: &InferenceRank,
    rows: &Prepared,
    prompt: &[u32],
    settings: &Generation,
    (skip, reach): (bool, &Reach),
    file: Option<&Path>,
) -> Result<(), TrainError> {
    if !rank.with_lead() {
        return Ok(());
    }
    let mut kept = file.map(|file| Lines::new(Some(file), rank)).transpose()?;
    let mut lines = Lines::new(None, rank)?;
    let mut stream = TextStream::new(skip);
    let mut fault = None;
    let completions = rank.generate(&[prompt.to_vec()], settings, &mut |_, token| {
        let text = stream.push(&rows.tokenizer, token).map_err(TrainError::from);
        fault = text.and_then(|text| lines.say(&text)).err();
        fault.is_none()
    })?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    let rest = stream.finish(&rows.tokenizer)?;
    lines.say(&format!("{rest}\n"))?;
    if let Some(completion) = completions.first().filter(|_| rank.leads()) {
        reach.note(prompt, completion);
    }
    match (&mut kept, completions.first()) {
        (Some(kept), Some(completion)) => kept.write(line(rows, prompt, completion, skip)?.as_bytes()),
        _ => Ok(()),
    }
}

/// A completion as a line of a file.
fn line(rows: &Prepared, prompt: &[u32], completion: &Completion, skip: bool) -> Result<String, TrainError> {
    let line = json!({
        "prompt": rows.tokenizer.decode(prompt, false)?,
        "completion": rows.tokenizer.decode(&completion.token_ids, skip)?,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason.to_string(),
    });
    Ok(format!("{line}\n"))
}

/// Every prompt of a source, by the adapter that its row names, a JSON line for each in their order.
fn many(
    rank: &InferenceRank,
    rows: &Prepared,
    (inference, source): (&Inference, &Source),
    settings: &Generation,
    (size, skip, reach): (usize, bool, &Reach),
    file: Option<&Path>,
) -> Result<(), TrainError> {
    let mut lines = Lines::new(file, rank)?;
    let preparer = rows.preparer();
    rank.in_order(
        source.records(),
        size,
        |first_row, records| {
            let (mut prompts, mut adapters) = (Vec::with_capacity(records.len()), Vec::new());
            for record in records {
                adapters.push(inference.adapter_of(&record)?);
                prompts.push(preparer.prompt(&Row::parse(record, "text")?)?);
            }
            let settings = Generation { first_row, ..settings.clone() };
            let completions = rank.generate_adapted(&prompts, &adapters, &settings, &mut |_, _| true)?;
            let mut said = String::new();
            for (prompt, completion) in prompts.iter().zip(completions) {
                reach.note(prompt, &completion);
                said.push_str(&line(rows, prompt, &completion, skip)?);
            }
            Ok(said)
        },
        |text| lines.write(text),
    )
}
