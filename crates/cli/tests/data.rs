//! `burnish data`: what it shows is what trains, and what is odd is found.

use std::path::Path;

use crate::program::{burnish, fails, model, ok, rows, stderr};

fn words(trainer: &str, data: &Path, more: &[&str]) -> Vec<String> {
    let mut words = vec![
        "data".to_owned(),
        trainer.to_owned(),
        format!("--model_name_or_path={}", model().display()),
        format!("--dataset_name={}", data.display()),
    ];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

#[test]
fn learned_read_and_cut_tokens_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("rows.jsonl");
    std::fs::write(&data, "{\"prompt\": \"one two\", \"completion\": \" three four five six seven\"}\n")
        .unwrap();
    let whole = ok(&words("sft", &data, &[]));
    let eos = "<|im_end|>";
    assert!(whole.contains("one two«"), "{whole}");
    let learned = whole.split('«').next_back().unwrap().split('»').next().unwrap();
    assert!(
        learned.ends_with("five six seven") || learned.contains(&format!("seven{eos}")[..5]),
        "{learned}"
    );
    let cut = ok(&words("sft", &data, &["--max_length=12"]));
    assert!(cut.contains('~') && cut.contains("cut off"), "{cut}");
    let page = root.path().join("page.html");
    let said = burnish()
        .args(words("sft", &data, &["--max_length=12", &format!("--html={}", page.display())]))
        .output()
        .unwrap();
    assert!(stderr(&said).contains("the page is"), "{}", stderr(&said));
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["<b>", "<i>", "<s>", "max_length", "<svg", "default-src 'none'"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("<script") && !page.contains("http:") && !page.contains("https:"));
    // Nothing fits: the rows are shown all the same, and the command says that there would be no run.
    let said = burnish().args(words("sft", &data, &["--max_length=3"])).output().unwrap();
    assert!(!said.status.success() && stderr(&said).contains("max_length"), "{}", stderr(&said));
    assert!(String::from_utf8_lossy(&said.stdout).contains("no run"));
}

#[test]
fn what_is_odd_is_found_before_and_in_the_run() {
    let root = tempfile::tempdir().unwrap();
    let (data, eval) = (root.path().join("rows.jsonl"), root.path().join("eval.jsonl"));
    let row = |answer: &str| format!("{{\"prompt\": \"one\", \"completion\": \"{answer}\"}}\n");
    std::fs::write(&data, format!("{}{}{}", row("two"), row("three"), row("two"))).unwrap();
    std::fs::write(&eval, row("three")).unwrap();
    let eval = format!("--eval_dataset_name={}", eval.display());
    let found =
        ["1 of 3 rows came before (first: row 3 is row 1)", "1 of 1 rows to evaluate on are trained on"];
    let shown = ok(&words("sft", &data, &[&eval]));
    for part in found {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let out = format!("--output_dir={}", root.path().join("out").display());
    let more =
        [&eval, "--eval_strategy=steps", "--eval_steps=1", "--max_steps=1", "--save_strategy=no", &out];
    let said = burnish().args(&words("sft", &data, &more)[1..]).output().unwrap();
    assert!(said.status.success(), "{}", stderr(&said));
    for part in found {
        assert!(stderr(&said).contains(part), "{part} in {}", stderr(&said));
    }
}

#[test]
fn every_trainer_shows_its_rows() {
    for (trainer, file, parts) in [
        ("sft", "prompt_completion.jsonl", &["text:"][..]),
        ("dpo", "preference.jsonl", &["chosen:", "rejected:"]),
        ("orpo", "preference.jsonl", &["chosen:", "rejected:"]),
        ("reward", "preference.jsonl", &["chosen:", "scored"]),
        ("kto", "preference.jsonl", &["undesirable:"]),
        ("grpo", "prompt_completion.jsonl", &["prompt:", "sampled after"]),
    ] {
        let shown = ok(&words(trainer, &rows(file), &["--show_rows=2"]));
        for part in parts.iter().chain(&["line 1,", "line 2,"]) {
            assert!(shown.contains(part), "{trainer}: {part} in {shown}");
        }
        assert!(!shown.contains("line 3,"), "{trainer}: {shown}");
    }
    fails(&words("dpo", &rows("prompt_completion.jsonl"), &[]), &["preference", "chosen"]);
    fails(&words("plan", &rows("prompt_completion.jsonl"), &[]), &["plan", "sft|dpo"]);
    fails(&words("sft", &rows("prompt_completion.jsonl"), &["--show_rows=9999"]), &["show_rows", "1000"]);
}

/// Escape codes, tags and marks of writing direction in rows do nothing to a terminal or a browser.
#[test]
fn hostile_rows_are_shown_as_text() {
    let root = tempfile::tempdir().unwrap();
    let (data, page) = (root.path().join("rows.jsonl"), root.path().join("page.html"));
    std::fs::write(&data, "{\"text\": \"\\u001b[2J<script>alert(1)</script>\\u202e\"}\n").unwrap();
    let shown = ok(&words("sft", &data, &[&format!("--html={}", page.display())]));
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'), "{shown:?}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
}
