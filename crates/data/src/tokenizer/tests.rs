#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use serde_json::json;

use super::*;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model")
}

/// A copy of the model's tokenizer with other files beside it.
fn folder(files: &[(&str, Value)]) -> (tempfile::TempDir, Result<Tokenizer, DataError>) {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(model().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    for (name, value) in files {
        fs::write(dir.path().join(name), value.to_string()).unwrap();
    }
    let tokenizer = Tokenizer::from_folder(dir.path());
    (dir, tokenizer)
}

#[test]
fn named_tokens_of_the_folder() {
    let t = Tokenizer::from_folder(&model()).unwrap();
    assert_eq!(
        (t.eos_token(), t.eos_id(), t.pad_id(), t.bos_id()),
        (Some("<|im_end|>"), Some(2), Some(0), None)
    );
    assert_eq!(t.stop_ids(), [2]);
    assert_eq!(t.vocab_size(), 2048);
    let named: Vec<_> = t.named_tokens().collect();
    assert_eq!(named, [("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")]);
    assert!(t.is_added(1) && t.is_special(1) && !t.is_added(100));
}

#[test]
fn a_text_has_the_same_tokens_each_time() {
    let (dir, t) = folder(&[]);
    assert_eq!(t.unwrap().notes().len(), 0);
    let path = dir.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["model"]["dropout"] = json!(0.5);
    fs::write(&path, file.to_string()).unwrap();
    let t = Tokenizer::from_folder(dir.path()).unwrap();
    let expected = Tokenizer::from_folder(&model()).unwrap();
    let text = "the quick brown fox jumps over the lazy dog and comes back";
    for _ in 0..20 {
        assert_eq!(t.encode(text, false), expected.encode(text, false));
    }
    let [note] = &t.notes()[..] else { panic!("one note") };
    assert!(note.contains("`dropout` of 0.5 is read as 0"), "{note}");
}

#[test]
fn fallbacks_for_eos_and_pad() {
    let (_d, t) = folder(&[("special_tokens_map.json", json!({"eos_token": {"content": "<|im_end|>"}}))]);
    let t = t.unwrap();
    assert_eq!((t.eos_id(), t.pad_id()), (Some(2), Some(2)), "pad is eos when nothing names it");
    let (_d, t) = folder(&[
        ("generation_config.json", json!({"eos_token_id": [2, 0]})),
        ("config.json", json!({"eos_token_id": 1, "bos_token_id": 1})),
    ]);
    let t = t.unwrap();
    assert_eq!((t.eos_id(), t.bos_id()), (Some(2), Some(1)));
    assert_eq!(t.stop_ids(), [0, 1, 2]);
    assert_eq!(t.named_tokens().count(), 0, "what only ids name is no variable of the template");
    let (_d, t) = folder(&[]);
    assert!(t.unwrap().eos_token().is_none());
}

#[test]
fn tokens_are_added_and_bos_is_put_in_front_when_the_config_says_so() {
    let config = json!({"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": true, "extra_special_tokens": ["<x>"],
        "added_tokens_decoder": {"2048": {"content": "<tool>", "special": false, "lstrip": false, "rstrip": false, "normalized": false, "single_word": false}}});
    let (_d, t) = folder(&[("tokenizer_config.json", config)]);
    let t = t.unwrap();
    assert_eq!((t.id("<tool>"), t.vocab_size()), (Some(2048), 2051));
    let ids = t.encode("hi<tool><x>", true).unwrap();
    assert_eq!(ids[0], t.bos_id().unwrap());
    assert_eq!(t.encode("hi<tool><x>", false).unwrap(), ids[1..]);
    assert_eq!(t.decode(&ids, true).unwrap(), "hi<tool>");
    assert_eq!(t.decode(&ids, false).unwrap(), "<s>hi<tool><x>");
}

#[test]
fn eos_can_be_replaced_by_a_token_that_exists() {
    let mut t = Tokenizer::from_folder(&model()).unwrap();
    t.set_named("eos_token", "<|endoftext|>").unwrap();
    assert_eq!((t.eos_id(), t.stop_ids()), (Some(0), &[0, 2][..]));
    let e = t.set_named("eos_token", "<nope>").unwrap_err().to_string();
    assert!(e.contains("eos_token `<nope>`"), "{e}");
}

#[test]
fn text_streams_by_whole_characters() {
    let t = Tokenizer::from_folder(&model()).unwrap();
    let text = "“Good morrow,” said Ålesund 🌧🌧 — é.";
    let ids = t.encode(text, false).unwrap();
    assert!(ids.len() > text.chars().count() / 2);
    let mut stream = TextStream::new(true);
    let mut out = String::new();
    let mut empty = 0;
    for &id in &ids {
        let new = stream.push(&t, id).unwrap();
        assert!(!new.contains('\u{fffd}'), "{new:?}");
        empty += usize::from(new.is_empty());
        out += &new;
    }
    out += &stream.finish(&t).unwrap();
    assert_eq!(out, text);
    assert!(empty > 0, "some characters take several tokens");
    let mut cut = TextStream::new(true);
    let half = t.encode("🌧", false).unwrap();
    assert_eq!(cut.push(&t, half[0]).unwrap(), "");
    assert_eq!(cut.finish(&t).unwrap(), "\u{fffd}");
}

#[test]
fn faults_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("spiece.model"), "x").unwrap();
    let e = Tokenizer::from_folder(dir.path()).unwrap_err().to_string();
    assert!(e.contains("looked for `tokenizer.json`") && e.contains("found only `spiece.model`"), "{e}");
    fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    let e = Tokenizer::from_folder(dir.path()).unwrap_err().to_string();
    assert!(e.contains("tokenizer.json") && e.contains("not a usable tokenizer"), "{e}");
    let (d, _) = folder(&[]);
    fs::write(d.path().join("tokenizer_config.json"), "[]").unwrap();
    let e = Tokenizer::from_folder(d.path()).unwrap_err().to_string();
    assert!(e.contains("tokenizer_config.json") && e.contains("expected a JSON object"), "{e}");
}
