//! Names of pre-tokenizers: `tokenizer.json`'s expressions by what llama.cpp calls them.

use serde_json::Value as Json;

use super::parts::Parts;
use crate::GgufError;

/// Contractions, words behind one other character, numbers of up to `NUMBERS` digits, signs, line ends, spaces.
macro_rules! words {
    ($numbers:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// Words that begin with capitals, each with an end of its own kind.
macro_rules! cased {
    ($contractions:literal, $numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $contractions,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $contractions,
            r"|\p{N}",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// Expressions that a text is split by, and their names.
const EXPRESSIONS: [(&str, &str); 5] = [
    (words!("{1,3}"), "llama-bpe"),
    (words!(""), "qwen2"),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen35",
    ),
    (cased!("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"), "gpt-4o"),
    (cased!("", ""), "tekken"),
];

/// The names that are found out.
pub const PRE_TOKENIZERS: [&str; 8] =
    ["gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "gpt-4o", "tekken"];

/// llama.cpp's name of how a byte-level tokenizer cuts texts.
pub(super) fn name(parts: &Parts) -> Result<&'static str, GgufError> {
    let unknown = |what: String| {
        parts.fault(
            "tokenizer.json",
            what,
            "llama.cpp has it under a name, if at all: --tokenizer_pre says which (`default` cuts as GPT-2 does, nearly)",
        )
    };
    // What is composed is nearly always composed already; llama.cpp changes no text of these tokenizers.
    let other = parts.steps("normalizer").into_iter().find(|step| step["type"] != "NFC");
    if let Some(step) = other {
        return Err(unknown(format!("its normalizer {} is none that llama.cpp has", step["type"])));
    }
    let steps = parts.steps("pre_tokenizer");
    let is = |step: &Json, kind: &str| step["type"] == kind;
    let gpt2 = |step: &Json| {
        is(step, "ByteLevel") && step["use_regex"] != false && step["add_prefix_space"] == false
    };
    let bytes_alone =
        |step: &Json| is(step, "ByteLevel") && step["use_regex"] == false && step["add_prefix_space"] != true;
    match steps.as_slice() {
        [one] if gpt2(one) => return Ok("gpt-2"),
        [digits, words] if is(digits, "Digits") && digits["individual_digits"] == true && gpt2(words) => {
            return Ok("smollm");
        }
        [split, bytes] if is(split, "Split") && bytes_alone(bytes) => {
            let expression = split["pattern"]["Regex"].as_str().unwrap_or_default();
            if let Some((_, name)) = EXPRESSIONS.iter().find(|(known, _)| *known == expression) {
                // Llama 3's takes whole words that are tokens without their merges.
                let merges_first = parts.of_model("ignore_merges") != Some(&Json::Bool(true));
                return Ok(if *name == "llama-bpe" && merges_first { "dbrx" } else { name });
            }
            return Err(unknown(format!("it splits texts by `{expression}`, which is not known here")));
        }
        _ => {}
    }
    let kinds: Vec<String> = steps.iter().map(|step| step["type"].to_string()).collect();
    Err(unknown(format!("its pre_tokenizer [{}] is not known here", kinds.join(", "))))
}
