//! Model folders: configuration, weights, tokenizer, index.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::lab::{Lab, copy, has_null};
use crate::mutation;
use crate::random::Random;
use crate::verdict::{Outcome, judge};

const FILES: [&str; 8] = [
    "config.json",
    "config.json",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
];

/// Settings of `config.json` that ask for far more than there is, or for nothing.
const SIZES: [(&str, &str); 30] = [
    ("partial_rotary_factor", "7"),
    ("partial_rotary_factor", "-1"),
    ("partial_rotary_factor", "1e30"),
    ("hidden_size", "4294967296"),
    ("hidden_size", "18446744073709551615"),
    ("hidden_size", "0"),
    ("intermediate_size", "1000000000000"),
    ("num_hidden_layers", "1000000000"),
    ("num_hidden_layers", "0"),
    ("num_attention_heads", "0"),
    ("num_attention_heads", "1099511627776"),
    ("num_key_value_heads", "0"),
    ("num_key_value_heads", "3"),
    ("head_dim", "0"),
    ("head_dim", "7"),
    ("head_dim", "1099511627776"),
    ("vocab_size", "0"),
    ("vocab_size", "9223372036854775807"),
    ("max_position_embeddings", "0"),
    ("max_position_embeddings", "18446744073709551615"),
    ("rms_norm_eps", "-1"),
    ("rms_norm_eps", "\"1e-5\""),
    ("rope_parameters", "{\"rope_theta\": 0, \"rope_type\": \"default\"}"),
    ("rope_parameters", "{\"rope_theta\": -1e30, \"rope_type\": \"default\"}"),
    ("rope_parameters", "{\"rope_theta\": 10000, \"rope_type\": \"llama3\", \"factor\": 0}"),
    ("rope_parameters", "{\"rope_theta\": 10000, \"rope_type\": \"yarn\", \"factor\": -3}"),
    (
        "rope_parameters",
        "{\"rope_theta\": 10000, \"rope_type\": \"longrope\", \"short_factor\": [], \"long_factor\": []}",
    ),
    ("architectures", "[\"../../x\"]"),
    ("model_type", "\"\\u001b[2J\""),
    ("eos_token_id", "99999999999"),
];

/// Things in the place of files.
const PLACES: [&str; 12] = [
    "fifo config.json",
    "fifo model.safetensors",
    "fifo tokenizer.json",
    "device config.json",
    "device tokenizer.json",
    "device model.safetensors",
    "folder config.json",
    "folder tokenizer.json",
    "gone config.json",
    "gone tokenizer.json",
    "index ../model.safetensors",
    "index /etc/passwd",
];

pub(crate) fn written(_: &Lab) -> usize {
    SIZES.len() + PLACES.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let model = folder.path().join("model");
    copy(&lab.model(), &model)?;
    if let Some((key, value)) = SIZES.get(attempt) {
        let path = model.join("config.json");
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        config[*key] = serde_json::from_str(value).with_context(|| (*value).to_owned())?;
        std::fs::write(&path, config.to_string())?;
        let ended = lab.run(lab.score(&model, &lab.rows("text.jsonl"), &[]))?;
        return Ok(judge(
            format!("config.json: {key} = {value}"),
            &ended,
            &[key, "config.json", "model_type"],
            |e| has_null(&e.stdout),
        ));
    }
    if let Some(place) = PLACES.get(attempt.wrapping_sub(SIZES.len())) {
        let (kind, name) = place.split_once(' ').unwrap_or((place, ""));
        put(kind, name, &model)?;
        let ended = lab.run(lab.score(&model, &lab.rows("text.jsonl"), &[]))?;
        let file = name.rsplit('/').next().unwrap_or(name);
        return Ok(judge(*place, &ended, &[file], |_| Some("no error".to_owned())));
    }
    let name = *random.of_these(&FILES);
    let path = model.join(name);
    let mut bytes = std::fs::read(&path)?;
    let json = name.ends_with(".json") && random.below(4) > 0;
    let (what, wrong_type) = if json {
        let mut value: Value = serde_json::from_slice(&bytes)?;
        let change = mutation::value(random, &mut value);
        bytes = value.to_string().into_bytes();
        (change.what, change.other_type.then_some(change.key))
    } else {
        (mutation::bytes(random, &mut bytes), None)
    };
    std::fs::write(&path, &bytes)?;
    let ended = lab.run(lab.score(&model, &lab.rows("text.jsonl"), &[]))?;
    // What is of another type may be refused or without meaning; it may not mean something else. `null` is the default.
    let parsed = serde_json::from_slice::<Value>(&bytes).is_ok();
    let nothing = what.ends_with("= null");
    let right = |e: &crate::running::Ended| {
        has_null(&e.stdout).or_else(|| {
            if name.ends_with(".json") && !parsed && e.stdout != lab.scores[0] {
                return Some("JSON that is none was read".to_owned());
            }
            let other = wrong_type
                .as_ref()
                .filter(|_| name == "config.json" && !nothing && e.stdout != lab.scores[0]);
            other.map(|key| format!("`{key}` of another type changed what is computed"))
        })
    };
    let model_name = model.display().to_string();
    Ok(judge(format!("{name}: {what}"), &ended, &[name, model_name.as_str(), "row ", "line "], right))
}

/// Puts something else in the place of a file.
pub(crate) fn put(kind: &str, name: &str, folder: &Path) -> Result<()> {
    let path = folder.join(name);
    if kind == "index" {
        std::fs::rename(folder.join("model.safetensors"), folder.with_file_name("model.safetensors"))?;
        let index = json!({"metadata": {}, "weight_map": {"lm_head.weight": name}});
        return Ok(std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?);
    }
    std::fs::remove_file(&path)?;
    match kind {
        "fifo" => drop(Command::new("mkfifo").arg(&path).status()?),
        "device" => std::os::unix::fs::symlink("/dev/zero", &path)?,
        "folder" => std::fs::create_dir(&path)?,
        _ => {}
    }
    Ok(())
}
