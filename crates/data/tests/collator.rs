//! TRL's collator, case by case, and the batch without padding against it.

use std::ops::Range;

use burnish_data::{Batch, Collator, Example, IGNORED, Padded};
use serde_json::Value;

use crate::cases::{golden, numbers, table};

const KNOWN: [&str; 9] = [
    "input_ids",
    "labels",
    "attention_mask",
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
];

fn known(case: &Value) -> Result<(), String> {
    recordings::has_keys(
        case,
        &["examples", "padding_free", "return_position_ids", "pad_to_multiple_of", "out"],
    )?;
    match case["out"].as_object().and_then(|out| out.keys().find(|key| !KNOWN.contains(&key.as_str()))) {
        Some(key) => Err(format!("an unknown field `{key}`")),
        None => Ok(()),
    }
}

#[test]
fn collates_as_trl() {
    for (i, case) in golden("collator_lm.json", known).iter().enumerate() {
        let examples: Vec<Example> = case["examples"].as_array().unwrap().iter().map(example).collect();
        let collator = Collator {
            pad_id: 0,
            padding_free: case["padding_free"].as_bool().unwrap(),
            return_position_ids: case["return_position_ids"].as_bool().unwrap(),
            pad_to_multiple_of: case["pad_to_multiple_of"].as_u64().map(|m| usize::try_from(m).unwrap()),
        };
        let examples: Vec<&Example> = examples.iter().collect();
        let padded = collator.padded(&examples);
        let out = case["out"].as_object().unwrap();
        for key in out.keys() {
            assert!(KNOWN.contains(&key.as_str()), "case {i} has an unknown field {key}");
        }
        assert_eq!(padded.input_ids, table::<u32>(&out["input_ids"]), "case {i}");
        assert_eq!(padded.labels, table::<i32>(&out["labels"]), "case {i}");
        assert_eq!(padded.attention_mask, out.get("attention_mask").map(table), "case {i}");
        assert_eq!(padded.position_ids, out.get("position_ids").map(table), "case {i}");
        assert_eq!(padded.seq_idx, out.get("seq_idx").map(table), "case {i}");
        for side in ["cu_seq_lens_q", "cu_seq_lens_k"] {
            assert_eq!(padded.cu_seq_lens, out.get(side).map(numbers), "case {i}, {side}");
        }
        for side in ["max_length_q", "max_length_k"] {
            let longest = out.get(side).map(|v| usize::try_from(v.as_u64().unwrap()).unwrap());
            assert_eq!(padded.max_length, longest, "case {i}, {side}");
        }
        let batch = collator.batch(&examples, 0);
        assert_eq!(batch.num_tokens, padded.num_tokens(), "case {i}");
        same_as_padded(&batch, &padded);
    }
}

fn example(value: &Value) -> Example {
    let mut example = Example::new(numbers(&value["input_ids"]), numbers(&value["labels"]));
    example.seq_lengths = value.get("seq_lengths").map(numbers).unwrap_or_default();
    example
}

/// Drops what TRL pads and shifts its labels: the rest must be the batch.
pub(crate) fn same_as_padded(batch: &Batch, padded: &Padded) {
    let (mut ids, mut positions): (Vec<u32>, Vec<u32>) = (vec![], vec![]);
    let (mut targets, mut documents): (Vec<i64>, Vec<Range<usize>>) = (vec![], vec![]);
    match &padded.cu_seq_lens {
        Some(bounds) => {
            // Padding tokens are documents of their own behind the real ones.
            let real = &bounds[..=batch.documents.len()];
            for pair in real.windows(2) {
                documents.push(pair[0]..pair[1]);
            }
            let end = *real.last().unwrap();
            ids.extend(&padded.input_ids[0][..end]);
            targets.extend(shifted(&padded.labels[0]).into_iter().take(end));
            positions.extend(&padded.position_ids.as_ref().unwrap()[0][..end]);
        }
        None => {
            for (row, mask) in padded.attention_mask.as_ref().unwrap().iter().enumerate() {
                let length = mask.iter().filter(|&&m| m == 1).count();
                documents.push(ids.len()..ids.len() + length);
                ids.extend(&padded.input_ids[row][..length]);
                targets.extend(shifted(&padded.labels[row]).into_iter().take(length));
                positions.extend((0..length).map(|p| u32::try_from(p).unwrap()));
            }
        }
    }
    assert_eq!(batch.input_ids, ids);
    assert_eq!(batch.labels, targets);
    assert_eq!(batch.positions, positions);
    assert_eq!(batch.documents, documents.into_iter().filter(|d| !d.is_empty()).collect::<Vec<_>>());
    let counted = padded.labels.iter().flat_map(|row| row.iter().skip(1)).filter(|&&l| l != IGNORED).count();
    assert_eq!(batch.num_targets(), counted, "what the loss divides by");
}

/// The label of the next token of a row.
fn shifted(labels: &[i32]) -> Vec<i64> {
    labels.iter().skip(1).chain([&IGNORED]).map(|&l| i64::from(l)).collect()
}
