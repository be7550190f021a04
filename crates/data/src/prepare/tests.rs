#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;
use crate::row_origin::RowOrigin;
use crate::tokenize::CHUNK;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model")).unwrap()
}

fn prepare(rows: &[Value], options: Options) -> Dataset {
    let tokenizer = tokenizer();
    let preparer = Preparer { tokenizer: &tokenizer, templates: None, options: &options };
    let record = |row: &Value| {
        let fields: Map<String, Value> = row.as_object().unwrap().clone();
        Ok(Record { place: RowOrigin::given("row"), fields })
    };
    preparer.prepare("rows", rows.iter().map(record)).unwrap()
}

#[test]
fn tokenised_rows_and_their_masks() {
    let row =
        json!({"input_ids": [5, 6, 7, 8], "completion_mask": [0, 1, 1, 1], "assistant_masks": [1, 1, 0, 1]});
    let open = prepare(std::slice::from_ref(&row), Options::default());
    assert!(!open.completion_only, "no prompt and completion columns");
    assert_eq!(open.examples[0].labels, [5, 6, -100, 8]);
    let both = prepare(&[row], Options { completion_only_loss: Some(true), ..Options::default() });
    assert_eq!(both.examples[0].labels, [-100, 6, -100, 8]);
    let given = json!({"input_ids": [5, 6], "labels": [-100, 9], "completion_mask": [0, 0]});
    assert_eq!(prepare(&[given], Options::default()).examples[0].labels, [-100, 9]);
}

#[test]
fn eos_is_added_once() {
    let eos = tokenizer().eos_id().unwrap();
    let data = prepare(&[json!({"text": "hey"}), json!({"text": "hey<|im_end|>"})], Options::default());
    assert_eq!(data.examples[0], data.examples[1]);
    assert_eq!(data.examples[0].input_ids.iter().filter(|&&id| id == eos).count(), 1);
}

#[test]
fn shuffling_is_a_function_of_the_seed() {
    let rows: Vec<Value> = (0..40).map(|i| json!({"input_ids": [i, i]})).collect();
    let order = |seed, shuffle| {
        let options = Options { shuffle, seed, ..Options::default() };
        prepare(&rows, options).examples.iter().map(|e| e.input_ids[0]).collect::<Vec<_>>()
    };
    assert_eq!(order(1, false), (0..40).collect::<Vec<_>>());
    assert_eq!(order(1, true), order(1, true));
    assert_ne!(order(1, true), order(2, true));
    let mut sorted = order(1, true);
    sorted.sort_unstable();
    assert_eq!(sorted, order(1, false));
}

#[test]
fn more_rows_than_a_chunk_keep_their_order() {
    let rows: Vec<Value> = (0..3 * CHUNK + 7).map(|i| json!({"input_ids": [i % 2000, i / 2000]})).collect();
    let data = prepare(&rows, Options::default());
    assert_eq!(data.examples.len(), rows.len());
    for (i, example) in data.examples.iter().enumerate() {
        assert_eq!(example.input_ids, [u32::try_from(i % 2000).unwrap(), u32::try_from(i / 2000).unwrap()]);
    }
}
