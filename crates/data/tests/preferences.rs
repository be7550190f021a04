//! Pairs and unpaired answers as TRL's trainers prepared and collated them, token for token.

use burnish_data::{
    Answered, Batch, CompletionCollator, Completions, Concern, DataError, Options, PreferenceExample,
    Preparer, Record, RewardExample, RowKind, RowOrigin, Source, Statistics, Template, Templates, Text,
    Tokenizer, Truncation, UnpairedExample, partner, preflight_prepared,
};
use serde_json::{Map, Value, json};

use crate::cases::{json as read, numbers, own, table};

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
        let collator = CompletionCollator {
            max_length: options.max_length,
            truncation: options.truncation,
            ..CompletionCollator::default()
        };
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
                let all = collator.preferences(&data.examples.iter().collect::<Vec<_>>(), 0).completions;
                counted_as_collated(&data.statistics, &all, &what);
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
                let all = collator.unpaired(&data.examples.iter().collect::<Vec<_>>(), None, 0).completions;
                counted_as_collated(&data.statistics, &all, &what);
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

fn records(rows: &[Value]) -> impl Iterator<Item = Result<Record, DataError>> {
    let file = std::sync::Arc::new(std::path::PathBuf::from("rows.jsonl"));
    rows.iter().enumerate().map(move |(i, row)| {
        let fields = row.as_object().unwrap().clone();
        Ok(Record { place: RowOrigin::line(&file, i + 1), fields })
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
    let documents = whole(batch);
    assert_eq!(documents.len(), ids.len(), "{what}");
    assert_eq!(mine.spans.len(), ids.len(), "{what}");
    let mut targets = 0;
    for (i, document) in documents.iter().enumerate() {
        let length = attention[i].iter().sum::<u32>() as usize;
        assert_eq!(of(&batch.input_ids, document), &ids[i][..length], "{what}, document {i}");
        let positions: Vec<u32> = (0..u32::try_from(length).unwrap()).collect();
        assert_eq!(of(&batch.positions, document), &positions[..], "{what}, document {i}");
        let expected: Vec<i64> = (0..length)
            .map(
                |t| if t + 1 < length && completion[i][t + 1] == 1 { i64::from(ids[i][t + 1]) } else { -100 },
            )
            .collect();
        assert_eq!(of(&batch.labels, document), &expected[..], "{what}, document {i}");
        let span = &mine.spans[i];
        let scored: Vec<usize> = document.iter().copied().filter(|&p| batch.labels[p] != -100).collect();
        assert_eq!(span.positions.clone().collect::<Vec<_>>(), scored, "{what}, document {i}");
        assert_eq!(span.targets, targets..targets + scored.len(), "{what}, document {i}");
        assert_eq!(span.tokens, completion[i].iter().sum::<u32>() as usize, "{what}, document {i}");
        targets = span.targets.end;
    }
    assert_eq!(batch.num_targets(), targets, "{what}");
    assert_eq!(batch.num_tokens, attention.iter().flatten().sum::<u32>() as usize, "{what}");
    let shared: usize = batch.parents.iter().flatten().map(|&parent| batch.documents[parent].len()).sum();
    let once = batch.documents.len() - documents.len();
    assert_eq!(once == 0, batch.parents.is_empty(), "{what}");
    let kept: usize = (0..batch.documents.len())
        .filter(|d| batch.parents.contains(&Some(*d)))
        .map(|d| batch.documents[d].len())
        .sum();
    assert_eq!(batch.num_tokens, batch.len() + shared - kept, "{what}");
}

/// The tokens of each document that no other continues, those of the one that it continues before its own.
fn whole(batch: &Batch) -> Vec<Vec<usize>> {
    let parent = |d: usize| batch.parents.get(d).copied().flatten();
    let last = (0..batch.documents.len()).filter(|&d| !batch.parents.contains(&Some(d)));
    let tokens = |d: usize| {
        let before = parent(d).map_or(0..0, |p| batch.documents[p].clone());
        before.chain(batch.documents[d].clone()).collect()
    };
    last.map(tokens).collect()
}

fn of<T: Copy>(values: &[T], tokens: &[usize]) -> Vec<T> {
    tokens.iter().map(|&t| values[t]).collect()
}

/// The statistics count tokens as truncation leaves them.
fn counted_as_collated(statistics: &Statistics, all: &Completions, what: &str) {
    assert_eq!(statistics.tokens, all.batch.num_tokens, "{what}");
    assert_eq!(statistics.trained, all.spans.iter().map(|s| s.tokens).sum::<usize>(), "{what}");
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
    let whole_batch = collator.preferences(&both, 10);
    let at = |row: u64, side: u64, token: u64| row << 32 | side << 31 | token;
    // The first pair's prompt but its last token, its answers; the second's prompt of one token has nothing to share.
    let batch = &whole_batch.completions.batch;
    assert_eq!(batch.documents, [0..1, 1..3, 3..6, 6..9, 9..11]);
    assert_eq!(batch.parents, [None, Some(0), None, Some(0), None]);
    assert_eq!(batch.input_ids, [1, 2, 3, 6, 7, 8, 2, 4, 5, 6, 9]);
    assert_eq!(batch.positions, [0, 1, 2, 0, 1, 2, 1, 2, 3, 0, 1]);
    assert_eq!(batch.num_tokens, 12);
    let expected = [
        vec![at(10, 0, 0)],
        vec![at(10, 0, 1), at(10, 0, 2)],
        vec![at(11, 0, 0), at(11, 0, 1), at(11, 0, 2)],
        vec![at(10, 0, 1), at(10, 1, 2), at(10, 1, 3)],
        vec![at(11, 0, 0), at(11, 1, 1)],
    ];
    assert_eq!(batch.row_ids, expected.concat());
    assert_eq!(whole_batch.margins, Some(vec![0.5, 0.5]));
    // One pair at a time gives the same documents.
    let theirs = whole(batch);
    for (i, example) in both.iter().enumerate() {
        let one = collator.preferences(&[example], 10 + i).completions.batch;
        for (side, mine) in whole(&one).iter().enumerate() {
            let theirs = &theirs[side * 2 + i];
            assert_eq!(of(&one.row_ids, mine), of(&batch.row_ids, theirs));
            assert_eq!(of(&one.labels, mine), of(&batch.labels, theirs));
        }
    }
}

/// Answers of a group share one prompt, whose counters are the group's, and have their own.
#[test]
fn completions_of_a_group_share_its_prompt() {
    let collator = CompletionCollator::default();
    let answer = |row: usize, prompt_row: usize, completion: &'static [u32]| Answered {
        prompt: &[1, 2, 3],
        completion,
        row,
        prompt_row,
        ..Answered::default()
    };
    let made =
        collator.completions([answer(4, 4, &[5]), answer(5, 4, &[6]), answer(6, 4, &[]), answer(7, 7, &[8])]);
    assert_eq!(made.batch.input_ids, [1, 2, 3, 5, 3, 6, 3, 1, 2, 3, 8]);
    assert_eq!(made.batch.parents, [None, Some(0), Some(0), Some(0), None]);
    assert_eq!(made.batch.row_ids[3], 4 << 32 | 3);
    assert_eq!(made.batch.row_ids[4..6], [4 << 32 | 2, 5 << 32 | 3]);
    assert_eq!(made.batch.num_tokens, 15);
    let targets: Vec<_> = made.spans.iter().map(|s| s.targets.clone()).collect();
    assert_eq!(targets, [0..1, 1..2, 2..2, 2..3]);
}

/// Where truncation leaves the answers of a row other prompts, each has its own.
#[test]
fn prompts_that_are_cut_apart_are_not_shared() {
    let example =
        PreferenceExample { prompt: vec![1, 2, 3, 4], chosen: vec![5], rejected: vec![6, 7], margin: None };
    let of = |max_length, truncation| {
        let collator =
            CompletionCollator { max_length: Some(max_length), truncation, ..CompletionCollator::default() };
        collator.preferences(&[&example], 0).completions.batch
    };
    let apart = of(4, Truncation::KeepEnd);
    assert_eq!((apart.input_ids, apart.parents), (vec![2, 3, 4, 5, 3, 4, 6, 7], vec![]));
    let shared = of(5, Truncation::KeepStart);
    assert_eq!((shared.input_ids, shared.num_tokens), (vec![1, 2, 3, 4, 5, 4, 6], 10));
}

/// ORPO learns the prompt with the chosen answer, whether or not the rejected one shares its tokens.
#[test]
fn prompts_are_targets_once_where_asked_for() {
    let example =
        PreferenceExample { prompt: vec![1, 2, 3, 4], chosen: vec![5], rejected: vec![6, 7], margin: None };
    let of = |max_length, truncation| {
        let collator = CompletionCollator { max_length: Some(max_length), truncation, prompts: true };
        collator.preferences(&[&example], 0).completions
    };
    let shared = of(9, Truncation::KeepStart);
    assert_eq!(shared.batch.input_ids, [1, 2, 3, 4, 5, 4, 6, 7]);
    assert_eq!(shared.batch.labels, [2, 3, 4, 5, -100, 6, 7, -100]);
    let targets = |made: &Completions| -> Vec<_> {
        made.spans.iter().map(|span| (span.prompt.clone(), span.targets.clone())).collect()
    };
    assert_eq!(targets(&shared), [(0..3, 3..4), (4..4, 4..6)]);
    let apart = of(4, Truncation::KeepEnd);
    assert_eq!(apart.batch.input_ids, [2, 3, 4, 5, 3, 4, 6, 7]);
    assert_eq!(apart.batch.labels, [3, 4, 5, -100, -100, 6, 7, -100]);
    assert_eq!(targets(&apart), [(0..2, 2..3), (3..3, 3..5)]);
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
            let collator = CompletionCollator { max_length, truncation, ..CompletionCollator::default() };
            let span = collator.unpaired(&[&example], None, 0).completions.spans[0].clone();
            assert_eq!((span.targets.len(), span.tokens), (targets, tokens));
        }
    }
}

