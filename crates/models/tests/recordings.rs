//! The repository's own recordings, and how they are read and compared.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use burnish_models::{Decoder, Mode, Tokens};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub(crate) fn device() -> Device {
    Device::flex()
}

/// Logits `[tokens, vocab]` of every position of each sequence.
pub(crate) fn logits(model: &Decoder, sequences: &[Vec<u32>]) -> Vec<f32> {
    let tokens = Tokens::from_sequences(sequences);
    let pass = model.pass(Mode::Score);
    let hidden = model.final_norm(&model.hidden(&tokens, &pass).unwrap(), &pass).unwrap();
    burnish_ops::head_logits(&hidden, &model.head(&pass, &tokens.rows).unwrap(), model.head_options(1.0))
        .unwrap()
}

#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}: lengths");
    let worst =
        got.iter().zip(expected).map(|(a, b)| (a - b).abs()).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let (at, difference) = worst.unwrap();
    assert!(
        difference <= tolerance,
        "{what}: element {at} is {}, expected {}, differs by {difference}",
        got[at],
        expected[at]
    );
}

pub(crate) fn floats(value: &serde_json::Value) -> Vec<f32> {
    match value {
        serde_json::Value::Array(items) => items.iter().flat_map(floats).collect(),
        other => vec![other.as_f64().unwrap() as f32],
    }
}

pub(crate) fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

pub(crate) fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .unwrap()
}
