//! Tokenizers as metadata.

use std::path::Path;

use burnish_gguf::{GgufError, Value, vocabulary};
use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn metadata(folder: &Path, vocab: usize, pre: Option<&str>) -> Result<Vec<(String, Value)>, GgufError> {
    let config = Map::new();
    vocabulary::metadata(&vocabulary::Request { folder, vocab, config: &config, pre, no_space_prefix: false })
}

fn get<'a>(metadata: &'a [(String, Value)], key: &str) -> &'a Value {
    let key = format!("tokenizer.{key}");
    &metadata.iter().find(|(own, _)| *own == key).unwrap_or_else(|| panic!("{key}")).1
}

fn bytes(json: &Json) -> Vec<u8> {
    serde_json::to_vec(json).unwrap()
}

/// A byte-level tokenizer with this way of cutting texts.
fn byte_level(pre_tokenizer: Json) -> Json {
    json!({
        "added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "▁x", "special": false}],
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
        ]},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    })
}

fn split(expression: &str) -> Json {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    ]})
}

#[test]
fn byte_level_tokens_kinds_and_merges() {
    let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
    let config = json!({
        "bos_token": "<s>",
        "chat_template": [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}],
    });
    let folder =
        folder(&[("tokenizer.json", bytes(&byte_level(gpt2))), ("tokenizer_config.json", bytes(&config))]);
    let all = metadata(folder.path(), 6, None).unwrap();
    assert_eq!(get(&all, "ggml.model"), &Value::from("gpt2"));
    assert_eq!(get(&all, "ggml.pre"), &Value::from("gpt-2"));
    assert_eq!(get(&all, "ggml.tokens"), &Value::strings(["a", "b", "ab", "<s>", " x", "[PAD5]"]));
    assert_eq!(get(&all, "ggml.token_type"), &Value::integers([1, 1, 1, 3, 4, 5]));
    assert_eq!(get(&all, "ggml.merges"), &Value::strings(["a b"]));
    assert_eq!(get(&all, "ggml.bos_token_id"), &Value::U32(3));
    assert_eq!(get(&all, "ggml.add_bos_token"), &Value::Bool(true));
    assert_eq!(get(&all, "ggml.add_eos_token"), &Value::Bool(false));
    assert_eq!(get(&all, "chat_template"), &Value::from("d"));
    assert_eq!(get(&all, "chat_template.tool_use"), &Value::from("t"));
    let error = metadata(folder.path(), 4, None).unwrap_err().to_string();
    assert!(error.contains("token 4") && error.contains("4 rows"), "{error}");
}

#[test]
fn ways_of_cutting_texts_have_names() {
    let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let named = |tokenizer: Json| {
        let folder = folder(&[("tokenizer.json", bytes(&tokenizer))]);
        metadata(folder.path(), 6, None).map(|all| get(&all, "ggml.pre").to_string())
    };
    assert_eq!(named(byte_level(split(qwen2))).unwrap(), "qwen2");
    assert_eq!(named(byte_level(split(llama3))).unwrap(), "dbrx");
    let mut whole_words = byte_level(split(llama3));
    whole_words["model"]["ignore_merges"] = json!(true);
    assert_eq!(named(whole_words).unwrap(), "llama-bpe");
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    ]});
    assert_eq!(named(byte_level(digits)).unwrap(), "smollm");
    let error = named(byte_level(split("x+"))).unwrap_err().to_string();
    assert!(error.contains("`x+`") && error.contains("--tokenizer_pre"), "{error}");
    let mut lowered = byte_level(split(qwen2));
    lowered["normalizer"] = json!({"type": "Lowercase"});
    assert!(named(lowered).unwrap_err().to_string().contains("Lowercase"));
    let folder = folder(&[("tokenizer.json", bytes(&byte_level(split("x+"))))]);
    let all = metadata(folder.path(), 6, Some("mine")).unwrap();
    assert_eq!(get(&all, "ggml.pre"), &Value::from("mine"));
}

/// SentencePiece's BPE without its file: merges in the order of `tokenizer.json` are llama.cpp's by score.
#[test]
fn scores_follow_merges() {
    let tokenizer = json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "ab": 4, "aba": 5},
            "merges": [["a", "b"], ["ab", "a"], ["a", "ba"]],
        },
    });
    let folder = folder(&[("tokenizer.json", bytes(&tokenizer))]);
    let all = metadata(folder.path(), 7, None).unwrap();
    assert_eq!(get(&all, "ggml.model"), &Value::from("llama"));
    assert_eq!(get(&all, "ggml.token_type"), &Value::integers([3, 6, 1, 1, 1, 1, 5]));
    assert_eq!(
        get(&all, "ggml.scores"),
        &Value::floats([-1000.0, 0.0, -10000.0, -10000.0, 0.0, -1.0, -10000.0])
    );
}

/// A field of a protocol buffer with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2, bytes.len() as u8];
    all.extend(bytes);
    all
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let mut all = field(1, text.as_bytes());
    all.push(2 << 3 | 5);
    all.extend(score.to_le_bytes());
    all.extend([3 << 3, kind]);
    field(1, &all)
}

#[test]
fn pieces_of_sentencepiece() {
    let mut model =
        [piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("<0x0A>", 0.0, 6), piece("▁a", -1.5, 1)]
            .concat();
    // Its trainer's `model_type`: BPE.
    model.extend(field(2, &[3 << 3, 2]));
    let config =
        json!({"added_tokens_decoder": {"1": {"content": "<s>", "special": true}}, "add_prefix_space": true});
    let folder = folder(&[("tokenizer.model", model.clone()), ("tokenizer_config.json", bytes(&config))]);
    let all = metadata(folder.path(), 5, None).unwrap();
    assert_eq!(get(&all, "ggml.tokens"), &Value::strings(["<unk>", "<s>", "<0x0A>", "▁a", "[PAD4]"]));
    assert_eq!(get(&all, "ggml.scores"), &Value::floats([0.0, -1000.0, 0.0, -1.5, -10000.0]));
    assert_eq!(get(&all, "ggml.token_type"), &Value::integers([2, 3, 6, 1, 5]));
    assert_eq!(get(&all, "ggml.add_space_prefix"), &Value::Bool(true));
    assert_eq!(get(&all, "ggml.add_bos_token"), &Value::Bool(true));
    for cut in 0..model.len() {
        // Cut anywhere: an error or fewer tokens, and no panic.
        std::fs::write(folder.path().join("tokenizer.model"), &model[..cut]).unwrap();
        let _ = metadata(folder.path(), 5, None);
    }
    std::fs::write(folder.path().join("tokenizer.model"), &model[..model.len() - 4]).unwrap();
    let error = metadata(folder.path(), 5, None).unwrap_err().to_string();
    assert!(error.contains("not BPE"), "{error}");
}

#[test]
fn no_tokenizer_is_an_error() {
    let folder = folder(&[]);
    let error = metadata(folder.path(), 5, None).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("missing"), "{error}");
}
