//! Options: every one of a command, with values of every type.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::OnceLock;

use anyhow::Result;

use crate::lab::{Lab, has_null};
use crate::random::Random;
use crate::verdict::{Outcome, judge};

const VALUES: [&str; 26] = [
    "",
    " ",
    "-1",
    "0",
    "1",
    "7",
    "0.5",
    "-0.5",
    "1e30",
    "1e-30",
    "nan",
    "inf",
    "-inf",
    "999999999",
    "99999999999999999999",
    "18446744073709551615",
    "true",
    "null",
    "[]",
    "{}",
    "{\"a\": 1}",
    "[1, 2]",
    "a,b",
    "../..",
    "/dev/zero",
    "\u{1b}[2Jx",
];

const COMMANDS: [(&str, &str); 6] = [
    ("sft", "text.jsonl"),
    ("dpo", "preference.jsonl"),
    ("kto", "unpaired.jsonl"),
    ("reward", "preference.jsonl"),
    ("grpo", "prompt_completion.jsonl"),
    ("score", "text.jsonl"),
];

/// Command lines, with whether they may succeed and what an error names.
const LINES: [(&[&str], bool, &str); 12] = [
    (&["sft", "\u{0}bytes"], false, "UTF-8"),
    (&["sft", "--config"], false, "config"),
    (&["sft", "--config=/dev/zero"], false, "/dev/zero"),
    (&["sft", "--config=/nowhere.yaml"], false, "/nowhere.yaml"),
    (&["nothing"], false, "nothing"),
    (&[], true, ""),
    (&["--version"], true, ""),
    (&["sft", "--threads=100000000"], false, "threads"),
    (&["sft", "--lora_r=99999999999", "--use_peft"], false, "lora_r"),
    (&["sft", "--nproc=100000"], false, "nproc"),
    (&["sft", "--ddp_timeout=1e30", "--nproc=2"], false, "ddp_timeout"),
    (&["grpo", "--rollout_timeout=inf"], false, "rollout_timeout"),
];

/// The options that a command's help lists.
fn names(lab: &Lab, command: usize) -> Vec<String> {
    static KNOWN: OnceLock<Vec<Vec<String>>> = OnceLock::new();
    let all = KNOWN.get_or_init(|| {
        let of = |(command, _): &(&str, &str)| {
            let help = lab
                .run(vec![(*command).into(), "--help".into(), "all".into()])
                .map(|e| e.stdout)
                .unwrap_or_default();
            let named = help.lines().filter_map(|line| line.strip_prefix("  --")?.split_whitespace().next());
            named.filter(|name| *name != "config").map(str::to_owned).collect()
        };
        COMMANDS.iter().map(of).collect()
    });
    all[command].clone()
}

pub(crate) fn written(_: &Lab) -> usize {
    LINES.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let output = format!("--output_dir={}", folder.path().join("out").display());
    let common = |command: &str, rows: &str| {
        let words = ["--per_device_train_batch_size=2", "--max_steps=1", "--max_length=48", &output];
        let rollouts = [
            "--reward_funcs=length_reward",
            "--num_generations=2",
            "--max_completion_length=8",
            "--max_steps=1",
            "--per_device_train_batch_size=2",
            &output,
        ];
        let more = match command {
            "score" => &words[2..3],
            "grpo" => &rollouts[..],
            _ => &words[..],
        };
        lab.words(command, &lab.model(), &lab.rows(rows), more)
    };
    if let Some((line, may, name)) = LINES.get(attempt) {
        let mut words: Vec<OsString> = match line {
            [command @ ("sft" | "grpo"), ..] if line.len() > 1 => {
                common(command, if *command == "grpo" { "prompt_completion.jsonl" } else { "text.jsonl" })
            }
            _ => line.iter().take(1).map(OsString::from).collect(),
        };
        let byte = |word: &&str| match word.strip_prefix('\u{0}') {
            Some(word) => OsString::from_vec([b"--run_name=\xff\xfe", word.as_bytes()].concat()),
            None => OsString::from(word),
        };
        words.extend(line.iter().skip(1).map(byte));
        let ended = lab.run(words)?;
        let may = *may;
        return Ok(judge(format!("{line:?}"), &ended, &[name], |_| (!may).then(|| "no error".to_owned())));
    }
    let command = random.below(COMMANDS.len());
    let (name, rows) = COMMANDS[command];
    let names = names(lab, command);
    anyhow::ensure!(names.len() > 4, "the help of a command names few options: {names:?}");
    let option = random.of_these(&names).clone();
    let value = *random.of_these(&VALUES);
    let mut words = common(name, rows);
    words.push(format!("--{option}={value}").into());
    let mut said = format!("{name} --{option}={value:?}");
    if random.below(3) == 0 {
        let (second, value) = (random.of_these(&names).clone(), *random.of_these(&VALUES));
        words.push(format!("--{second}={value}").into());
        said.push_str(&format!(" --{second}={value:?}"));
    }
    let mut running = lab.running(words);
    // Long runs that are asked for are not hangs: they say their steps.
    running.seconds = 20.0;
    running.before = format!("cd {};", folder.path().display());
    let mut ended = running.go()?;
    let asked = [
        "max_steps",
        "num_train_epochs",
        "max_new_tokens",
        "max_completion_length",
        "steps",
        "num_generations",
    ];
    if ended.hung && (asked.iter().any(|name| option.contains(name)) || ended.stderr.contains("step 2/")) {
        (ended.hung, ended.code) = (false, Some(0));
    }
    // An error may name the option, what it stands for, or a rule that it breaks with another.
    Ok(judge(said, &ended, &[], |e| has_null(&e.stdout)))
}
