#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::*;

fn messages(value: Value) -> Vec<Message> {
    value.as_array().unwrap().iter().map(|m| m.as_object().unwrap().clone()).collect()
}

fn render(source: &str, chat: Value) -> Result<Rendered, DataError> {
    let template = Template::compile("test", source, Vec::new())?;
    template.render(&messages(chat), Render::default(), &RowOrigin::given("row"))
}

#[test]
fn a_template_that_does_not_parse_says_where() {
    let e = render("line one\n{% if %}", json!([])).unwrap_err().to_string();
    assert!(e.contains("`test` does not parse") && e.contains("line 2"), "{e}");
    let e = render("{% generation %}open", json!([])).unwrap_err().to_string();
    assert!(e.contains("does not parse"), "{e}");
}

#[test]
fn marks_in_the_conversation_do_not_move_the_spans() {
    let text = "a\u{fdd0}b\u{fdd1}\u{fdef}";
    let source = "{% for m in messages %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endfor %}";
    let r =
        render(source, json!([{"role": "user", "content": text}, {"role": "user", "content": "c"}])).unwrap();
    assert_eq!(r.text, format!("<{text}><c>"));
    assert_eq!(r.generated, vec![1..6, 8..9]);
}

#[test]
fn spans_inside_macros_and_set_blocks_are_where_the_text_is() {
    let source = "{% macro say(m) %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endmacro %}\
                  {% set held %}{{ say(messages[0]) }}{% endset %}start {{ held }}";
    let r = render(source, json!([{"role": "user", "content": "é!"}])).unwrap();
    assert_eq!((r.text.as_str(), r.generated.as_slice()), ("start [é!]", std::slice::from_ref(&(7..9))));
}

#[test]
fn the_final_message_stays_open() {
    let source = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
    let template = Template::compile("test", source, Vec::new()).unwrap();
    let with = Render { continue_final_message: true, ..Render::default() };
    let chat = messages(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": " so  "}]));
    let text = template.render(&chat, with, &RowOrigin::given("row")).unwrap().text;
    assert_eq!(text, "<a><so");
    let silent = messages(json!([{"role": "assistant"}]));
    assert!(template.render(&silent, with, &RowOrigin::given("row")).is_err());
    let both = Render { add_generation_prompt: true, ..with };
    assert!(template.render(&chat, both, &RowOrigin::given("row")).is_err());
}

#[test]
fn templates_of_a_folder_are_picked_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model");
    let tokenizer = Tokenizer::from_folder(&model).unwrap();
    assert!(Templates::from_folder(dir.path(), &tokenizer).unwrap().is_none());
    let config = json!({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let text = |t: &Template| t.render(&[], Render::default(), &RowOrigin::given("row")).unwrap().text;
    let templates = Templates::from_folder(dir.path(), &tokenizer).unwrap().unwrap();
    assert_eq!(text(templates.pick(false).unwrap()), "plain");
    assert_eq!(text(templates.pick(true).unwrap()), "tools");
    std::fs::write(dir.path().join("chat_template.jinja"), "file wins\n").unwrap();
    let templates = Templates::from_folder(dir.path(), &tokenizer).unwrap().unwrap();
    assert_eq!(text(templates.pick(true).unwrap()), "file wins");
}
