//! Special tokens, which of them texts begin and end with, and chat templates.

use serde_json::{Map, Value as Json};

use super::parts::Parts;
use crate::Value;

/// Tokens by the names of `tokenizer_config.json` and those of metadata.
const TOKENS: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

pub(super) fn metadata(parts: &Parts, config: &Map<String, Json>, vocab: usize) -> Vec<(String, Value)> {
    let mut metadata = Vec::new();
    let added = parts.added();
    for (name, key) in TOKENS {
        let text = parts.config.get(&format!("{name}_token"));
        let text = text.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        let named = text.and_then(|text| added.iter().find(|token| token.text == text)).map(|token| token.id);
        let key_in_config = format!("{name}_token_id");
        let of_text = || config.get("text_config").and_then(|text| text.get(&key_in_config));
        let by_id = config.get(&key_in_config).filter(|id| !id.is_null()).or_else(of_text);
        let by_id = by_id.and_then(Json::as_u64).map(|id| id as usize);
        if let Some(id) = named.or(by_id).filter(|&id| id < vocab) {
            metadata.push((format!("tokenizer.ggml.{key}_token_id"), Value::from(id as u32)));
        }
    }
    let [begins, ends] = around(parts);
    metadata.push(("tokenizer.ggml.add_bos_token".to_owned(), Value::from(begins)));
    metadata.push(("tokenizer.ggml.add_eos_token".to_owned(), Value::from(ends)));
    metadata.extend(templates(parts));
    metadata
}

/// Whether a text begins and ends with a special token. llama.cpp has defaults for each pre-tokenizer, so both are said.
fn around(parts: &Parts) -> [bool; 2] {
    let said = |name: &str| parts.config.get(name).and_then(Json::as_bool).unwrap_or(false);
    if parts.json.is_none() {
        // Slow tokenizers of SentencePiece begin with one unless they are told not to.
        let begins = parts.config.get("add_bos_token").and_then(Json::as_bool).unwrap_or(true);
        return [begins, said("add_eos_token")];
    }
    let steps = parts.steps("post_processor");
    let template = steps.iter().find(|step| step["type"] == "TemplateProcessing");
    let Some(single) = template.and_then(|step| step["single"].as_array()) else {
        let of_bytes = steps.iter().any(|step| step["type"] == "ByteLevel");
        return if of_bytes { [false; 2] } else { [said("add_bos_token"), said("add_eos_token")] };
    };
    let special = |step: Option<&Json>| step.is_some_and(|step| step.get("SpecialToken").is_some());
    [special(single.first()), special(single.last())]
}

/// Chat templates: one, or several by name.
fn templates(parts: &Parts) -> Vec<(String, Value)> {
    let key = "tokenizer.chat_template";
    let file = burnish_core::file::read_to_string(parts.folder.join("chat_template.jinja")).ok();
    match parts.config.get("chat_template") {
        Some(Json::String(template)) => vec![(key.to_owned(), Value::from(template.as_str()))],
        Some(Json::Array(all)) => {
            let (mut metadata, mut names) = (Vec::new(), Vec::new());
            for choice in all {
                let (Some(name), Some(template)) = (choice["name"].as_str(), choice["template"].as_str())
                else {
                    continue;
                };
                if name == "default" {
                    metadata.push((key.to_owned(), Value::from(template)));
                    continue;
                }
                let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
                let name: String = name.chars().map(plain).collect();
                metadata.push((format!("{key}.{name}"), Value::from(template)));
                names.push(name);
            }
            if !names.is_empty() {
                metadata.push(("tokenizer.chat_templates".to_owned(), Value::strings(names)));
            }
            metadata
        }
        _ => file.map(|template| (key.to_owned(), Value::from(template))).into_iter().collect(),
    }
}
