#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::*;
use crate::source::Record;
use crate::{DataError, Preparer};

fn tokenizer() -> Tokenizer {
    Tokenizer::from_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model")).unwrap()
}

fn template(source: &str) -> Template {
    Template::new("probe", source, &tokenizer()).unwrap()
}

const GOOD: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}\
    {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn a_good_template_passes_the_probes() {
    let (t, tokenizer) = (template(GOOD), tokenizer());
    assert_eq!(writes_stop_token(&t, &tokenizer), Some(true));
    assert_eq!(stop_token_masked(&t, &tokenizer), Some(true));
    assert_eq!(prefix_preserving(&t), Some(true));
}

#[test]
fn bad_templates_are_told() {
    let tokenizer = tokenizer();
    let outside = GOOD.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>");
    assert_eq!(stop_token_masked(&template(&outside), &tokenizer), Some(false));
    let silent = GOOD.replace("<|im_end|>", "");
    assert_eq!(writes_stop_token(&template(&silent), &tokenizer), Some(false));
    let counting = format!("{{{{ messages | length }}}}{GOOD}");
    assert_eq!(prefix_preserving(&template(&counting)), Some(false));
    assert_eq!(prefix_preserving(&template("{{ raise_exception('no') }}")), None);
}

fn findings(lines: &[&str], options: Options, source: &str) -> Vec<Concern> {
    let tokenizer = tokenizer();
    let templates = Templates::one(template(source));
    let preparer = Preparer { tokenizer: &tokenizer, templates: Some(&templates), options: &options };
    let record = |l: &&str| -> Result<Record, DataError> {
        Ok(Record { place: RowOrigin::given("row"), fields: serde_json::from_str(l).unwrap() })
    };
    let dataset = preparer.prepare("rows", lines.iter().map(record)).unwrap();
    preflight(&dataset, &tokenizer, Some(&templates), &options).into_iter().map(|f| f.concern).collect()
}

#[test]
fn findings_of_data_sets() {
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
    let sharegpt = r#"{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}"#;
    let text = r#"{"text": "one two three four five six seven eight"}"#;
    let asks = r#"{"prompt": "What is it that you see there, over the hills and far away, my dear old friend of mine, when the sun goes down and the wind is still and the night is young and the moon is not yet there to be seen?", "completion": "x"}"#;
    assert_eq!(findings(&[chat], Options::default(), GOOD), []);
    assert_eq!(findings(&[sharegpt], Options::default(), GOOD), [Concern::ForeignRoles]);
    assert_eq!(
        findings(&[chat], Options::default(), &GOOD.replace("<|im_end|>", "")),
        [Concern::NoStopToken]
    );
    let cut = Options { max_length: Some(4), ..Options::default() };
    assert_eq!(findings(&[text], cut, GOOD), [Concern::Truncated]);
    assert_eq!(findings(&[asks], Options::default(), GOOD), [Concern::MostlyMasked]);
    let short = Options { max_length: Some(10), ..Options::default() };
    let answers = r#"{"prompt": "x", "completion": "y"}"#;
    let found = findings(&[asks, answers], short, GOOD);
    assert!(found.contains(&Concern::Dropped) && found.contains(&Concern::Truncated), "{found:?}");
    let merges = r#"{"prompt": "the wor", "completion": "ld"}"#;
    assert_eq!(findings(&[merges], Options::default(), GOOD), [Concern::PromptDiverges]);
}

fn of_pairs(lines: &[&str], options: Options, source: &str) -> Vec<Finding> {
    let tokenizer = tokenizer();
    let templates = Templates::one(template(source));
    let preparer = Preparer { tokenizer: &tokenizer, templates: Some(&templates), options: &options };
    let record = |(i, l): (usize, &&str)| -> Result<Record, DataError> {
        let file = std::sync::Arc::new("pairs.jsonl".into());
        Ok(Record { place: RowOrigin::line(&file, i + 1), fields: serde_json::from_str(l).unwrap() })
    };
    let data = preparer.preferences("pairs", lines.iter().enumerate().map(record)).unwrap();
    preflight_prepared(&data, &tokenizer, Some(&templates), &options)
}

#[test]
fn findings_of_pairs() {
    let concerns = |lines: &[&str], options, source| -> Vec<Concern> {
        of_pairs(lines, options, source).into_iter().map(|f| f.concern).collect()
    };
    let good = r#"{"prompt": "Is it so?\n", "chosen": "Aye.", "rejected": "No."}"#;
    let same = r#"{"prompt": "Is it so?\n", "chosen": "Aye.", "rejected": "Aye."}"#;
    let twice = r#"{"prompt": "Is it so?\n", "chosen": "Is it so?\nAye.", "rejected": "Is it so?\nNo."}"#;
    let merges = r#"{"prompt": "the ques", "chosen": "tion", "rejected": "ting"}"#;
    let chat = r#"{"prompt": [{"role": "user", "content": "hi"}],
        "chosen": [{"role": "assistant", "content": "ho"}], "rejected": [{"role": "assistant", "content": "hm"}]}"#;
    assert_eq!(concerns(&[good], Options::default(), GOOD), []);
    assert_eq!(concerns(&[chat], Options::default(), GOOD), []);
    assert_eq!(concerns(&[merges], Options::default(), GOOD), [Concern::PromptDiverges]);
    assert_eq!(
        concerns(&[chat], Options::default(), &GOOD.replace("<|im_end|>", "")),
        [Concern::NoStopToken]
    );
    let found = of_pairs(&[good, same, twice, same], Options::default(), GOOD);
    assert_eq!(
        found.iter().map(|f| f.concern).collect::<Vec<_>>(),
        [Concern::IdenticalAnswers, Concern::PromptRepeated, Concern::Repeated]
    );
    assert!(found[0].message.contains("in 2 of 4") && found[0].message.contains("pairs.jsonl, line 2"));
    assert!(found[1].message.contains("in 1 of 4") && found[1].message.contains("pairs.jsonl, line 3"));
    let long = r#"{"prompt": "Once upon a time there was a long prompt, longer than any other.\n", "chosen": "Aye.", "rejected": "No."}"#;
    let short = Options { max_length: Some(10), ..Options::default() };
    let found = of_pairs(&[good, long], short, GOOD);
    assert_eq!(found.iter().map(|f| f.concern).collect::<Vec<_>>(), [Concern::Dropped]);
    assert!(found[0].message.contains("1 of 2 rows"), "{}", found[0]);
}

#[test]
fn weights_balance_the_numbers_of_answers() {
    let of = |desirable, examples, a, b| {
        let statistics = Statistics { desirable, examples, ..Statistics::default() };
        preflight_weights(&statistics, a, b)
    };
    assert_eq!(of(10, 20, 1.0, 1.0), None);
    assert_eq!(of(10, 40, 3.5, 1.0), None, "3.5 times 10 is between 30 and 40");
    assert_eq!(of(30, 40, 1.0, 2.5), None);
    let finding = of(10, 40, 1.0, 1.0).unwrap();
    assert_eq!(finding.concern, Concern::Unbalanced);
    for part in ["between 3 and 3.99", "between 0.25 and 0.33"] {
        assert!(finding.mend.contains(part), "{finding}");
    }
    assert_eq!(of(0, 40, 1.0, 1.0).unwrap().concern, Concern::OneSided);
    assert_eq!(of(40, 40, 1.0, 1.0).unwrap().concern, Concern::OneSided);
}
