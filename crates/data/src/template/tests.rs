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

fn bounded(source: &str, chat: Value) -> DataError {
    let start = std::time::Instant::now();
    let error = render(source, chat).unwrap_err();
    // Measured: under two seconds each, in this profile.
    assert!(start.elapsed().as_secs() < 60, "{source}: {:?}", start.elapsed());
    error
}

#[test]
fn templates_without_end_are_stopped() {
    let big = "{% set r = range(100000) %}";
    for (source, bound) in [
        (format!("{big}{{% for a in r %}}{{% for b in r %}}{{% endfor %}}{{% endfor %}}"), "steps"),
        (format!("{big}{{% for a in r %}}{{% for b in r %}}x{{% endfor %}}{{% endfor %}}"), "steps"),
        ("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}".to_owned(), "bytes"),
        ("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}".to_owned(), "steps"),
        ("{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}".to_owned(), "steps"),
        ("{{ 'x' * 99999999999 }}".to_owned(), "bytes"),
        ("{{ [0] * 99999999999 }}".to_owned(), "steps"),
        ("{{ 'x'.ljust(99999999999) }}{{ '%99999999999d' % 1 }}".to_owned(), "bytes"),
        ("{{ '%99999999999d' % 1 }}".to_owned(), "bytes"),
        ("{{ '{:99999999999}'.format(1) }}".to_owned(), "bytes"),
        ("{{ 'a\tb'.expandtabs(99999999999) }}".to_owned(), "bytes"),
        ("{{ 'x' | indent(99999999999) }}".to_owned(), "bytes"),
        ("{{ [1] | tojson(indent=99999999999) }}".to_owned(), "bytes"),
        ("{{ ('a' * 9000000).replace('', 'bbbbbbbb') }}".to_owned(), "bytes"),
        ("{{ [1] | batch(99999999999, 0) | list }}{{ [1] | slice(99999999999) | list }}".to_owned(), "steps"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".to_owned(), "macros"),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(), "macros"),
        (format!("{big}{{% for a in r %}}{{{{ r | map('string') | list | length }}}}{{% endfor %}}"), "steps"),
    ] {
        let e = bounded(&source, json!([]));
        assert!(matches!(e, DataError::TemplateBound { .. }) && e.to_string().contains(bound), "{source}: {e}");
    }
    let e = render("{{ range(999999999) }}", json!([])).unwrap_err().to_string();
    assert!(e.contains("a range of more than"), "{e}");
}

#[test]
fn sources_that_nest_without_end_do_not_parse() {
    let deep =
        |open: &str, close: &str| format!("{{{{ {}1{} }}}}", open.repeat(100_000), close.repeat(100_000));
    for source in [
        deep("(", ")"),
        deep("[", "]"),
        deep("-", ""),
        deep("not ", ""),
        format!("{{{{ x{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ x{} }}}}", "|e".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(100_000)),
        "{% if 1 %}".repeat(100_000),
        "x".repeat(2 << 20),
    ] {
        let e = render(&source, json!([])).unwrap_err();
        assert!(matches!(e, DataError::TemplateSyntax { .. }), "{e}");
    }
}

#[test]
fn what_is_deep_but_bounded_renders() {
    let sum = format!("{{{{ 0{} }}}}", " + 1".repeat(390));
    assert_eq!(render(&sum, json!([])).unwrap().text, "390");
    let macros = "{% macro f(n) %}{{ '(' ~ (f(n - 1) if n else '') ~ ')' }}{% endmacro %}{{ f(240) }}";
    assert_eq!(render(macros, json!([])).unwrap().text.len(), 2 * 241);
    let long: Vec<Value> = (0..20_000).map(|i| json!({"role": "user", "content": format!("{i}")})).collect();
    let source = "{% for m in messages[::-1] %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}\
                  {% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}{{ ns.n }}";
    assert_eq!(render(source, Value::Array(long)).unwrap().text, "088890");
}

#[test]
fn messages_name_the_field_that_is_missing() {
    for (source, field) in [
        ("{{ messages[0].meta.lang }}", "`messages[0].meta`"),
        ("{{ 'x' + messages[0]['name'] }}", "`messages[0]['name']`"),
        ("{% for m in messages %}\n{{ m.tool_calls[0].id }}{% endfor %}", "`m.tool_calls`"),
        ("{{ nothing.at_all }}", "`nothing`"),
    ] {
        let e = render(source, json!([{"role": "user", "content": "x"}])).unwrap_err().to_string();
        assert!(e.contains(field) && e.contains("template line"), "{source}: {e}");
    }
    let e = render("{{ raise_exception('no ' ~ messages[0].role) }}", json!([{"role": "x"}])).unwrap_err();
    assert!(e.to_string().contains("refuses this conversation: no x"), "{e}");
    assert!(
        render("{% for x in none %}{% endfor %}", json!([]))
            .unwrap_err()
            .to_string()
            .contains("not iterable")
    );
}
