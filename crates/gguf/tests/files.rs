//! Files: written and read, damaged and hostile.

use std::path::PathBuf;

use burnish_gguf::{
    Fault, GgufError, GgufFile, GgufWriter, TensorSpec, TensorType, Value, ValueType, blocks,
};
use proptest::prelude::*;
use tempfile::TempDir;

fn written(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("m.gguf");
    let metadata = vec![
        ("general.architecture".to_owned(), Value::from("llama")),
        ("llama.block_count".to_owned(), Value::U32(2)),
        ("a.u8".to_owned(), Value::U8(200)),
        ("a.i8".to_owned(), Value::I8(-3)),
        ("a.u16".to_owned(), Value::U16(60_000)),
        ("a.i16".to_owned(), Value::I16(-60)),
        ("a.i32".to_owned(), Value::I32(-7)),
        ("a.f32".to_owned(), Value::F32(1.5)),
        ("a.bool".to_owned(), Value::Bool(true)),
        ("a.u64".to_owned(), Value::U64(1 << 40)),
        ("a.i64".to_owned(), Value::I64(-(1 << 40))),
        ("a.f64".to_owned(), Value::F64(0.1)),
        ("tokenizer.ggml.tokens".to_owned(), Value::strings(["a", "ä", ""])),
        ("tokenizer.ggml.scores".to_owned(), Value::floats([0.0, -1.0])),
        (
            "nested".to_owned(),
            Value::Array(ValueType::Array, vec![Value::integers([1, 2]), Value::truths([true])]),
        ),
    ];
    let tensors = vec![
        TensorSpec { name: "one".to_owned(), shape: vec![3], stored: TensorType::F32 },
        TensorSpec { name: "two".to_owned(), shape: vec![2, 32], stored: TensorType::Q8_0 },
        TensorSpec { name: "three".to_owned(), shape: vec![2, 1, 2], stored: TensorType::BF16 },
    ];
    let mut writer = GgufWriter::create(&path, &metadata, tensors).unwrap();
    writer.write(&blocks::encode(TensorType::F32, &[1.0, 2.0, 3.0]).unwrap()).unwrap();
    assert!(!path.exists());
    writer.write(&blocks::encode(TensorType::Q8_0, &[0.5; 64]).unwrap()).unwrap();
    writer.write(&blocks::encode(TensorType::BF16, &[1.0, 2.0, 3.0, 4.0]).unwrap()).unwrap();
    writer.commit().unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.metadata(), metadata);
    path
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = GgufFile::open(written(&folder)).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.values("one").unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(file.info("three").unwrap().shape, [2, 1, 2]);
    assert_eq!(file.values("three").unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(file.info("two").unwrap().bytes(), 68);
    assert!(matches!(file.values("four"), Err(GgufError::UnknownTensor { .. })));
    // Nothing else stays in the folder.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let tensors = vec![TensorSpec { name: "one".to_owned(), shape: vec![3], stored: TensorType::F32 }];
    let mut writer = GgufWriter::create(&path, &[], tensors).unwrap();
    assert!(matches!(writer.write(&[0; 11]), Err(GgufError::Length { expected: 12, got: 11, .. })));
    drop(writer);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The fault of bytes.
fn fault(bytes: &[u8]) -> Option<Fault> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    match GgufFile::open(&path) {
        Ok(_) => None,
        Err(GgufError::Damaged { fault, .. }) => Some(fault),
        Err(error) => panic!("{error}"),
    }
}