type Prepare = fn(&Preparer<'_>, &[Value]) -> Result<usize, DataError>;

fn preferences(preparer: &Preparer<'_>, rows: &[Value]) -> Result<usize, DataError> {
    preparer.preferences("rows.jsonl", records(rows)).map(|d| d.examples.len())
}

fn rewards(preparer: &Preparer<'_>, rows: &[Value]) -> Result<usize, DataError> {
    preparer.reward_pairs("rows.jsonl", records(rows)).map(|d| d.examples.len())
}

fn unpaired(preparer: &Preparer<'_>, rows: &[Value]) -> Result<usize, DataError> {
    preparer.unpaired("rows.jsonl", records(rows)).map(|d| d.examples.len())
}

fn prompts(preparer: &Preparer<'_>, rows: &[Value]) -> Result<usize, DataError> {
    preparer.prompts("rows.jsonl", records(rows)).map(|d| d.examples.len())
}

/// A chat template that opens the assistant's turn with a thought only where it has yet to speak.
const THINKING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}";

#[test]
fn faults_name_the_row() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let folder = Templates::from_folder(&own("model"), &tokenizer).unwrap();
    let thinking = Some(Templates::one(Template::new("thinking", THINKING, &tokenizer).unwrap()));
    let user = json!([{"role": "user", "content": "hi"}]);
    let said = |text: &str| json!([{"role": "assistant", "content": text}]);
    let good = json!({"prompt": "a", "chosen": "b", "rejected": "c"});
    let with = |key: &str, value: Value| {
        let mut row = good.clone();
        row[key] = value;
        row
    };
    let long = json!({"prompt": "to be or not to be", "chosen": "that", "rejected": "this"});
    let answered = json!({"prompt": "a", "completion": "b", "label": true});
    let chat = json!({"prompt": user, "chosen": said("b"), "rejected": said("c")});
    type Case<'a> = (Prepare, Vec<Value>, Options, &'a Option<Templates>, &'a [&'a str]);
    let all = || Options::default();
    let short = || Options { max_length: Some(3), ..Options::default() };
    let cases: Vec<Case<'_>> = vec![
        (preferences, vec![], all(), &folder, &["rows.jsonl", "holds no rows"]),
        (
            preferences,
            vec![good.clone(), json!({"chosen": "b"})],
            all(),
            &folder,
            &["line 2", "`chosen`", "`rejected`"],
        ),
        (
            preferences,
            vec![json!({"text": "b"})],
            all(),
            &folder,
            &["line 1", "`chosen` and `rejected`", "(text)"],
        ),
        (preferences, vec![answered.clone()], all(), &folder, &["line 1", "unpaired", "KTO"]),
        (
            preferences,
            vec![with("chosen", json!(3))],
            all(),
            &folder,
            &["line 1", "column `chosen`", "a number"],
        ),
        (
            preferences,
            vec![with("chosen", json!([]))],
            all(),
            &folder,
            &["line 1", "`chosen` is an empty conversation"],
        ),
        (preferences, vec![with("chosen", said("b"))], all(), &folder, &["line 1", "messages", "a string"]),
        (
            preferences,
            vec![with("prompt", user.clone())],
            all(),
            &folder,
            &["line 1", "`prompt` holds messages"],
        ),
        (
            preferences,
            vec![json!({"chosen": said("b"), "rejected": said("c")})],
            all(),
            &folder,
            &["line 1", "share no first message", "`prompt`"],
        ),
        (
            preferences,
            vec![good.clone(), chat.clone()],
            all(),
            &folder,
            &["line 2", "(messages)", "line 1", "(text)"],
        ),
        (preferences, vec![chat.clone()], all(), &None, &["line 1", "no chat template"]),
        (
            preferences,
            vec![chat.clone()],
            all(),
            &thinking,
            &[
                "line 1",
                "`prompt` + `chosen`",
                "\"<think>\"",
                "\"b<|im_end|>\\n\"",
                "assistant\\n\"",
                "allow_diverging_prompts",
            ],
        ),
        (
            preferences,
            vec![with("margin", json!("x"))],
            all(),
            &folder,
            &["line 1", "column `margin`", "a string"],
        ),
        (
            preferences,
            vec![with("margin", json!(1)), good.clone()],
            all(),
            &folder,
            &["line 2", "column `margin`", "as in the first row", "nothing"],
        ),
        (
            rewards,
            vec![good.clone(), with("margin", json!(1))],
            all(),
            &folder,
            &["line 2", "`margin`", "all rows or in none"],
        ),
        (preferences, vec![long.clone(), long.clone()], short(), &folder, &["all 2 rows", "`max_length` 3"]),
        (
            rewards,
            vec![long.clone(), long],
            short(),
            &folder,
            &["all 2 pairs", "`max_length` 3", "longest: "],
        ),
        (
            rewards,
            vec![json!({"messages": user})],
            all(),
            &folder,
            &["line 1", "reward modelling", "`rejected`"],
        ),
        (
            unpaired,
            vec![json!({"prompt": "a", "completion": "b"})],
            all(),
            &folder,
            &["line 1", "column `label`", "nothing"],
        ),
        (
            unpaired,
            vec![json!({"prompt": "a", "completion": "b", "label": "good"})],
            all(),
            &folder,
            &["line 1", "column `label`", "true or false", "a string"],
        ),
        (
            unpaired,
            vec![answered.clone(), json!({"text": "a"})],
            all(),
            &folder,
            &["line 2", "`label`", "(text)"],
        ),
        (
            prompts,
            vec![json!({"prompt": "a"}), json!({"question": "a"})],
            all(),
            &folder,
            &["line 2", "`prompt`", "`question`"],
        ),
        (prompts, vec![json!({"prompt": ""})], all(), &folder, &["line 1", "`prompt` is empty"]),
        (
            prompts,
            vec![json!({"prompt": {"a": 1}})],
            all(),
            &folder,
            &["line 1", "column `prompt`", "an object"],
        ),
    ];
    for (prepare, rows, options, templates, expected) in cases {
        let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
        let e = prepare(&preparer, &rows).unwrap_err().to_string();
        for part in expected {
            assert!(e.contains(part), "{e:?} does not say {part:?}");
        }
    }
    // Asked for, a completion begins where the template parts.
    let options = Options { allow_diverging_prompts: true, ..Options::default() };
    let preparer = Preparer { tokenizer: &tokenizer, templates: thinking.as_ref(), options: &options };
    let data = preparer.preferences("rows", records(&[chat])).unwrap();
    assert_eq!(data.statistics.diverging_text.as_deref(), Some("<think>"));
    assert!(tokenizer.decode(&data.examples[0].prompt, false).unwrap().ends_with("<|im_start|>assistant\n"));
}

