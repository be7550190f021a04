//! SentencePiece's BPE of `tokenizer.model`: Llama's, Gemma's, and any other by what its own file says.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use burnish_core::{PieceKind, SentencePiece};
use serde_json::{Map, Value, json};

use crate::tokenizer::made::{Bpe, Fault, Made, Parts, Said, bounded, read, unused};

/// What SentencePiece writes spaces as.
const SPACE: &str = "\u{2581}";

/// Types of models that Transformers reads by what the file says though their tokenizer's class is Llama's.
const OF_FILE: [&str; 18] = [
    "aria",
    "fuyu",
    "internlm2",
    "internlm3",
    "jamba",
    "llava",
    "llava_next",
    "minicpm3",
    "ministral",
    "mistral",
    "mistral3",
    "mixtral",
    "olmo2",
    "persimmon",
    "phi3",
    "phimoe",
    "stablelm",
    "vipllava",
];

/// Classes of folders' code that put tokens into texts which the file does not have.
const BY_CODE: [&str; 2] = ["ChatGLMTokenizer", "ChatGLM4Tokenizer"];

pub(super) fn made(folder: &Path, said: &Said<'_>) -> Result<Made, Fault> {
    let path = folder.join("tokenizer.model");
    let model = SentencePiece::parse(&read(&path)?)
        .ok_or_else(|| unused(&path, "it is no model of SentencePiece"))?;
    if !model.is_bpe {
        let reason = "its model is not BPE; save it once with Transformers, AutoTokenizer.from_pretrained(...).save_pretrained(...), \
                      which writes tokenizer.json";
        return Err(unused(&path, reason));
    }
    bounded(&path, model.pieces.iter().map(|piece| piece.text.len()))?;
    if BY_CODE.contains(&said.class()) {
        let reason = format!(
            "the class `{}` has tokens of its own by code of the folder; save it once with Transformers, which writes \
             tokenizer.json, or take the folder in Transformers' format (GLM-4-9B-0414 and later)",
            said.class()
        );
        return Err(unused(&path, reason));
    }
    let parts = match said.class() {
        "GemmaTokenizer" => of_gemma(&model),
        "LlamaTokenizer" if !OF_FILE.contains(&said.model_type) => of_llama(&model, said),
        _ => of_file(&model, said),
    };
    let mask = (said.class() == "GemmaTokenizer").then(|| "<mask>".to_owned());
    let [bos, eos] = model.bos_eos;
    let named =
        [("bos_token", bos), ("eos_token", eos), ("unk_token", Some(model.unknown)), ("mask_token", mask)];
    let named = named.into_iter().filter(|(name, _)| !said.config.contains_key(*name));
    Ok(Made { path, parts, named: named.filter_map(|(name, text)| Some((name, text?))).collect() })
}

/// What Transformers' class for Llama makes of the pieces.
fn of_llama(model: &SentencePiece, said: &Said<'_>) -> Parts {
    let spaced = said.flag("add_prefix_space").unwrap_or(true);
    let scheme = match said.flag("legacy") {
        _ if !spaced => "never",
        Some(true) => "always",
        _ => "first",
    };
    let strip = spaced.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let decoders: Vec<Value> = decoders().into_iter().chain(strip).collect();
    Parts {
        pre_tokenizer: metaspace(scheme),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        ..of_class(model)
    }
}

/// What that for Gemma makes of them.
fn of_gemma(model: &SentencePiece) -> Parts {
    let parts = of_class(model);
    let space = json!({"String": " "});
    Parts {
        normalizer: replace(&space, SPACE),
        pre_tokenizer: json!({"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": false}),
        decoder: json!({"type": "Sequence", "decoders": decoders()}),
        model: Bpe { unknown: Some(model.unknown.clone()), ..parts.model },
        ..parts
    }
}

/// What both make: all pieces are merged, in the order of their ids.
fn of_class(model: &SentencePiece) -> Parts {
    let ids: HashMap<&str, usize> =
        model.pieces.iter().enumerate().map(|(id, piece)| (&piece.text[..], id)).collect();
    let mut merges = Vec::new();
    for (_, piece) in
        model.pieces.iter().enumerate().filter(|(id, piece)| ids.get(&piece.text[..]) == Some(id))
    {
        merges.extend(halves(&piece.text, |half| ids.contains_key(half)));
    }
    let added = model.pieces.iter().filter(|p| matches!(p.kind, PieceKind::Control | PieceKind::UserDefined));
    Parts {
        normalizer: Value::Null,
        pre_tokenizer: Value::Null,
        post_processor: Value::Null,
        decoder: Value::Null,
        model: Bpe {
            vocab: vocabulary(model),
            merges: merges.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
            fuse_unknown: true,
            byte_fallback: true,
            ..Bpe::default()
        },
        added: added.map(|piece| (piece.text.clone(), piece.kind == PieceKind::Control)).collect(),
        declared_first: false,
    }
}