/// A header of so many tensors and keys, and what follows.
fn header(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes.extend(rest);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// A tensor's entry.
fn entry(name: &str, dims: &[u64], number: u32, begin: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
    bytes.extend(number.to_le_bytes());
    bytes.extend(begin.to_le_bytes());
    bytes
}

#[test]
fn what_a_file_claims_is_bounded() {
    assert_eq!(fault(b"<html>"), Some(Fault::Magic));
    assert_eq!(fault(b""), Some(Fault::Magic));
    assert_eq!(fault(b"GGUF\x00\x00\x00\x03"), Some(Fault::BigEndian));
    assert_eq!(fault(b"GGUF\x01\x00\x00\x00"), Some(Fault::Version(1)));
    assert!(matches!(fault(&header(u64::MAX, 0, &[])), Some(Fault::TooMany { what: "tensors", .. })));
    assert!(matches!(fault(&header(0, u64::MAX, &[])), Some(Fault::TooMany { what: "keys", .. })));
    assert!(matches!(fault(&header(0, 1, &u64::MAX.to_le_bytes())), Some(Fault::TooMany { .. })));
    assert!(matches!(fault(&header(0, 1, &(1_u64 << 20).to_le_bytes())), Some(Fault::Short(_))));
    let array = |of: u32, count: u64| {
        let mut rest = text("k");
        rest.extend(9_u32.to_le_bytes());
        rest.extend(of.to_le_bytes());
        rest.extend(count.to_le_bytes());
        fault(&header(0, 1, &rest))
    };
    assert!(matches!(array(4, 1 << 40), Some(Fault::TooMany { .. })));
    assert!(matches!(array(4, 1 << 20), Some(Fault::Short(_))));
    assert!(matches!(array(13, 0), Some(Fault::Type { number: 13, .. })));
    // Arrays of arrays of arrays.
    let mut deep = text("k");
    deep.extend(9_u32.to_le_bytes());
    for _ in 0..1000 {
        deep.extend(9_u32.to_le_bytes());
        deep.extend(1_u64.to_le_bytes());
    }
    assert!(matches!(
        fault(&header(0, 1, &deep)),
        Some(Fault::TooMany { what: "arrays within each other", .. })
    ));
    let huge = entry("w", &[u64::MAX / 2, 4], 0, 0);
    assert!(matches!(fault(&header(1, 0, &huge)), Some(Fault::Shape { .. })));
    assert!(matches!(fault(&header(1, 0, &entry("w", &[33], 8, 0))), Some(Fault::Shape { .. })));
    assert!(matches!(fault(&header(1, 0, &entry("w", &[1; 5], 0, 0))), Some(Fault::TooMany { .. })));
    assert!(matches!(fault(&header(1, 0, &entry("w", &[4], 0, 0))), Some(Fault::Place { .. })));
    assert!(matches!(fault(&header(1, 0, &entry("w", &[4], 0, u64::MAX - 3))), Some(Fault::Place { .. })));
    assert!(matches!(fault(&header(1, 0, &entry("w", &[4], 4, 0))), Some(Fault::Type { number: 4, .. })));
    let mut twice = entry("w", &[0], 0, 0);
    twice.extend(entry("w", &[0], 0, 0));
    assert_eq!(fault(&header(2, 0, &twice)), Some(Fault::Twice("w".to_owned())));
    let mut shared = entry("v", &[8], 0, 0);
    shared.extend(entry("w", &[8], 0, 0));
    let mut shared = header(2, 0, &shared);
    shared.resize(shared.len() + 128, 0);
    assert_eq!(fault(&shared), Some(Fault::Overlap("v".to_owned(), "w".to_owned())));
    let mut aligned = text("general.alignment");
    aligned.extend(4_u32.to_le_bytes());
    aligned.extend(0_u32.to_le_bytes());
    assert_eq!(fault(&header(0, 1, &aligned)), Some(Fault::Alignment(0)));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(written(&folder)).unwrap();
    for length in 0..bytes.len() - 32 {
        assert!(fault(&bytes[..length]).is_some(), "{length} of {}", bytes.len());
    }
}

proptest! {
    /// Whatever byte is another: a file or a fault.
    #[test]
    fn a_flipped_byte_is_no_panic(at in 0_usize..900, to in any::<u8>()) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(written(&folder)).unwrap();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = fault(&bytes);
    }
}
