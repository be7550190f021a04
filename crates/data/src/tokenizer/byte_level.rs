//! Byte-level BPE of `vocab.json` and `merges.txt`: GPT-2's and Qwen's.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::tokenizer::made::{Bpe, Fault, Made, Parts, Said, read, unused};

/// How a text is cut before its bytes are merged, by class: none as GPT-2.
const CUTS: [(&str, Option<&str>); 4] = [
    ("GPT2Tokenizer", None),
    ("CodeGenTokenizer", None),
    ("Qwen2Tokenizer", Some(QWEN2)),
    ("Qwen3_5Tokenizer", Some(QWEN3_5)),
];
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The class of a model's type, where the tokenizer's files name none.
fn of_model(model_type: &str) -> &'static str {
    match model_type {
        "codegen" | "gpt2" | "gpt_bigcode" | "gpt_neo" | "gptj" | "opt" | "phi" | "starcoder2" => {
            "GPT2Tokenizer"
        }
        _ if model_type.starts_with("qwen3_5") => "Qwen3_5Tokenizer",
        _ if model_type.starts_with("qwen2") || model_type.starts_with("qwen3") => "Qwen2Tokenizer",
        _ => "",
    }
}

pub(super) fn made(folder: &Path, said: &Said<'_>) -> Result<Made, Fault> {
    let (path, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let class = if said.class().is_empty() { of_model(said.model_type) } else { said.class() };
    let Some((class, how)) = CUTS.iter().find(|(own, _)| *own == class) else {
        let reason = format!(
            "how the class `{}` cuts texts is not known; known are {}: save it once with Transformers, \
             AutoTokenizer.from_pretrained(...).save_pretrained(...), which writes tokenizer.json",
            said.config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("none"),
            CUTS.map(|(class, _)| class).join(", "),
        );
        return Err(unused(&path, reason));
    };
    let vocab: Map<String, Value> =
        serde_json::from_slice(&read(&path)?).map_err(|error| unused(&path, error.to_string()))?;
    let text = String::from_utf8(read(&merges)?).map_err(|_| unused(&merges, "it is no UTF-8"))?;
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.starts_with("#version") && !line.trim().is_empty());
    let pair = |(at, line): (usize, &str)| {
        let pair = line.trim_end().split_once(' ').filter(|(_, b)| !b.contains(' '));
        let (a, b) = pair.ok_or_else(|| unused(&merges, format!("line {}: expected two tokens", at + 1)))?;
        Ok((a.to_owned(), b.to_owned()))
    };
    let merges: Vec<(String, String)> = lines.map(pair).collect::<Result<_, Fault>>()?;
    let prefix = said.flag("add_prefix_space").unwrap_or(false);
    let end = "<|endoftext|>".to_owned();
    let names: &[&'static str] = match *class {
        "Qwen2Tokenizer" | "Qwen3_5Tokenizer" => &["eos_token", "unk_token", "pad_token"],
        _ => &["bos_token", "eos_token", "unk_token"],
    };
    // A name that is null is of no token.
    let named = names.iter().filter(|name| !said.config.contains_key(**name) && vocab.contains_key(&end));
    Ok(Made {
        path,
        named: named.map(|name| (*name, end.clone())).collect(),
        parts: cut(*how, prefix, Bpe { vocab, merges, ..Bpe::default() }),
    })
}

/// A model behind the cuts of Qwen2.
pub(super) fn cut_as_qwen2(model: Bpe) -> Parts {
    cut(Some(QWEN2), false, model)
}

/// A model behind cuts by an expression, or by GPT-2's; whether a text gets a space before it.
fn cut(how: Option<&str>, prefix: bool, model: Bpe) -> Parts {
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let (normalizer, pre_tokenizer) = match how {
        None => (Value::Null, bytes(true)),
        Some(how) => {
            let split =
                json!({"type": "Split", "pattern": {"Regex": how}, "behavior": "Isolated", "invert": false});
            (json!({"type": "NFC"}), json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]}))
        }
    };
    Parts {
        normalizer,
        pre_tokenizer,
        post_processor: Value::Null,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        model,
        added: Vec::new(),
        declared_first: false,
    }
}
