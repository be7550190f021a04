//! Pairs and unpaired answers as TRL's trainers prepared and collated them, token for token.

use burnish_data::{
    CompletionCollator, Completions, Options, Place, PreferenceExample, Preparer, Record, RewardExample,
    Templates, Tokenizer, Truncation, UnpairedExample, partner,
};
use serde_json::{Map, Value};

use crate::recordings::{json as read, numbers, own, table};

#[test]
fn prepares_as_trl() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let templates = Templates::from_folder(&own("model"), &tokenizer).unwrap();
    let recorded = read(&own("preferences.json"));
    let mut seen = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let what = format!("{} {} {}", case["trainer"], case["rows"], case["options"]);
        let rows = recorded["rows"][case["rows"].as_str().unwrap()].as_array().unwrap();
        let options = options(case["options"].as_object().unwrap());
        let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
        let collator = CompletionCollator { max_length: options.max_length, truncation: options.truncation };
        let out = case["out"].as_array().unwrap();
        let statistics = match case["trainer"].as_str().unwrap() {
            "dpo" => {
                let data = preparer.preferences("rows", records(rows)).unwrap();
                let expected: Vec<PreferenceExample> = out.iter().map(pair).collect();
                assert_eq!(data.examples, expected, "{what}");
                let first: Vec<&PreferenceExample> = data.examples.iter().take(3).collect();
                let batch = collator.preferences(&first, 5);
                assert_eq!(batch.margins, None);
                assert_eq!(batch.sides().0.len(), 3);
                same_as_padded(&batch.completions, &case["batch"], "", &what);
                data.statistics
            }
            "reward" => {
                let data = preparer.reward_pairs("rows", records(rows)).unwrap();
                let expected: Vec<RewardExample> = out.iter().map(texts).collect();
                assert_eq!(data.examples, expected, "{what}");
                data.statistics
            }
            "kto" => {
                let data = preparer.unpaired("rows", records(rows)).unwrap();
                let expected: Vec<UnpairedExample> = out.iter().map(answer).collect();
                assert_eq!(data.examples, expected, "{what}");
                let chunk = case["options"]["per_device_train_batch_size"].as_u64().unwrap();
                let chunk = usize::try_from(chunk).unwrap();
                let partners: Vec<&UnpairedExample> =
                    (0..expected.len()).map(|i| &data.examples[partner(i, chunk, expected.len())]).collect();
                for (mine, its) in partners.iter().zip(numbers::<usize>(&case["KL"])) {
                    assert_eq!(mine.completion, expected[its].completion, "{what}");
                }
                let first: Vec<&UnpairedExample> = data.examples.iter().take(3).collect();
                let batch = collator.unpaired(&first, Some(&partners[..3]), 5);
                same_as_padded(&batch.completions, &case["batch"], "", &what);
                same_as_padded(batch.mismatched.as_ref().unwrap(), &case["batch"], "KL_", &what);
                let labels: Vec<Value> = batch.desirable.iter().map(|&d| Value::Bool(d)).collect();
                assert_eq!(Value::Array(labels), case["batch"]["label"], "{what}");
                data.statistics
            }
            other => panic!("an unknown trainer `{other}`"),
        };
        assert_eq!(statistics.rows, rows.len(), "{what}");
        assert_eq!(statistics.examples, out.len(), "{what}");
        seen.push(case["trainer"].as_str().unwrap());
    }
    assert_eq!(["dpo", "reward", "kto"].map(|t| seen.iter().filter(|s| **s == t).count()), [6, 5, 5]);
}

fn options(recorded: &Map<String, Value>) -> Options {
    let mut options = Options::default();
    for (key, value) in recorded {
        match key.as_str() {
            "max_length" => options.max_length = value.as_u64().map(|n| usize::try_from(n).unwrap()),
            "truncation_mode" => options.truncation = value.as_str().unwrap().parse().unwrap(),
            "per_device_train_batch_size" => {}
            other => panic!("unknown option `{other}`"),
        }
    }
    options
}

fn records(rows: &[Value]) -> impl Iterator<Item = Result<Record, burnish_data::DataError>> {
    let file = std::sync::Arc::new(std::path::PathBuf::from("rows.jsonl"));
    rows.iter().enumerate().map(move |(i, row)| {
        let fields = row.as_object().unwrap().clone();
        Ok(Record { place: Place::line(&file, i + 1), fields })
    })
}

fn pair(row: &Value) -> PreferenceExample {
    PreferenceExample {
        prompt: numbers(&row["prompt_ids"]),
        chosen: numbers(&row["chosen_ids"]),
        rejected: numbers(&row["rejected_ids"]),
        margin: None,
    }
}

fn texts(row: &Value) -> RewardExample {
    RewardExample {
        chosen: numbers(&row["chosen_ids"]),
        rejected: numbers(&row["rejected_ids"]),
        margin: row.get("margin").and_then(Value::as_f64),
    }
}

fn answer(row: &Value) -> UnpairedExample {
    UnpairedExample {
        prompt: numbers(&row["prompt_ids"]),
        completion: numbers(&row["completion_ids"]),
        desirable: row["label"].as_bool().unwrap(),
    }
}

