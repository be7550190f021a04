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
        Ok(Record { place: Place::given("row"), fields: serde_json::from_str(l).unwrap() })
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
