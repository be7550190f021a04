#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::*;

fn parse(value: Value) -> Result<Row, DataError> {
    let Value::Object(fields) = value else { panic!("the test gives an object") };
    Row::parse(Record { place: RowOrigin::given("row"), fields }, "text")
}

fn kind(value: Value) -> RowKind {
    parse(value).unwrap().kind()
}

fn error(value: Value) -> String {
    parse(value).unwrap_err().to_string()
}

#[test]
fn every_type_is_told_by_its_columns() {
    let chat = json!([{"role": "user", "content": "hi"}]);
    let reply = json!([{"role": "assistant", "content": "ho"}]);
    assert_eq!(kind(json!({"text": "a"})), RowKind::Language);
    assert_eq!(kind(json!({"messages": chat, "text": "a"})), RowKind::LanguageChat);
    assert_eq!(kind(json!({"prompt": "a"})), RowKind::Prompt);
    assert_eq!(kind(json!({"prompt": chat})), RowKind::PromptChat);
    assert_eq!(kind(json!({"prompt": "a", "completion": "b"})), RowKind::PromptCompletion);
    assert_eq!(kind(json!({"prompt": chat, "completion": reply})), RowKind::PromptCompletionChat);
    assert_eq!(kind(json!({"prompt": "a", "chosen": "b", "rejected": "c"})), RowKind::Preference);
    assert_eq!(kind(json!({"chosen": chat, "rejected": reply})), RowKind::ImplicitPreferenceChat);
    assert_eq!(kind(json!({"prompt": "a", "completion": "b", "label": true})), RowKind::Unpaired);
    assert_eq!(kind(json!({"prompt": "a", "completion": "b", "label": "x"})), RowKind::PromptCompletion);
    assert_eq!(kind(json!({"prompt": "a", "completions": ["b"], "labels": [true]})), RowKind::Stepwise);
    assert_eq!(kind(json!({"input_ids": [1, 2]})), RowKind::Tokens);
}

#[test]
fn sharegpt_is_converted_and_roles_are_kept() {
    let row = parse(json!({"conversations": [{"from": "human", "value": "hi", "weight": null}]})).unwrap();
    let Content::Language(Text::Chat(messages)) = row.content else { panic!("a chat") };
    assert_eq!(Value::Object(messages[0].clone()), json!({"role": "human", "content": "hi"}));
}

#[test]
fn alpacas_columns_are_a_prompt_and_a_completion() {
    let row =
        parse(json!({"instruction": "Add", "input": "1 2", "output": "3", "text": null, "id": 7})).unwrap();
    assert!(row.is_alpaca && row.has_prompt_and_completion);
    let Content::PromptCompletion { prompt, completion } = row.content else { panic!("a pair") };
    assert_eq!(prompt.to_json(), json!([{"role": "user", "content": "Add\n\n1 2"}]));
    assert_eq!(completion.to_json(), json!([{"role": "assistant", "content": "3"}]));
    assert_eq!(row.columns.keys().collect::<Vec<_>>(), ["id"]);
    let row = parse(json!({"instruction": "Sing", "input": "", "output": "La"})).unwrap();
    let Content::PromptCompletion { prompt, .. } = row.content else { panic!("a pair") };
    assert_eq!(prompt.to_json(), json!([{"role": "user", "content": "Sing"}]));
    // The text column is there: the published Alpaca has all three and it.
    assert!(!parse(json!({"instruction": "a", "output": "b", "text": "c"})).unwrap().is_alpaca);
    assert!(parse(json!({"instruction": "a", "output": 3})).is_err());
}

#[test]
fn null_is_absent() {
    assert_eq!(kind(json!({"text": "a", "prompt": null, "messages": null})), RowKind::Language);
}

#[test]
fn the_text_column_can_have_another_name() {
    let fields = json!({"body": "a"}).as_object().unwrap().clone();
    let row = Row::parse(Record { place: RowOrigin::given("row"), fields }, "body").unwrap();
    assert_eq!(row.content, Content::Language(Text::Plain("a".to_owned())));
}

#[test]
fn tools_come_as_a_list_or_as_its_json() {
    let chat = json!([{"role": "user", "content": "hi"}]);
    let a = parse(json!({"messages": chat, "tools": [{"type": "function"}]})).unwrap();
    let b = parse(json!({"messages": chat, "tools": "[{\"type\": \"function\"}]"})).unwrap();
    assert_eq!(a.tools, b.tools);
    assert!(error(json!({"messages": chat, "tools": "not json"})).contains("column `tools`"));
    assert!(error(json!({"messages": chat, "tools": [1]})).contains("tools[0]"));
}

#[test]
fn tokens_with_masks() {
    let row = parse(json!({"input_ids": [1, 2], "labels": [-100, 2], "completion_mask": [0, 1]})).unwrap();
    let Content::Tokens { input_ids, labels, completion_mask, assistant_masks } = row.content else {
        panic!("tokens")
    };
    assert_eq!((input_ids, labels), (vec![1, 2], Some(vec![-100, 2])));
    assert_eq!((completion_mask, assistant_masks), (Some(vec![false, true]), None));
    let e = error(json!({"input_ids": [1, 2], "labels": [1]}));
    assert!(e.contains("`labels` has 1") && e.contains("has 2"), "{e}");
    assert!(error(json!({"input_ids": [1, -2]})).contains("input_ids[1]"));
    assert!(error(json!({"input_ids": [1, 2.5]})).contains("expected an integer"));
}

#[test]
fn wrong_types_name_the_column() {
    assert!(error(json!({"text": 3})).contains("column `text`: expected a string, got a number"));
    assert!(error(json!({"question": "a"})).contains("columns `question` form no known row type"));
    let e = error(json!({"completion": "a", "label": true}));
    assert!(
        e.contains("`completion`, `label`") && e.contains("add a column `prompt`, which may be \"\""),
        "{e}"
    );
    assert!(error(json!({"messages": "a"})).contains("column `messages`"));
    assert!(error(json!({"messages": []})).contains("empty conversation"));
    assert!(error(json!({"messages": [{"content": "a"}]})).contains("messages[0].role"));
    assert!(error(json!({"messages": ["a"]})).contains("messages[0]"));
    let chat = json!([{"role": "user", "content": "hi"}]);
    let e = error(json!({"prompt": chat, "completion": "b"}));
    assert!(e.contains("`prompt` holds messages") && e.contains("`completion` holds a string"), "{e}");
}

#[test]
fn pictures_and_sound_are_refused_by_name() {
    let chat = json!([{"role": "user", "content": "hi"}]);
    let e = error(json!({"messages": chat, "images": ["cat.png"]}));
    assert!(e.contains("`images` is not text") && e.contains("leave such rows out"), "{e}");
    assert!(error(json!({"text": "a", "image": {"path": "a.png"}})).contains("`image` is not text"));
    let picture = json!({"type": "image", "image": "cat.png"});
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}]);
    for row in [json!({"messages": parts}), json!({"prompt": parts, "completion": chat})] {
        let e = error(row);
        assert!(e.contains("[0].content[1]: image` is not text"), "{e}");
    }
    // A column without any is nothing.
    assert!(matches!(
        parse(json!({"messages": chat, "images": []})).unwrap().content,
        Content::Language(Text::Chat(_))
    ));
    let said = json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
    assert!(matches!(parse(json!({"messages": said})).unwrap().content, Content::Language(Text::Chat(_))));
}
