//! `generate`, `score`, `eval`, `merge` and help.

use std::path::Path;

use serde_json::Value;

use crate::program::{LORA, fails, model, ok, rows, sft};

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn trained(root: &Path, more: &[&str]) -> std::path::PathBuf {
    let out = root.join("tuned");
    let mut words = vec!["--max_steps=20", "--save_strategy=no", "--per_device_train_batch_size=8"];
    words.extend(LORA);
    words.extend(more);
    ok(&sft(&out, "prompt_completion.jsonl", &words));
    out
}

fn loss(folder: &Path, adapter: Option<&Path>) -> f64 {
    let data = rows("prompt_completion.jsonl");
    let mut words = words(&["eval", "--model_name_or_path", folder.to_str().unwrap(), "--dataset_name"]);
    words.push(data.display().to_string());
    if let Some(adapter) = adapter {
        words.push("--adapter_name_or_path".into());
        words.push(adapter.display().to_string());
    }
    let result: Value = serde_json::from_str(&ok(&words)).unwrap();
    result["eval_loss"].as_f64().unwrap()
}

#[test]
fn tuning_scoring_evaluating_and_merging_agree() {
    let root = tempfile::tempdir().unwrap();
    let adapter = trained(root.path(), &["--lora_modules_to_save=lm_head"]);
    for file in ["adapter_config.json", "tokenizer.json", "README.md", "loss.svg", "metrics.jsonl"] {
        assert!(adapter.join(file).is_file(), "{file}");
    }
    let (before, after) = (loss(&model(), None), loss(&model(), Some(&adapter)));
    assert!(after < before * 0.9, "{before} to {after}");

    let merged = root.path().join("merged");
    let mut merge = words(&["merge", "--dtype=float32", "--model_name_or_path"]);
    merge
        .extend([model(), "--adapter_name_or_path".into(), adapter.clone()].map(|w| w.display().to_string()));
    merge.extend(["--output_dir".to_owned(), merged.display().to_string()]);
    ok(&merge);
    assert!((loss(&merged, None) - after).abs() < 1e-5);

    let score = words(&["score", "--model_name_or_path", merged.to_str().unwrap(), "--dataset_name"]);
    let scored = lines(&ok(&[score, vec![rows("prompt_completion.jsonl").display().to_string()]].concat()));
    let sum: f64 = scored.iter().map(|l| l["sum_logprob"].as_f64().unwrap()).sum();
    let tokens: f64 = scored.iter().map(|l| l["num_tokens"].as_f64().unwrap()).sum();
    assert!((-sum / tokens - after).abs() < 1e-5);
    assert!(scored.iter().enumerate().all(|(i, l)| l["index"] == i));

    // A row that does not fit is there all the same, with nothing in it.
    let long = format!("{{\"prompt\": \"{}\", \"completion\": \"x\"}}\n", "word ".repeat(200));
    let two = root.path().join("two.jsonl");
    std::fs::write(&two, format!("{long}{{\"prompt\": \"a\", \"completion\": \"b\"}}\n")).unwrap();
    let score =
        words(&["score", "--max_length=64", "--dataset_name", two.to_str().unwrap(), "--model_name_or_path"]);
    let scored = lines(&ok(&[score, vec![merged.display().to_string()]].concat()));
    assert_eq!(scored[0]["num_tokens"], 0);
    assert!(scored[1]["num_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn an_adapter_is_trained_further() {
    let root = tempfile::tempdir().unwrap();
    let first = trained(root.path(), &[]);
    let second = root.path().join("second");
    let adapter = format!("--adapter_name_or_path={}", first.display());
    let more = ["--max_steps=20", "--save_strategy=no", "--per_device_train_batch_size=8", adapter.as_str()];
    ok(&sft(&second, "prompt_completion.jsonl", &more));
    let (once, twice) = (loss(&model(), Some(&first)), loss(&model(), Some(&second)));
    assert!(twice < once, "{once} to {twice}");
}

#[test]
fn a_tuned_model_generates_what_it_learned() {
    let root = tempfile::tempdir().unwrap();
    let adapter = root.path().join("tuned");
    let data = root.path().join("one.jsonl");
    std::fs::write(&data, "{\"prompt\": \"Name a colour.\\n\", \"completion\": \"Blue.\"}\n".repeat(8))
        .unwrap();
    let mut train = sft(&adapter, "text.jsonl", &["--max_steps=120", "--save_strategy=no", "--use_peft"]);
    train[4] = data.display().to_string();
    train.extend(words(&[
        "--lora_target_modules=q_proj,v_proj,up_proj,down_proj,lm_head",
        "--lora_dropout=0",
    ]));
    let said = ok(&train);
    assert!(said.contains("Blue."), "{said}");

    let base = model().display().to_string();
    let common = words(&["generate", "--model_name_or_path", &base, "--adapter_name_or_path"]);
    let common = [common, vec![adapter.display().to_string(), "--max_new_tokens=12".into()]].concat();
    let plain = words(&["--prompt", "Name a colour.\n", "--apply_chat_template=false"]);
    assert_eq!(ok(&[common.clone(), plain].concat()).trim(), "Blue.");

    let out = root.path().join("completions.jsonl");
    let one = words(&["--prompt", "Name a colour.\n", "--apply_chat_template=false", "--output_file"]);
    assert_eq!(ok(&[common.clone(), one, vec![out.display().to_string()]].concat()).trim(), "Blue.");
    let written = lines(&std::fs::read_to_string(&out).unwrap());
    assert_eq!(
        (written.len(), &written[0]["completion"], &written[0]["prompt"]),
        (1, &"Blue.".into(), &"Name a colour.\n".into())
    );

    let many = words(&["--dataset_name", data.to_str().unwrap(), "--output_file", out.to_str().unwrap()]);
    ok(&[common, many].concat());
    let written = lines(&std::fs::read_to_string(out).unwrap());
    assert_eq!(written.len(), 8);
    for line in written {
        assert_eq!(line["completion"], "Blue.");
        assert_eq!(line["finish_reason"], "stop");
        assert!(line["token_ids"].as_array().unwrap().len() > 1);
    }
}

#[test]
fn help_names_every_command_and_option() {
    let help = ok(&words(&["--help"]));
    for command in ["sft", "generate", "score", "eval", "merge", "convert"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(ok(&words(&["sft", "--help", "training"])).contains("learning_rate"));
    assert_eq!(ok(&words(&["help", "sft", "training"])), ok(&words(&["sft", "--help", "training"])));
    let bash = ok(&words(&["completions", "bash"]));
    assert!(bash.contains("--gradient_accumulation_steps") && bash.contains("compgen"), "{bash}");
    fails(&words(&["completions", "tcsh"]), &["bash|elvish|fish"]);
    let folder = tempfile::tempdir().unwrap();
    ok(&words(&["man", &folder.path().display().to_string()]));
    let page = std::fs::read_to_string(folder.path().join("burnish-sft.1")).unwrap();
    assert!(page.contains("gradient_accumulation_steps") && page.contains("TRAINING"), "{page}");
}