#[test]
fn a_prompt_column_may_name_the_message_both_conversations_begin_with() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let templates = Templates::from_folder(&own("model"), &tokenizer).unwrap();
    let options = Options::default();
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let turns =
        |answer: &str| json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]);
    let named = json!({"prompt": " hi", "chosen": turns("a"), "rejected": turns("b")});
    let without = json!({"chosen": turns("a"), "rejected": turns("b")});
    let (a, b) = (
        preparer.preferences("a", records(&[named])).unwrap(),
        preparer.preferences("b", records(&[without])).unwrap(),
    );
    assert_eq!(a.examples, b.examples);
    assert_eq!(a.kind, RowKind::ImplicitPreferenceChat);
    let other = json!({"prompt": "ho", "chosen": turns("a"), "rejected": turns("b")});
    assert!(matches!(preparer.preferences("c", records(&[other])), Err(DataError::MixedText { .. })));
}

#[test]
fn pairs_are_unpaired_in_windows_of_a_thousand() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let options = Options::default();
    let preparer = Preparer { tokenizer: &tokenizer, templates: None, options: &options };
    let rows: Vec<Value> =
        (0..1003).map(|_| json!({"prompt": "a", "chosen": "b", "rejected": "c"})).collect();
    let data = preparer.unpaired("rows", records(&rows)).unwrap();
    let runs: Vec<(bool, usize)> = data
        .examples
        .chunk_by(|a, b| a.desirable == b.desirable)
        .map(|r| (r[0].desirable, r.len()))
        .collect();
    assert_eq!(runs, [(true, 1000), (false, 1000), (true, 3), (false, 3)]);
    assert_eq!(
        (data.statistics.rows, data.statistics.examples, data.statistics.desirable),
        (1003, 2006, 1003)
    );
    let numbered = json!({"prompt": "a", "completion": "b", "label": 1});
    assert!(preparer.unpaired("rows", records(&[numbered])).unwrap().examples[0].desirable);
}

