//! The model card.

use std::time::Duration;

use burnish_report::{ModelCard, Produced, Record, Sample};

fn card(produced: Produced, sample: Option<&Sample>) -> String {
    let records = [
        Record::new(10, 0.1).with("loss", 3.0).with("num_tokens", 1000u64),
        Record::new(20, 0.2).with("eval_loss", 1.5),
        Record::new(30, 0.3)
            .with("loss", 0.5)
            .with("num_tokens", 3000u64)
            .with("peak_memory_bytes", 2_000_000u64),
    ];
    let options =
        [("learning_rate".to_owned(), "2e-3".to_owned()), ("rank_pattern".to_owned(), "a|b".to_owned())];
    ModelCard {
        name: "output/pirate",
        base_model: "examples/base",
        dataset: "rows.jsonl",
        trainer: "sft",
        produced,
        scores: false,
        conversational: true,
        options: &options,
        records: &records,
        time: Duration::from_secs(61),
        sample,
        version: "0.1.0",
    }
    .to_markdown()
}

#[test]
fn an_adapter_says_what_it_adapts_and_how_to_load_it() {
    let sample = Sample {
        prompt: "<|user|>Where's a \"cow\"?<|end|>".into(),
        user: Some("Where's a \"cow\"?".into()),
        completion: "Arr!\n```\n".into(),
    };
    let text = card(Produced::Adapter, Some(&sample));
    let front: Vec<&str> = text.split("---\n").collect();
    assert_eq!(
        front[1],
        "base_model: \"examples/base\"\nlibrary_name: peft\nmodel_name: \"output/pirate\"\npipeline_tag: \
         text-generation\ntags:\n- burnish\n- sft\n- lora\n- \"base_model:adapter:examples/base\"\n"
    );
    for part in [
        "This is an adapter for `examples/base`",
        "```text\n<|user|>Where's a \"cow\"?<|end|>\n```",
        "--adapter_name_or_path output/pirate --prompt 'Where'\\''s a \"cow\"?'",
        "AutoPeftModelForCausalLM.from_pretrained(\"output/pirate\")",
        "\"content\": \"Where's a \\\"cow\\\"?\"",
        "| loss | 3.000 | 0.5000 |",
        "| evaluation loss | 1.500 | 1.500 |",
        "30 steps in 1 min 01 s, 3.00k tokens, at most 2.00 MB of memory",
        "| `rank_pattern` | `a\\|b` |",
        "````text\nArr!\n```\n````",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

#[test]
fn a_model_stands_alone() {
    let text = card(Produced::Model, None);
    assert!(text.contains("library_name: transformers") && !text.contains("- lora"), "{text}");
    assert!(text.contains("burnish generate --model_name_or_path output/pirate --prompt Hello"), "{text}");
    assert!(!text.contains("## Sample") && !text.contains("Peft"), "{text}");
}
