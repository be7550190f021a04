//! Mistral's `tekken.json`: byte-level BPE by ranks.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::tokenizer::made::{Bpe, Fault, Made, Parts, Said, bounded, read, unused};

#[derive(Deserialize)]
struct Tekken {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: Option<usize>,
    default_num_special_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct Token {
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// Special tokens where a file names none, as before `mistral-common` 1.5.
const SPECIALS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Most special tokens.
const MOST: usize = 1 << 16;

pub(super) fn made(folder: &Path, _said: &Said<'_>) -> Result<Made, Fault> {
    let path = folder.join("tekken.json");
    let bad = |reason: String| unused(&path, reason);
    let tekken: Tekken = serde_json::from_slice(&read(&path)?).map_err(|error| bad(error.to_string()))?;
    let usual = || {
        let all = SPECIALS.iter().enumerate();
        all.map(|(rank, text)| Special { rank, token_str: (*text).to_owned() }).collect()
    };
    let mut specials: Vec<Special> = tekken.special_tokens.unwrap_or_else(usual);
    specials.sort_by_key(|special| special.rank);
    let count = tekken.config.default_num_special_tokens.unwrap_or(specials.len()).max(specials.len());
    if count > MOST || specials.iter().enumerate().any(|(at, special)| at != special.rank) {
        return Err(bad(format!("its {count} special tokens do not have the ranks from 0 on")));
    }
    let filled =
        |at: usize| specials.get(at).map_or_else(|| format!("<SPECIAL_{at}>"), |own| own.token_str.clone());
    let specials: Vec<String> = (0..count).map(filled).collect();
    let most = tekken.config.default_vocab_size.map_or(usize::MAX, |size| size.saturating_sub(count));
    let token = |(rank, token): (usize, &Token)| {
        STANDARD.decode(&token.token_bytes).map_err(|_| bad(format!("token {rank} is not in base64")))
    };
    let tokens: Vec<Vec<u8>> =
        tekken.vocab.iter().take(most).enumerate().map(token).collect::<Result<_, Fault>>()?;
    bounded(&path, tokens.iter().map(Vec::len))?;
    let mut model = by_ranks(&tokens, count);
    model.vocab.extend(specials.iter().enumerate().map(|(at, text)| (text.clone(), Value::from(at))));
    let split = json!({
        "type": "Split", "pattern": {"Regex": tekken.config.pattern}, "behavior": "Isolated", "invert": false
    });
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex});
    let parts = Parts {
        normalizer: Value::Null,
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]}),
        post_processor: bytes(true),
        decoder: bytes(true),
        model,
        added: specials.into_iter().map(|text| (text, true)).collect(),
        declared_first: false,
    };
    Ok(Made { path, parts, named: Vec::new() })
}

/// Byte-level BPE of tokens by their ranks, the first of which has the id `first`: what is a token is made of two at every place
/// where both are tokens, those of lower rank first.
pub(super) fn by_ranks(tokens: &[Vec<u8>], first: usize) -> Bpe {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, bytes)| (&bytes[..], rank)).collect();
    let mut merges = Vec::new();
    for (rank, bytes) in tokens.iter().enumerate().filter(|(rank, bytes)| ranks.get(&bytes[..]) == Some(rank))
    {
        let halves = (1..bytes.len()).map(|at| bytes.split_at(at));
        let of_tokens = halves.filter_map(|(a, b)| Some((*ranks.get(a)?, *ranks.get(b)?)));
        merges.extend(of_tokens.map(|(a, b)| (rank, a, b)));
    }
    merges.sort_unstable();
    let letters = byte_letters();
    let text = |rank: usize| tokens[rank].iter().map(|&byte| letters[usize::from(byte)]).collect::<String>();
    Bpe {
        vocab: ranks.values().map(|&rank| (text(rank), Value::from(rank + first))).collect(),
        merges: merges.into_iter().map(|(_, a, b)| (text(a), text(b))).collect(),
        ignore_merges: true,
        ..Bpe::default()
    }
}

/// The letter that stands for each byte in the tokens of byte-level BPE (GPT-2).
fn byte_letters() -> [char; 256] {
    let printed = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut letters = ['\0'; 256];
    let mut others = 0x100..;
    for byte in 0..=u8::MAX {
        let mut other = || others.next().and_then(char::from_u32);
        letters[usize::from(byte)] =
            if printed(byte) { char::from(byte) } else { other().expect("invariant: letters up to U+0143") };
    }
    letters
}