#[test]
fn an_answer_may_have_an_empty_prompt_and_not_none() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let options = Options::default();
    let preparer = Preparer { tokenizer: &tokenizer, templates: None, options: &options };
    let empty = json!({"prompt": "", "completion": "b", "label": true});
    let made = preparer.unpaired("rows", records(&[empty])).unwrap().examples;
    assert!(made[0].prompt.is_empty() && made[0].completion.len() > 1);
    let without = records(&[json!({"completion": "b", "label": true})]).collect::<Vec<_>>();
    let fault = preparer.unpaired("rows", without.into_iter()).unwrap_err();
    assert!(matches!(fault, DataError::NoPrompt { .. }), "{fault}");
}

#[test]
fn prompts_keep_the_columns_of_their_rows() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let templates = Templates::from_folder(&own("model"), &tokenizer).unwrap();
    let options = Options { max_length: Some(1), ..Options::default() };
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let data = preparer
        .prompts(
            "rows",
            records(&[
                json!({"id": 7, "prompt": "Two and two?\n", "answer": [4, null], "completion": "4", "level": null}),
                json!({"prompt": "One and two?\n", "answer": {"is": 3}, "chosen": "x"}),
            ]),
        )
        .unwrap();
    assert_eq!((data.kind, data.statistics.rows, data.statistics.examples), (RowKind::Prompt, 2, 2));
    let first = &data.examples[0];
    assert_eq!(tokenizer.decode(&first.ids, false).unwrap(), "Two and two?\n");
    assert_eq!(first.prompt, Text::Plain("Two and two?\n".to_owned()));
    assert_eq!(Value::Object(first.columns.clone()), json!({"id": 7, "answer": [4, null]}));
    assert_eq!(first.columns.keys().collect::<Vec<_>>(), ["id", "answer"]);
    assert_eq!(Value::Object(data.examples[1].columns.clone()), json!({"answer": {"is": 3}, "chosen": "x"}));
    assert_eq!(data.examples[1].place.to_string(), "rows.jsonl, line 2");
    let chat = json!({"prompt": [{"role": "user", "content": "hi"}], "answer": 1});
    let data = preparer.prompts("rows", records(&[chat])).unwrap();
    assert!(tokenizer.decode(&data.examples[0].ids, false).unwrap().ends_with("<|im_start|>assistant\n"));
    assert!(data.examples[0].prompt.is_chat());
}

