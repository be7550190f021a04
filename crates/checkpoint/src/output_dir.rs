//! The output folder, before a run writes into it.

use std::fs;
use std::path::Path;

use burnish_weight_files::{WeightFileError, clean_unfinished, is_unfinished, write_atomic};

use crate::CheckpointError;

/// Names that training runs (burnish's, Transformers', PEFT's, TRL's) leave in an output folder.
const NAMES: &[&str] = &[
    "README.md",
    "adapter_config.json",
    "added_tokens.json",
    "all_results.json",
    "chat_template.jinja",
    "chat_template.json",
    "chat_templates",
    "checkpoint_index.json",
    "completions",
    "config.json",
    "eval_results.json",
    "generation_config.json",
    "logs",
    "loss.svg",
    "merges.txt",
    "metrics.jsonl",
    "model.safetensors",
    "preprocessor_config.json",
    "qwen.tiktoken",
    "runs",
    "special_tokens_map.json",
    "tekken.json",
    "tensorboard",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "train_results.json",
    "trainer_log.jsonl",
    "trainer_state.json",
    "training_args.bin",
    "training_args.json",
    "training_args.yaml",
    "vocab.json",
    "vocab.txt",
];
/// Beginnings of such names.
const PREFIXES: &[&str] =
    &["checkpoint-", "earlier-", "adapter_model", "model-", "model.safetensors", "events.out.tfevents", "."];

/// Makes sure that a run may write into `path`: creates it, tries to write, cleans leftovers of crashed saves, and
/// refuses a folder that holds something else (files that no training run writes, other than `also_ours`) unless
/// `overwrite`, or that is one of the `inputs`.
///
/// # Errors
/// Before training, rather than at its first save: not a directory, not writable, foreign, or an input.
pub fn prepare_output_dir(
    path: impl AsRef<Path>,
    overwrite: bool,
    inputs: &[&Path],
    also_ours: &[&str],
) -> Result<(), CheckpointError> {
    let path = path.as_ref();
    if path.exists() && !path.is_dir() {
        return Err(WeightFileError::NotADirectory { path: path.to_path_buf() }.into());
    }
    let same = |input: &Path| matches!((path.canonicalize(), input.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if let Some(input) = inputs.iter().find(|i| same(i)) {
        return Err(CheckpointError::OutputIsInput { path: path.to_path_buf(), input: input.to_path_buf() });
    }
    let files = foreign(path, also_ours);
    if !files.is_empty() && !overwrite {
        return Err(CheckpointError::Foreign { path: path.to_path_buf(), files });
    }
    let probe = path.join(".burnish-probe");
    write_atomic(&probe, b"")?;
    let removed = fs::remove_file(&probe);
    removed.map_err(|source| WeightFileError::NotWritable { path: path.to_path_buf(), source })?;
    clean_unfinished(path)?;
    Ok(())
}

/// Up to five names that no training run writes.
fn foreign(path: &Path, also_ours: &[&str]) -> Vec<String> {
    let known = |name: &str| {
        // What a killed run had begun to write of a file.
        let name = name.strip_suffix(".part").unwrap_or(name);
        NAMES.contains(&name)
            || also_ours.contains(&name)
            || PREFIXES.iter().any(|p| name.starts_with(p))
            || is_unfinished(name)
            // A PEFT adapter of another name lies in a subfolder of that name.
            || path.join(name).join("adapter_config.json").is_file()
    };
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|n| !known(n));
    names.sort();
    names.truncate(5);
    names
}
