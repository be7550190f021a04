//! Tokenizers of folders without `tokenizer.json`: what Transformers makes of their other files.

use std::fs;
use std::path::{Path, PathBuf};

use burnish_data::Tokenizer;
use serde_json::Value;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn other_files_make_the_tokenizers_of_transformers() {
    let recorded: Value =
        serde_json::from_slice(&fs::read(golden().join("tokenizer_files.json")).unwrap()).unwrap();
    let texts: Vec<&str> =
        recorded["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let folders = recorded["folders"].as_object().unwrap();
    assert_eq!(folders.len(), 13);
    for (name, want) in folders {
        let tokenizer = Tokenizer::from_folder(&golden().join("tokenizer_files").join(name)).unwrap();
        for token in ["bos_token", "eos_token"] {
            assert_eq!(tokenizer.named(token), want[token].as_str(), "{name}: {token}");
        }
        for (at, text) in texts.iter().enumerate() {
            let ids: Vec<u32> = serde_json::from_value(want["ids"][at].clone()).unwrap();
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{name}: {text:?}");
            let decoded = want["decoded"][at].as_str().unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), decoded, "{name}: {text:?}");
        }
    }
}

/// Qwen's ranks give the tokens of merges: what the folder of Qwen2 has, by the ranks of its tokens.
#[test]
fn ranks_give_the_tokens_of_merges() {
    let qwen2 = golden().join("tokenizer_files/qwen2");
    let merged = Tokenizer::from_folder(&qwen2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Bytes of tokens, by what GPT-2 writes each byte as, which the decoder reads; three special ones come first.
    let bytes = |id: u32| {
        let token = merged.token(id).unwrap();
        let mut others = 0x100..;
        let letters: Vec<char> = (0..=255_u8)
            .map(|byte| match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
                _ => char::from_u32(others.next().unwrap()).unwrap(),
            })
            .collect();
        token.chars().map(|c| letters.iter().position(|&own| own == c).unwrap() as u8).collect::<Vec<u8>>()
    };
    let lines = (3..340).map(|id| format!("{} {}\n", base64(&bytes(id)), id - 3));
    fs::write(folder.path().join("qwen.tiktoken"), lines.collect::<String>()).unwrap();
    let ranked = Tokenizer::from_folder(folder.path()).unwrap();
    for text in ["The cow says moo.", "\n\nOù est\tla forêt?  x=3*y+1", "你好 e\u{301} don't 12345   "] {
        let want: Vec<u32> = merged.encode(text, true).unwrap().into_iter().map(|id| id - 3).collect();
        assert_eq!(ranked.encode(text, true).unwrap(), want, "{text:?}");
    }
    let ids = ranked.encode("<|im_start|>a<|im_end|><|extra_0|>", true).unwrap();
    assert_eq!((ids[0], &ids[2..]), (338, &[339, 340][..]));
    assert_eq!(ranked.eos_token(), Some("<|endoftext|>"));
    fs::write(folder.path().join("qwen.tiktoken"), "YQ== 0\nYg== 2\n").unwrap();
    let said = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(said.contains("qwen.tiktoken` is not a usable tokenizer: line 2"), "{said}");
}

fn base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0_u32, |all, &byte| all << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        let all = (0..4).map(|at| char::from(letters[(bits >> (18 - 6 * at) & 63) as usize]));
        text.extend(all.take(three.len() + 1));
        text.extend(std::iter::repeat_n('=', 3 - three.len()));
    }
    text
}

/// A copy of a folder, changed.
fn changed(name: &str, change: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(golden().join("tokenizer_files").join(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    change(folder.path());
    Tokenizer::from_folder(folder.path()).map(|_| "read".to_owned()).unwrap_or_else(|error| error.to_string())
}

#[test]
fn what_makes_no_tokenizer_is_said() {
    let put = |file: &'static str, bytes: Vec<u8>| {
        move |folder: &Path| fs::write(folder.join(file), bytes).unwrap()
    };
    let piece = |text: &[u8]| {
        let mut piece = vec![10, text.len() as u8];
        piece.extend_from_slice(text);
        [&[10, piece.len() as u8][..], &piece].concat()
    };
    let unigram = piece(b"a");
    let mut long = vec![b'a'; 5000];
    // Lengths of 5000 and 5003, in sevens of bits.
    long.splice(0..0, [10, 0x8b, 0x27, 10, 0x88, 0x27]);
    long.extend([18, 2, 24, 2]);
    let class = br#"{"tokenizer_class": "XLMTokenizer"}"#.to_vec();
    let glm = br#"{"tokenizer_class": "ChatGLMTokenizer"}"#.to_vec();
    let tekken = |vocab: &str, specials: &str| {
        let config = r#"{"pattern": "a", "default_num_special_tokens": 4}"#;
        format!(r#"{{"config": {config}, "vocab": [{vocab}], "special_tokens": [{specials}]}}"#).into_bytes()
    };
    let thousands = format!(r#"{{"token_bytes": "{}"}}"#, "YWFh".repeat(1000));
    let many = vec![&thousands[..]; 70].join(",");
    for (name, file, bytes, why) in [
        ("llama", "tokenizer.model", b"{}".to_vec(), "no model of SentencePiece"),
        ("llama", "tokenizer.model", Vec::new(), "no model of SentencePiece"),
        ("llama", "tokenizer.model", unigram, "is not BPE"),
        ("llama", "tokenizer.model", long, "token 0 has 5000 bytes"),
        ("llama", "tokenizer_config.json", glm, "tokens of its own by code"),
        ("gpt2", "tokenizer_config.json", class, "`XLMTokenizer` cuts texts is not known"),
        ("gpt2", "vocab.json", b"[]".to_vec(), "vocab.json"),
        (
            "gpt2",
            "merges.txt",
            b"#version: 0.2\na b\nc\n".to_vec(),
            "merges.txt` is not a usable tokenizer: line 3",
        ),
        ("gpt2", "merges.txt", b"no such tokens".to_vec(), "merges.txt"),
        ("gpt2", "merges.txt", b"no such\n".to_vec(), "not a usable tokenizer"),
        ("tekken", "tekken.json", b"{}".to_vec(), "tekken.json"),
        ("tekken", "tekken.json", tekken(r#"{"token_bytes": "!"}"#, ""), "token 0 is not in base64"),
        ("tekken", "tekken.json", tekken(&many, ""), "longer than those of any vocabulary"),
        ("tekken", "tekken.json", tekken("", r#"{"rank": 1, "token_str": "a"}"#), "ranks from 0 on"),
    ] {
        let said = changed(name, put(file, bytes));
        assert!(said.contains(why), "{file}: {said}");
    }
}
