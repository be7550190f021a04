//! The program on a terminal: bars, colours, and no escape code where none may be.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{burnish, model, rows, stderr};

const ESCAPE: char = '\u{1b}';

/// What the program writes on a terminal with `typed` at its keyboard; `None`, and said so, on a machine without `script`.
fn on_a_terminal(words: &[&str], typed: &str, variables: &[(&str, &str)]) -> Option<String> {
    let quoted = |word: &&str| format!("'{word}'");
    let line = words.iter().map(quoted).collect::<Vec<_>>().join(" ");
    let line = format!("'{}' {line}", env!("CARGO_BIN_EXE_burnish"));
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &line, "/dev/null"]).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    script
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ok(mut script) = script.spawn() else {
        println!("no script on this machine (Debian: bsdutils): not run");
        return None;
    };
    script.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", stderr(&output));
    Some(said)
}

/// A file of so many rows.
fn many_rows(root: &Path, many: usize) {
    let own = fs::read_to_string(rows("prompt_completion.jsonl")).unwrap();
    let path = root.join("many.jsonl");
    let times = many / own.lines().count();
    fs::write(path, own.repeat(times)).unwrap();
}

#[test]
fn long_work_has_a_bar_on_a_terminal_alone_and_colours_when_they_are_wanted() {
    let root = tempfile::tempdir().unwrap();
    let (model, many) = (model().display().to_string(), root.path().join("many.jsonl").display().to_string());
    let words = ["data", "sft", "--model_name_or_path", &model, "--dataset_name", &many, "--show_rows=1"];
    // What takes more than a second is a machine's to say.
    let mut said = String::new();
    for count in [60_000, 240_000, 960_000] {
        many_rows(root.path(), count);
        let Some(now) = on_a_terminal(&words, "", &[]) else { return };
        said = now;
        if said.contains("tokenising ") {
            break;
        }
    }
    assert!(said.contains("tokenising ") && said.contains(" rows/s"), "{said}");
    assert!(said.contains("\u{1b}[1m"), "no colour: {said}");
    // The last of the bar is that it is taken away.
    assert!(said.rfind("tokenising").unwrap() < said.rfind("sft on ").unwrap(), "{said}");

    let said = on_a_terminal(&words, "", &[("NO_COLOR", "1")]).unwrap();
    let styled = |part: &str| part.chars().take_while(|c| c.is_ascii_digit() || *c == ';').count();
    let colours = said.split("\u{1b}[").skip(1).filter(|part| part[styled(part)..].starts_with('m'));
    assert_eq!(colours.filter(|part| !part.starts_with("0m") && !part.starts_with('m')).count(), 0, "{said}");

    let piped = burnish().args(words).output().unwrap();
    let said = [String::from_utf8_lossy(&piped.stdout).into_owned(), stderr(&piped)].concat();
    assert!(piped.status.success() && !said.contains("tokenising") && !said.contains(ESCAPE), "{said}");
}

#[test]
fn a_conversation_shows_its_own_escape_codes_as_such() {
    let model = model().display().to_string();
    let Some(said) = on_a_terminal(&["chat", &model, "--max_new_tokens=4"], "a b\r/exit\r", &[]) else {
        return;
    };
    assert!(said.contains(" a second, after "), "{said}");
    assert!(!said.contains("\\u{1b}") && said.contains("\u{1b}[2m["), "{said}");
}
