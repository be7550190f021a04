//! `burnish inspect`: what a path holds.

mod facts;

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use burnish_config::InspectOptions;
use serde_json::{Map, Value};

use facts::Facts;

use crate::refusal::require;

pub(crate) fn run(words: &[String]) -> anyhow::Result<ExitCode> {
    let words = crate::first_as("path", words);
    let Some(resolved) = crate::options::<InspectOptions>(&words)? else { return Ok(ExitCode::SUCCESS) };
    let target = resolved.options.target;
    let facts = facts(&target.path, target.tensors)?;
    if target.json {
        crate::voice::result(serde_json::to_string_pretty(&facts.0)?)?;
    } else {
        let mut text = String::new();
        written(&mut text, &facts.0, 0);
        crate::voice::result(text.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What there is to say, by what the path holds.
fn facts(path: &Path, tensors: bool) -> anyhow::Result<Facts> {
    let has = |name: &str| path.join(name).is_file();
    let named = |ending: &str| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending));
    require!(path.exists(), NotFound, "path: there is no {}", path.display());
    let mut facts = Facts::new(path);
    if path.is_file() && (named(".safetensors") || named(".safetensors.index.json")) {
        facts.weights(path, tensors)?;
    } else if path.is_file() && named(".gguf") {
        facts.gguf(path, tensors)?;
    } else if path.is_file() {
        facts.rows(path)?;
    } else if has("state/index.json") {
        facts.checkpoint(path)?;
        facts.holds(path, tensors)?;
    } else if has("burnish.json") {
        facts.output(path)?;
        facts.holds(path, tensors)?;
    } else if !facts.holds(path, tensors)? {
        facts.rows(path)?;
    }
    Ok(facts)
}

/// Lines of names and values, what belongs to a name behind it or below it.
fn written(text: &mut String, facts: &Map<String, Value>, depth: usize) {
    let width = facts.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in facts {
        let indent = "  ".repeat(depth);
        match value {
            Value::Null => {}
            Value::Array(items) if items.is_empty() => {}
            Value::Object(items) if items.is_empty() => {}
            Value::Object(inner) => {
                let _ = writeln!(text, "{indent}{name}");
                written(text, inner, depth + 1);
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(said).collect();
                // A list of sentences has a line for each.
                if items.iter().any(|item| item.len() > 60) {
                    for item in items {
                        let _ = writeln!(text, "{indent}{name:<width$}  {item}");
                    }
                } else {
                    let _ = writeln!(text, "{indent}{name:<width$}  {}", items.join(", "));
                }
            }
            other => {
                let _ = writeln!(text, "{indent}{name:<width$}  {}", said(other));
            }
        }
    }
}

fn said(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