/// Drops what TRL pads: the rest must be the documents, and the shifted completion mask their targets.
fn same_as_padded(mine: &Completions, padded: &Value, prefix: &str, what: &str) {
    let field = |name: &str| table::<u32>(&padded[format!("{prefix}{name}")]);
    let (ids, attention, completion) =
        (field("input_ids"), field("attention_mask"), field("completion_mask"));
    let batch = &mine.batch;
    assert_eq!(batch.documents.len(), ids.len(), "{what}");
    assert_eq!(mine.spans.len(), ids.len(), "{what}");
    let mut targets = 0;
    for (i, document) in batch.documents.iter().enumerate() {
        let length = attention[i].iter().sum::<u32>() as usize;
        assert_eq!(&batch.input_ids[document.clone()], &ids[i][..length], "{what}, document {i}");
        let positions: Vec<u32> = (0..u32::try_from(length).unwrap()).collect();
        assert_eq!(&batch.positions[document.clone()], &positions[..], "{what}, document {i}");
        let expected: Vec<i64> = (0..length)
            .map(
                |t| if t + 1 < length && completion[i][t + 1] == 1 { i64::from(ids[i][t + 1]) } else { -100 },
            )
            .collect();
        assert_eq!(&batch.labels[document.clone()], &expected[..], "{what}, document {i}");
        let span = &mine.spans[i];
        let scored: Vec<usize> = document.clone().filter(|&p| batch.labels[p] != -100).collect();
        assert_eq!(span.positions.clone().collect::<Vec<_>>(), scored, "{what}, document {i}");
        assert_eq!(span.targets, targets..targets + scored.len(), "{what}, document {i}");
        assert_eq!(span.tokens, completion[i].iter().sum::<u32>() as usize, "{what}, document {i}");
        targets = span.targets.end;
    }
    assert_eq!(batch.num_targets(), targets, "{what}");
    assert_eq!(batch.num_tokens, attention.iter().flatten().sum::<u32>() as usize, "{what}");
    assert_eq!(batch.num_tokens, batch.len(), "{what}");
}

#[test]
fn counters_of_dropout_follow_row_side_and_token() {
    let example = |prompt: &[u32], chosen: &[u32], rejected: &[u32]| PreferenceExample {
        prompt: prompt.to_vec(),
        chosen: chosen.to_vec(),
        rejected: rejected.to_vec(),
        margin: Some(0.5),
    };
    let examples = [example(&[1, 2], &[3], &[4, 5]), example(&[6], &[7, 8], &[9])];
    let both: Vec<&PreferenceExample> = examples.iter().collect();
    let collator = CompletionCollator::default();
    let whole = collator.preferences(&both, 10);
    let at = |row: u64, side: u64, token: u64| row << 32 | side << 31 | token;
    let expected = [
        [at(10, 0, 0), at(10, 0, 1), at(10, 0, 2)].to_vec(),
        [at(11, 0, 0), at(11, 0, 1), at(11, 0, 2)].to_vec(),
        [at(10, 0, 0), at(10, 0, 1), at(10, 1, 2), at(10, 1, 3)].to_vec(),
        [at(11, 0, 0), at(11, 1, 1)].to_vec(),
    ];
    assert_eq!(whole.completions.batch.row_ids, expected.concat());
    assert_eq!(whole.margins, Some(vec![0.5, 0.5]));
    // One pair at a time gives the same documents.
    for (i, example) in both.iter().enumerate() {
        let one = collator.preferences(&[example], 10 + i).completions.batch;
        for (side, mine) in one.documents.iter().enumerate() {
            let theirs = whole.completions.batch.documents[side * 2 + i].clone();
            assert_eq!(one.row_ids[mine.clone()], whole.completions.batch.row_ids[theirs.clone()]);
            assert_eq!(one.labels[mine.clone()], whole.completions.batch.labels[theirs]);
        }
    }
}

#[test]
fn a_text_is_scored_at_its_last_token_that_is_not_padding() {
    let pair = |chosen: &[u32], rejected: &[u32]| RewardExample {
        chosen: chosen.to_vec(),
        rejected: rejected.to_vec(),
        margin: None,
    };
    let examples = [pair(&[5, 6, 2], &[5, 2]), pair(&[2, 2], &[7])];
    let examples: Vec<&RewardExample> = examples.iter().collect();
    let collator = CompletionCollator::default();
    let batch = collator.rewards(&examples, Some(0), 0);
    assert_eq!(batch.batch.documents, [0..3, 3..5, 5..7, 7..8]);
    assert_eq!(batch.batch.input_ids, [5, 6, 2, 2, 2, 5, 2, 7]);
    assert_eq!((batch.scored, batch.margins), (vec![2, 4, 6, 7], None));
    assert_eq!(batch.batch.num_targets(), 0);
    // Where the eos token pads, Transformers reads the token before it; a text of padding alone at its start.
    assert_eq!(collator.rewards(&examples, Some(2), 0).scored, [1, 3, 5, 7]);
}

#[test]
fn the_first_token_of_a_completion_without_a_prompt_has_no_target() {
    let example = UnpairedExample { prompt: vec![], completion: vec![3, 4, 5], desirable: true };
    for (max_length, targets, tokens) in [(None, 2, 3), (Some(2), 1, 2), (Some(1), 0, 1)] {
        for truncation in [Truncation::KeepStart, Truncation::KeepEnd] {
            let collator = CompletionCollator { max_length, truncation };
            let span = collator.unpaired(&[&example], None, 0).completions.spans[0].clone();
            assert_eq!((span.targets.len(), span.tokens), (targets, tokens));
        }
    }
}
