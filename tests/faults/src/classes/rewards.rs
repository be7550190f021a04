//! Reward commands that say nothing, too much, or nonsense.

use anyhow::Result;

use crate::lab::Lab;
use crate::random::Random;
use crate::verdict::{Outcome, judge};

/// Scripts, and whether a run with one may succeed.
const SCRIPTS: [(&str, bool); 22] = [
    ("exit 3", false),
    ("kill -9 $$", false),
    ("true", false),
    ("sleep 600", false),
    ("yes", false),
    ("cat /dev/zero", false),
    ("cat /dev/zero | tr '\\0' 'a'", false),
    ("yes >&2", false),
    ("while read l; do echo nan; done", false),
    ("while read l; do echo inf; done", false),
    ("while read l; do echo 1e999; done", false),
    ("while read l; do echo null; done", false),
    ("while read l; do echo '\"1\"'; done", false),
    ("while read l; do echo '[1]'; done", false),
    ("while read l; do echo '{}'; done", false),
    ("while read l; do echo; done", false),
    ("while read l; do echo 1; echo 1; done", false),
    ("read l; echo 1", false),
    ("while read l; do printf '1\\377\\n'; done", false),
    ("while read l; do printf '\\033[2Jx\\n'; done", false),
    ("while read l; do printf '%01000000d\\n' 1; done", false),
    ("exec <&-; sleep 600", false),
];

pub(crate) fn written(_: &Lab) -> usize {
    SCRIPTS.len() + 2
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, _: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let out = format!("--output_dir={}", folder.path().join("out").display());
    let (script, may) = SCRIPTS
        .get(attempt)
        .copied()
        .unwrap_or(("while read l; do echo '{\"reward\": 1}'; echo; done", false));
    let command = match attempt - attempt.min(SCRIPTS.len()) {
        1 => "/nowhere/command".to_owned(),
        _ => {
            let path = folder.path().join("reward.sh");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
            format!("sh {}", path.display())
        }
    };
    let words = [
        "--per_device_train_batch_size=2",
        "--num_generations=2",
        "--max_completion_length=8",
        "--max_steps=2",
        "--save_strategy=no",
        "--reward_command_timeout=4",
        &format!("--reward_command={command}"),
        &out,
    ];
    let ended = lab.run(lab.words("grpo", &lab.model(), &lab.rows("prompt_completion.jsonl"), &words))?;
    Ok(judge(script, &ended, &["reward", "no reward function"], |_| (!may).then(|| "no error".to_owned())))
}