fn decoders() -> Vec<Value> {
    vec![replace(&json!({"String": SPACE}), " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]
}

/// What the file says of itself.
fn of_file(model: &SentencePiece, said: &Said<'_>) -> Parts {
    let legacy = said.config.get("legacy").is_none_or(|legacy| legacy.as_bool().unwrap_or(false));
    let normal: HashMap<&str, usize> = (model.pieces.iter().enumerate())
        .filter(|(_, piece)| piece.kind == PieceKind::Normal)
        .map(|(id, piece)| (&piece.text[..], id))
        .collect();
    let mut merges = Vec::new();
    for (&text, &id) in &normal {
        merges.extend(halves(text, |half| normal.contains_key(half)).map(|(a, b)| (id, a, b)));
    }
    let score = |id: usize| -model.pieces[id].score;
    merges.sort_by(|x, y| score(x.0).total_cmp(&score(y.0)).then_with(|| x.cmp(y)));
    let mut normalizers = Vec::new();
    if !model.charsmap.is_empty() {
        normalizers
            .push(json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(&model.charsmap)}));
    }
    if model.remove_extra_whitespaces {
        normalizers.push(replace(&json!({"Regex": r"\A +| +\z"}), ""));
        normalizers.push(replace(&json!({"Regex": " {2,}"}), " "));
    }
    if model.escape_whitespaces {
        normalizers.push(replace(&json!({"String": " "}), SPACE));
    }
    let mut cuts = Vec::new();
    if model.add_dummy_prefix {
        if legacy {
            // The space before a text is put there too where it begins with one.
            normalizers.push(replace(&json!({"Regex": format!(r"\A{SPACE}")}), &SPACE.repeat(2)));
        }
        cuts.push(metaspace(if legacy { "always" } else { "first" }));
    }
    let of_kind = |kind: PieceKind| model.pieces.iter().filter(move |piece| piece.kind == kind);
    let mut whole: Vec<&str> = of_kind(PieceKind::UserDefined).map(|piece| &piece.text[..]).collect();
    whole.sort_by_key(|text| std::cmp::Reverse(text.chars().count()));
    let ignore_merges = !whole.is_empty();
    if ignore_merges {
        let pattern = whole.into_iter().map(escaped).collect::<Vec<_>>().join("|");
        cuts.push(
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}),
        );
    }
    let mut decoders = vec![replace(&json!({"String": SPACE}), " ")];
    if model.byte_fallback {
        decoders.push(json!({"type": "ByteFallback"}));
    }
    if model.byte_fallback || model.add_dummy_prefix {
        decoders.push(json!({"type": "Fuse"}));
    }
    if model.add_dummy_prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: if cuts.is_empty() {
            Value::Null
        } else {
            json!({"type": "Sequence", "pretokenizers": cuts})
        },
        post_processor: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: Bpe {
            vocab: vocabulary(model),
            merges: merges.into_iter().map(|(_, a, b)| (a.to_owned(), b.to_owned())).collect(),
            unknown: Some(model.unknown.clone()),
            fuse_unknown: true,
            byte_fallback: model.byte_fallback,
            ignore_merges,
        },
        added: of_kind(PieceKind::Control).map(|piece| (piece.text.clone(), true)).collect(),
        declared_first: model.add_dummy_prefix,
    }
}

fn vocabulary(model: &SentencePiece) -> Map<String, Value> {
    model.pieces.iter().enumerate().map(|(id, piece)| (piece.text.clone(), Value::from(id))).collect()
}

/// The two parts that a text is made of, both of them pieces, the shortest first part first.
fn halves(text: &str, is_piece: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, &str)> {
    let at = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
    at.filter(move |(a, b)| is_piece(a) && is_piece(b))
}

fn replace(pattern: &Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false})
}

/// A text as an expression that it alone matches.
fn escaped(text: &str) -> String {
    // Others, escaped, may mean something: `\<` is where a word begins.
    let special = |c: char| "()[]{}?*+-|^$\\.&~# \t\n\r\u{b}\u{c}".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
