//! Qwen's `qwen.tiktoken` (before Qwen 1.5): byte-level BPE by ranks, whose special tokens the folder's code names.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::tokenizer::byte_level::cut_as_qwen2;
use crate::tokenizer::made::{Fault, Made, Said, bounded, read, unused};
use crate::tokenizer::tekken::by_ranks;

/// Special tokens behind the ranks, and how many `<|extra_N|>` follow them.
const SPECIALS: ([&str; 3], usize) = (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 205);

pub(super) fn made(folder: &Path, said: &Said<'_>) -> Result<Made, Fault> {
    let path = folder.join("qwen.tiktoken");
    let text = String::from_utf8(read(&path)?).map_err(|_| unused(&path, "it is no UTF-8"))?;
    let token = |(at, line): (usize, &str)| {
        let (token, rank) = line.trim_end().split_once(' ')?;
        let bytes = STANDARD.decode(token).ok()?;
        (rank.parse() == Ok(at)).then_some(bytes)
    };
    let line = |line: (usize, &str)| {
        token(line).ok_or_else(|| {
            unused(&path, format!("line {}: expected a token and its rank, {0} less 1", line.0 + 1))
        })
    };
    let tokens: Vec<Vec<u8>> = text.lines().enumerate().map(line).collect::<Result<_, Fault>>()?;
    bounded(&path, tokens.iter().map(Vec::len))?;
    let mut model = by_ranks(&tokens, 0);
    let extra = (0..SPECIALS.1).map(|at| format!("<|extra_{at}|>"));
    let specials: Vec<String> = SPECIALS.0.iter().map(|text| (*text).to_owned()).chain(extra).collect();
    let ids = specials.iter().enumerate();
    model.vocab.extend(ids.map(|(at, text)| (text.clone(), Value::from(tokens.len() + at))));
    let end = || SPECIALS.0[0].to_owned();
    let names = ["eos_token", "pad_token"].into_iter().filter(|name| said.named(name).is_none());
    let mut parts = cut_as_qwen2(model);
    parts.added = specials.into_iter().map(|text| (text, true)).collect();
    Ok(Made { path, parts, named: names.map(|name| (name, end())).collect() })
}
