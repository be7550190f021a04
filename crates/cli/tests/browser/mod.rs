//! Pages that the program writes, in a real browser: nothing is loaded, nothing complains, and large ones are quick.

mod chromium;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::program::{model, ok, rows};
use chromium::Chromium;

/// The largest page.
const MOST_BYTES: u64 = 2 << 20;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Opens a page and expects that it keeps to itself; how often, to see what it takes when nothing disturbs it.
fn is_sound(browser: &mut Chromium, page: &Path, times: usize) -> Duration {
    let bytes = std::fs::metadata(page).unwrap().len();
    assert!(bytes <= MOST_BYTES, "{} has {bytes} bytes", page.display());
    let mut least = Duration::MAX;
    for _ in 0..times {
        let seen = browser.open(page);
        assert!(seen.requests.is_empty() && seen.complaints.is_empty(), "{}: {seen:?}", page.display());
        least = least.min(seen.first_paint);
    }
    let wider = browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(wider, 0, "{} is wider than the window", page.display());
    println!("{}: {bytes} bytes, first paint after {least:?}", page.display());
    least
}

/// A run of 10,000 steps with the figures that GRPO logs, evaluations and completions.
fn long_run(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let names = ["loss", "grad_norm", "learning_rate", "mean_token_accuracy", "entropy", "tokens_per_second"];
    let more = ["reward", "reward_std", "kl", "completions/mean_length", "step_time", "peak_memory_bytes"];
    let (mut lines, mut samples) = (String::new(), String::new());
    for step in 1..=10_000_u32 {
        let mut record = serde_json::json!({"step": step, "epoch": f64::from(step) / 1000.0});
        for (place, name) in names.iter().chain(&more).enumerate() {
            let wave = (f64::from(step) / (20.0 + place as f64)).sin();
            record[name] = (3.0 / f64::from(step).sqrt() + 0.1 * wave + 1.0).into();
        }
        if step % 100 == 0 {
            record["eval_loss"] = (3.0 / f64::from(step).sqrt()).into();
            let text = "<b>word</b> & more ".repeat(20);
            let sample =
                serde_json::json!({"step": step, "prompt": text, "completion": text, "rewards": {"a": 1.0}});
            let _ = writeln!(samples, "{sample}");
        }
        let _ = writeln!(lines, "{record}");
    }
    std::fs::write(folder.join("metrics.jsonl"), lines).unwrap();
    std::fs::write(folder.join("completions.jsonl"), samples).unwrap();
}

#[test]
fn the_pages_of_runs_load_nothing_and_are_painted_at_once() {
    let Some(mut browser) = Chromium::start() else { return };
    let root = tempfile::tempdir().unwrap();
    let (a, b, page) = (root.path().join("a"), root.path().join("b"), root.path().join("page.html"));
    long_run(&a);
    long_run(&b);
    let name = |path: &Path| path.display().to_string();
    ok(&words(&["watch", &name(&a), "--html", &name(&page)]));
    let painted = is_sound(&mut browser, &page, 3);
    assert!(painted < Duration::from_secs(1), "first paint after {painted:?}");
    assert!(browser.value("document.querySelectorAll('svg').length").as_u64().unwrap() >= 10);
    // Text of completions is text, and a page has no script to be changed by it.
    assert_eq!(browser.value("document.querySelectorAll('td b, script').length"), 0);
    assert!(browser.value("document.body.innerText").as_str().unwrap().contains("<b>word</b> & more"));
    // A line is drawn where its numbers are: the curve's box is not empty.
    let flat = "[...document.querySelectorAll('svg')].filter(s => ![...s.querySelectorAll('path, polyline')]\
                .some(p => p.getBoundingClientRect().height > 5)).length";
    assert_eq!(browser.value(flat), 0);

    ok(&words(&["compare", &name(&a), &name(&b), "--html", &name(&page)]));
    let painted = is_sound(&mut browser, &page, 3);
    assert!(painted < Duration::from_secs(1), "first paint after {painted:?}");
}

#[test]
fn the_page_of_rows_loads_nothing() {
    let Some(mut browser) = Chromium::start() else { return };
    let root = tempfile::tempdir().unwrap();
    let page = root.path().join("rows.html");
    let model = format!("--model_name_or_path={}", model().display());
    let data = format!("--dataset_name={}", rows("prompt_completion.jsonl").display());
    let html = format!("--html={}", page.display());
    ok(&words(&["data", "sft", &model, &data, &html, "--show_rows=200"]));
    is_sound(&mut browser, &page, 1);
    assert!(browser.value("document.querySelectorAll('.row b').length").as_u64().unwrap() > 10);
    assert_eq!(browser.value("document.querySelectorAll('script').length"), 0);
}
