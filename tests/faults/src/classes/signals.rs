//! Readers that go away, and signals at any moment.

use anyhow::Result;

use crate::lab::Lab;
use crate::random::Random;
use crate::running::Ended;
use crate::verdict::{Outcome, Verdict, judge};

/// Commands, which of standard output and standard error nobody reads, and the status that they may end with.
const CLOSED: [(&str, [bool; 2], &[i32]); 11] = [
    ("sft", [true, false], &[0]),
    ("sft", [false, true], &[0]),
    ("sft", [true, true], &[0]),
    ("score", [true, false], &[0, 141]),
    ("score", [false, true], &[0]),
    ("eval", [true, false], &[0, 141]),
    ("eval", [false, true], &[0]),
    ("generate", [true, false], &[0, 141]),
    ("plan", [true, false], &[0, 141]),
    ("help", [true, false], &[0, 141]),
    ("fails", [false, true], &[1]),
];

const STOPPED: [&str; 4] =
    ["plain", "--overwrite_output_dir", "--chat_template=", "--sample_prompt=it's a \"day\""];

pub(crate) fn written(_: &Lab) -> usize {
    CLOSED.len() + STOPPED.len()
}

pub(crate) fn attempt(lab: &Lab, attempt: usize, random: &mut Random) -> Result<Outcome> {
    let folder = lab.fresh()?;
    let out = folder.path().join("out");
    let rows = lab.rows("text.jsonl");
    if let Some((command, closed, codes)) = CLOSED.get(attempt) {
        let words = match *command {
            "sft" => lab.sft(&out, &["--max_steps=3"]),
            "eval" => lab.words("eval", &lab.model(), &rows, &["--max_length=48"]),
            "generate" => lab.words(
                "generate",
                &lab.model(),
                &lab.rows("prompt_completion.jsonl"),
                &["--max_new_tokens=4"],
            ),
            "plan" => [vec!["plan".into()], lab.sft(&out, &[])].concat(),
            "help" => vec!["sft".into(), "--help".into()],
            "fails" => vec!["sft".into()],
            _ => lab.score(&lab.model(), &rows, &[]),
        };
        let mut running = lab.running(words);
        running.closed = *closed;
        let ended = running.go()?;
        let what = format!("{command}, closed {closed:?}");
        let mut outcome = judge(what, &ended, &[], |_| None);
        outcome.verdict = match outcome.verdict {
            Verdict::Unclear | Verdict::Clear | Verdict::Right
                if ended.code.is_some_and(|code| codes.contains(&code)) =>
            {
                Verdict::Right
            }
            Verdict::Unclear | Verdict::Clear | Verdict::Right => Verdict::Wrong,
            other => other,
        };
        outcome.said = format!("status {:?}\n{}", ended.code, outcome.said);
        return Ok(outcome);
    }
    if let Some(more) = STOPPED.get(attempt.wrapping_sub(CLOSED.len())) {
        return stopped(lab, &out, more);
    }
    // Killed at any moment, gone on: as if never stopped.
    let steps = ["--max_steps=6", "--save_steps=2"];
    let after = random.below(600) as f64 / 1000.0;
    let mut running = lab.running(lab.sft(&out, &steps));
    running.signal = Some(("KILL", after));
    running.go()?;
    let saved = std::fs::read_dir(&out).is_ok_and(|mut all| {
        all.any(|e| {
            e.is_ok_and(|e| e.file_name().to_string_lossy().parse::<String>().is_ok_and(|n| whole(&n)))
        })
    });
    let more: &[&str] = if saved { &["--resume_from_checkpoint=true"] } else { &[] };
    let ended = lab.run(lab.sft(&out, &[&steps[..], more].concat()))?;
    let right = |_: &Ended| {
        let same = std::fs::read(out.join("adapter_model.safetensors")).ok().as_ref() == Some(&lab.trained);
        (!same).then(|| "another result than without a stop".to_owned())
    };
    let mut outcome = judge(format!("killed after {after} s"), &ended, &[], right);
    if outcome.verdict == Verdict::Clear {
        // There was a complete checkpoint, or nothing: both have to go on.
        outcome.verdict = Verdict::Lost;
    }
    Ok(outcome)
}

/// Whether a name is of a complete checkpoint.
fn whole(name: &str) -> bool {
    name.strip_prefix("checkpoint-").is_some_and(|step| step.parse::<u64>().is_ok())
}

/// Stopped by Ctrl-C: the line that is printed goes on.
fn stopped(lab: &Lab, out: &std::path::Path, more: &str) -> Result<Outcome> {
    let mut words = vec!["--max_steps=2000", "--save_strategy=no"];
    if more != "plain" {
        words.push(more);
    }
    let mut running = lab.running(lab.sft(out, &words));
    running.signal = Some(("INT", 1.5));
    let ended = running.go()?;
    let line =
        ended.stderr.lines().find_map(|line| line.strip_prefix("to go on: burnish ")).map(str::to_owned);
    let Some(line) = line else {
        return Ok(Outcome {
            what: format!("stopped, {more}"),
            verdict: Verdict::Wrong,
            said: format!("status {:?}, no line to go on\n{}", ended.code, ended.stderr),
            seconds: ended.seconds,
            peak: ended.peak,
        });
    };
    let mut again = lab.running(Vec::new());
    // The shell reads the line as a person would have it read.
    again.before = format!(
        "set -- {line} --max_steps=2000 --num_train_epochs=1; timeout -s INT 3 \"$0\" \"$@\"; set -- --version;"
    );
    let ended = again.go()?;
    let went_on = ended.stderr.contains("train on")
        && !ended.stderr.contains("error: ")
        && !ended.stderr.contains("step 1/");
    Ok(Outcome {
        what: format!("stopped, {more}"),
        verdict: if went_on { Verdict::Right } else { Verdict::Wrong },
        said: format!("{line}\n{}", ended.stderr),
        seconds: ended.seconds,
        peak: ended.peak,
    })
}
