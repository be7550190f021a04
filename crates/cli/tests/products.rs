//! The default of `bf16`: the processor's products, the launcher's word, the checkpoint.

use burnish_device::multiplies_bf16;

use crate::program::*;

/// What the program says at the start of `words`, with `launched` as the launcher's precision.
fn said(words: &[String], launched: Option<&str>) -> String {
    let mut command = burnish();
    match launched {
        Some(precision) => command.env("ACCELERATE_MIXED_PRECISION", precision),
        None => command.env_remove("ACCELERATE_MIXED_PRECISION"),
    };
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn an_open_bf16_is_what_the_processor_multiplies_and_stays_what_it_was() {
    let root = tempfile::tempdir().unwrap();
    let dir = |name: &str| root.path().join(name);
    let note = "products multiply bfloat16";
    // Where the processor has no such products, bfloat16 that is asked for is float32, and the program says so.
    let asked_for = if multiplies_bf16() { note } else { "products multiply float32" };
    let bf16 = |name: &str| {
        let written = std::fs::read_to_string(dir(name).join("burnish.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&written).unwrap()["bf16"].clone()
    };
    let words = |name: &str, more: &[&str]| {
        let common = ["--device=cpu", "--max_steps=4", "--save_steps=2"];
        sft(&dir(name), "text.jsonl", &[&LORA, &common[..], more].concat())
    };

    // As the machine is; what it chose is written down, and is the same as asking for it.
    assert_eq!(said(&words("open", &[]), None).contains(note), multiplies_bf16());
    assert_eq!(bf16("open"), multiplies_bf16());
    let asked = format!("--bf16={}", multiplies_bf16());
    assert!(!said(&words("asked", &[&asked]), None).contains(note));
    assert_eq!(metrics(&dir("open")), metrics(&dir("asked")));
    // Not with fp16; the launcher may say it, an option wins.
    assert!(!said(&words("fp16", &["--fp16"]), Some("bf16")).contains(note));
    assert!(!said(&words("no", &[]), Some("no")).contains(note));
    assert!(said(&words("bf16", &[]), Some("bf16")).contains(asked_for));
    assert!(!said(&words("option", &["--no_bf16"]), Some("bf16")).contains(note));
    assert_eq!((bf16("no"), bf16("bf16"), bf16("option")), (false.into(), true.into(), false.into()));
    assert_eq!(metrics(&dir("no")) != metrics(&dir("bf16")), multiplies_bf16());

    // A run goes on as it began, whatever is said now: to the bit.
    for (name, launched) in [("no", "bf16"), ("bf16", "no")] {
        let whole = metrics(&dir(name));
        std::fs::remove_dir_all(dir(name).join("checkpoint-4")).unwrap();
        said(&words(name, &["--resume_from_checkpoint=true"]), Some(launched));
        assert_eq!(bf16(name), serde_json::Value::from(name == "bf16"), "{name}");
        assert_eq!(metrics(&dir(name)), whole, "{name}");
    }
}
