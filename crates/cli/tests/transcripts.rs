//! Transcripts on the pages of docs/: their commands run as they stand, and say what the page says.
//!
//! A block marked `console` has commands behind `$ ` (and `> `, where one goes on) and what they print, standard error
//! too; the blocks of a page are one session of a shell, in a folder with `examples`. A line `...` stands for any lines,
//! `...` within a line for any text.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The most that a page's session may take.
const LIMIT: Duration = Duration::from_secs(300);
/// The port that pages name, for which a free one is put.
const PORT: &str = "8000";
/// What stands before the number of a command whose output begins.
const MARK: &str = "@@ command ";

/// A command of a page with what it prints.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    expected: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.split("\n```console\n").skip(1) {
        let block = block.split("\n```").next().unwrap();
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), expected: Vec::new() });
                continue;
            }
            let step = steps.last_mut().expect("a block begins with a command");
            match line.strip_prefix("> ").filter(|_| step.expected.is_empty()) {
                Some(more) => step.command = format!("{}\n{more}", step.command),
                None => step.expected.push(line.to_owned()),
            }
        }
    }
    steps
}

fn is_line(expected: &str, got: &str) -> bool {
    let mut parts = expected.split("...");
    let Some(mut rest) = got.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn is_output(expected: &[String], got: &[&str]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((any, rest)) if any == "..." => (0..=got.len()).any(|skipped| is_output(rest, &got[skipped..])),
        Some((line, rest)) => {
            got.first().is_some_and(|first| is_line(line, first)) && is_output(rest, &got[1..])
        }
    }
}

/// Runs a page's commands; what each printed.
fn said(steps: &[Step], port: u16) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join(".bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_burnish"), bin.join("burnish")).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap();
    std::os::unix::fs::symlink(examples, root.path().join("examples")).unwrap();
    let mut script = String::from("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n");
    for (number, step) in steps.iter().enumerate() {
        let command = step.command.replace(PORT, &port.to_string());
        script += &format!("printf '\\n{MARK}%d\\n' {number}\n{command}\n");
    }
    fs::write(root.path().join(".session"), script).unwrap();
    let output = root.path().join(".output");
    let out = File::create(&output).unwrap();
    let mut shell = Command::new("bash");
    shell.arg(".session").current_dir(root.path()).stdin(Stdio::null());
    shell.stdout(out.try_clone().unwrap()).stderr(out);
    shell.env("ACCELERATE_MIXED_PRECISION", "no");
    shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let (mut shell, began) = (shell.spawn().unwrap(), Instant::now());
    while shell.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            shell.kill().unwrap();
            panic!("still running after {LIMIT:?}:\n{}", fs::read_to_string(&output).unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = fs::read_to_string(&output).unwrap();
    let mark = format!("\n{MARK}");
    let parts = output.split(&mark).skip(1);
    parts.map(|part| part.split_once('\n').map_or("", |(_, said)| said).to_owned()).collect()
}

/// Runs the transcripts of a page, if programs that it needs are here.
fn runs(name: &str, needs: &[&str]) {
    if let Some(absent) = needs.iter().find(|name| Command::new(name).arg("--version").output().is_err()) {
        println!("no {absent} on this machine: docs/{name} is not run");
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let steps = steps(&fs::read_to_string(page).unwrap());
    assert!(!steps.is_empty(), "docs/{name} has no transcripts");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let said = said(&steps, port);
    assert_eq!(said.len(), steps.len(), "the session ended early: {said:#?}");
    let differs = |(step, said): (&Step, String)| {
        let said = said.replace(&port.to_string(), PORT);
        let got: Vec<&str> = said.trim_end().lines().collect();
        let expected = step.expected.join("\n");
        let wrong = format!("docs/{name}: $ {}\nsays\n{said}\nexpected\n{expected}\n", step.command);
        (!is_output(&step.expected, &got)).then_some(wrong)
    };
    let wrong: Vec<String> = steps.iter().zip(said).filter_map(differs).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_steps_go_as_they_are_written() {
    runs("first-steps.md", &["bash", "curl"]);
}

#[test]
fn every_page_with_transcripts_is_run() {
    let run = ["first-steps.md"];
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".md") && fs::read_to_string(&path).unwrap().contains("\n```console\n") {
            assert!(run.contains(&name.as_str()), "docs/{name} has transcripts that no test runs");
        }
    }
}

#[test]
fn what_is_written_is_compared_with_what_is_said() {
    let page = "\n```console\n$ a <<'E'\n> b\n> E\nx ... y\n...\nz\n$ c\n```\n";
    let found = steps(page);
    assert_eq!(found[0].command, "a <<'E'\nb\nE");
    assert!(is_output(&found[0].expected, &["x 1 y", "more", "z"]));
    assert!(is_output(&found[0].expected, &["x  y", "z"]));
    for wrong in [&["x 1 y"][..], &["x 1", "z"], &["x 1 y", "z", "w"], &["w", "x 1 y", "z"]] {
        assert!(!is_output(&found[0].expected, wrong), "{wrong:?}");
    }
    assert!(is_output(&found[1].expected, &[]) && !is_output(&found[1].expected, &["x"]));
}
