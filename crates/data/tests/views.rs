//! Rows as `burnish data` shows them are the rows that trainers get.

use std::path::Path;

use burnish_data::{
    DataError, Example, IGNORED, Options, Prepared, Preparer, Record, RowOrigin, RowUse, RowView, Templates,
    Tokenizer, Truncation,
};
use serde_json::{Value, json};

fn records(rows: &[Value]) -> impl Iterator<Item = Result<Record, DataError>> + '_ {
    rows.iter().enumerate().map(|(at, row)| {
        let fields = row.as_object().unwrap().clone();
        Ok(Record { place: RowOrigin::given(&format!("row {}", at + 1)), fields })
    })
}

fn with<R>(options: &Options, work: impl FnOnce(Preparer<'_>) -> R) -> R {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model");
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let templates = Templates::from_folder(&folder, &tokenizer).unwrap();
    work(Preparer { tokenizer: &tokenizer, templates: templates.as_ref(), options })
}

fn views(preparer: &Preparer<'_>, row_use: RowUse, rows: &[Value]) -> Vec<RowView> {
    let mut all = Vec::new();
    preparer.views(row_use, "rows", records(rows), |row| all.push(row)).unwrap();
    all
}

/// Lengths, and cuts at either end that leave all, some or none of the answers.
fn cuts() -> impl Iterator<Item = Options> {
    let lengths = [None, Some(3), Some(9), Some(12), Some(16), Some(64)];
    let ends = [Truncation::KeepStart, Truncation::KeepEnd];
    lengths.into_iter().flat_map(move |max_length| {
        ends.map(|truncation| Options { max_length, truncation, ..Options::default() })
    })
}

#[test]
fn supervised_rows_are_those_of_prepare() {
    let rows: Vec<Value> = ["x", "a longer answer of some more words", "no"]
        .map(|answer| json!({"prompt": "say something to me", "completion": answer}))
        .into();
    for options in cuts() {
        with(&options, |preparer| {
            let kept: Vec<Example> = views(&preparer, RowUse::Supervised, &rows)
                .into_iter()
                .filter(|row| !row.is_dropped())
                .map(|row| {
                    let text = &row.texts[0];
                    let ids = text.ids[text.kept.clone()].to_vec();
                    let learned = &text.learned[text.kept.clone()];
                    let label = |(&id, &learned): (&u32, &bool)| {
                        if learned { i32::try_from(id).unwrap() } else { IGNORED }
                    };
                    let labels = ids.iter().zip(learned).map(label).collect();
                    Example::new(ids, labels)
                })
                .collect();
            match preparer.prepare("rows", records(&rows)) {
                Ok(data) => assert_eq!(kept, data.examples, "{options:?}"),
                Err(error) => assert!(kept.is_empty(), "{error}: {options:?}"),
            }
        });
    }
}

#[test]
fn pairs_and_answers_are_those_of_their_trainers() {
    let rows: Vec<Value> = ["short", "a longer answer of some more words", "no"]
        .map(|answer| json!({"prompt": "say something to me", "chosen": answer, "rejected": "not this one"}))
        .into();
    for options in cuts() {
        with(&options, |preparer| {
            let kept = |row_use| {
                let rows = views(&preparer, row_use, &rows).into_iter();
                rows.filter(|row| !row.is_dropped()).collect::<Vec<_>>()
            };
            let (pairs, scored) = (kept(RowUse::Preference { prompts: false }), kept(RowUse::RewardPair));
            let unpaired = kept(RowUse::Unpaired { desirable_weight: 1.0, undesirable_weight: 1.0 });
            let all = |row: &RowView| row.texts.iter().map(|text| text.ids.clone()).collect::<Vec<_>>();
            let tokens = |rows: &[RowView]| {
                let texts = rows.iter().flat_map(|row| &row.texts);
                texts.fold((0, 0), |(all, learned), text| {
                    let kept = &text.learned[text.kept.clone()];
                    (all + kept.len(), learned + kept.iter().filter(|l| **l).count())
                })
            };
            match preparer.preferences("rows", records(&rows)) {
                Ok(data) => {
                    let whole = data.examples.iter().map(|example| {
                        [&example.chosen, &example.rejected]
                            .map(|a| [&example.prompt[..], a].concat())
                            .to_vec()
                    });
                    assert_eq!(pairs.iter().map(all).collect::<Vec<_>>(), whole.collect::<Vec<_>>());
                    assert_eq!(
                        tokens(&pairs),
                        (data.statistics.tokens, data.statistics.trained),
                        "{options:?}"
                    );
                }
                Err(error) => assert!(pairs.is_empty(), "{error}: {options:?}"),
            }
            match preparer.unpaired("rows", records(&rows)) {
                Ok(Prepared { examples, statistics, .. }) => {
                    assert_eq!(2 * unpaired.len(), examples.len());
                    assert_eq!(tokens(&unpaired), (statistics.tokens, statistics.trained), "{options:?}");
                }
                Err(error) => assert!(unpaired.is_empty(), "{error}: {options:?}"),
            }
            match preparer.reward_pairs("rows", records(&rows)) {
                Ok(data) => {
                    let whole = data.examples.iter().map(|e| vec![e.chosen.clone(), e.rejected.clone()]);
                    assert_eq!(scored.iter().map(all).collect::<Vec<_>>(), whole.collect::<Vec<_>>());
                }
                Err(error) => assert!(scored.is_empty(), "{error}: {options:?}"),
            }
        });
    }
}