#[test]
fn one_row_is_as_in_the_data_set() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let options = Options::default();
    let preparer = Preparer { tokenizer: &tokenizer, templates: None, options: &options };
    let path = own("rows").join("pairs.jsonl");
    let source = Source::train(&path.display().to_string(), "train").unwrap();
    let pairs = preparer.preferences(&source.name(), source.records()).unwrap();
    let texts = preparer.reward_pairs(&source.name(), source.records()).unwrap();
    assert_eq!((pairs.statistics.identical, texts.statistics.identical), (1, 1));
    for (i, record) in source.records().enumerate() {
        let row = burnish_data::Row::parse(record.unwrap(), "text").unwrap();
        assert_eq!(preparer.preference(&row).unwrap(), pairs.examples[i]);
        assert_eq!(preparer.reward_pair(&row).unwrap(), texts.examples[i]);
    }
}

/// As TRL: its trainers learn that nothing follows but the end.
#[test]
fn an_answer_of_no_text_is_its_end() {
    let tokenizer = Tokenizer::from_folder(&own("model")).unwrap();
    let templates = Templates::from_folder(&own("model"), &tokenizer).unwrap();
    let options = Options::default();
    let preparer = Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options: &options };
    let user = json!([{"role": "user", "content": "hi"}]);
    let said = |text: &str| json!([{"role": "assistant", "content": text}]);
    let rows = [
        json!({"prompt": "a", "chosen": "b", "rejected": ""}),
        json!({"prompt": "a", "chosen": "b", "rejected": "c"}),
    ];
    let data = preparer.preferences("rows", records(&rows)).unwrap();
    let end = tokenizer.encode(tokenizer.eos_token().unwrap(), false).unwrap();
    assert!(data.examples[0].rejected.ends_with(&end), "{:?}", data.examples[0]);
    let found = preflight_prepared(&data, &tokenizer, templates.as_ref(), &options);
    let found = found.iter().find(|f| f.concern == Concern::BlankAnswers).unwrap().to_string();
    assert!(found.contains("1 of 2 rows have an answer of no text (first: "), "{found}");
    let rows = [json!({"prompt": user, "chosen": said("b"), "rejected": said("")})];
    let data = preparer.preferences("rows", records(&rows)).unwrap();
    assert!(!data.examples[0].rejected.is_empty() && data.statistics.blank == 1);
    let rows = [json!({"prompt": "a", "completion": "", "label": true})];
    assert_eq!(preparer.unpaired("rows", records(&rows)).unwrap().examples[0].completion, end);
}
