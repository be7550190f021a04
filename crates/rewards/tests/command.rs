//! Programs that score: what they are told, and every way in which they fail.

use std::time::{Duration, Instant};

use burnish_rewards::{CommandReward, RewardError, RewardFunction, Sample};
use serde_json::{Map, Value, json};

fn start(script: &str, seconds: f64) -> CommandReward {
    let line = format!("sh -c '{script}'");
    CommandReward::start(&line, Duration::from_secs_f64(seconds)).unwrap()
}

/// Scores this many completions: "0", "1", ...
fn score(reward: &CommandReward, count: usize) -> Result<Vec<Option<f64>>, RewardError> {
    let (prompt, columns) = (json!("p"), Map::new());
    let completions: Vec<String> = (0..count).map(|i| i.to_string()).collect();
    let sample = |completion| Sample { prompt: &prompt, completion, completion_ids: &[], columns: &columns };
    reward.score(&completions.iter().map(|completion| sample(completion)).collect::<Vec<_>>())
}

/// Prints the completion's own text as its reward.
const ECHO: &str = r#"while read -r line; do line=${line#*completion\":\"}; echo "${line%%\"*}"; done"#;

#[test]
fn answers_come_in_order_over_several_batches() {
    let reward = start(ECHO, 20.0);
    for count in [3, 0, 1, 50] {
        let expected: Vec<Option<f64>> = (0..count).map(|i| Some(i as f64)).collect();
        assert_eq!(score(&reward, count).unwrap(), expected);
    }
}

#[test]
fn a_line_holds_the_columns_the_prompt_and_the_completion() {
    // The program keeps what it read beside its answer.
    let folder = std::env::temp_dir().join(format!("burnish-rewards-{}", std::process::id()));
    let reward = start(&format!("tee {} | while read -r line; do echo null; done", folder.display()), 20.0);
    let prompt = json!([{"role": "user", "content": "1 + 1?\nüber"}]);
    let columns = Map::from_iter([
        ("solution".to_owned(), json!("2")),
        // Not the row's own: TRL leaves these columns out as well.
        ("completion".to_owned(), json!("other")),
    ]);
    let sample = Sample { prompt: &prompt, completion: "two", completion_ids: &[4, 5], columns: &columns };
    assert_eq!(reward.score(&[sample]).unwrap(), [None]);
    let text = std::fs::read_to_string(&folder).unwrap();
    std::fs::remove_file(&folder).unwrap();
    let line: Value = serde_json::from_str(&text).unwrap();
    let completion = json!([{"role": "assistant", "content": "two"}]);
    assert_eq!(
        line,
        json!({"solution": "2", "prompt": prompt, "completion": completion, "completion_ids": [4, 5]})
    );
}

#[test]
fn numbers_nulls_and_objects_are_answers() {
    let reward = start(
        r#"for answer in 1 -2.5e-1 null "{\"reward\": 3}" "{\"reward\": null, \"why\": 1}"; do read -r line; echo "$answer"; done; read -r line"#,
        20.0,
    );
    assert_eq!(score(&reward, 5).unwrap(), [Some(1.0), Some(-0.25), None, Some(3.0), None]);
}

#[test]
fn a_batch_larger_than_every_pipe_does_not_block() {
    // Answers line by line, and all at the end of a batch that the program counts; 4 MB each way.
    let (prompt, columns) = (json!("p".repeat(4_000)), Map::new());
    let samples: Vec<Sample<'_>> =
        vec![Sample { prompt: &prompt, completion: "", completion_ids: &[], columns: &columns }; 1_000];
    let long = "0".repeat(4_000);
    for script in [
        format!("while read -r line; do echo 1.{long}; done"),
        format!("head -n 1000 >/dev/null; yes 1.{long} | head -n 1000; cat >/dev/null"),
    ] {
        assert_eq!(start(&script, 60.0).score(&samples).unwrap(), vec![Some(1.0); 1_000]);
    }
}

/// The error, and that the program is not asked again.
fn refused(reward: &CommandReward, count: usize) -> String {
    let refused = score(reward, count).unwrap_err().to_string();
    assert!(matches!(score(reward, 1), Err(RewardError::CommandStopped { .. })), "{refused}");
    refused
}

#[test]
fn every_failure_names_the_command_the_completion_and_the_mend() {
    for (script, seconds, words) in [
        (
            "read -r line; echo 1; echo to the log >&2; exit 3",
            20.0,
            vec!["status 3", "completion 2 of 3", "  to the log"],
        ),
        ("kill -9 $$", 20.0, vec!["signal: 9", "completion 1 of 3", "until its input ends"]),
        ("exec >&-; cat >/dev/null; sleep 30", 20.0, vec!["closed its standard output", "completion 1 of 3"]),
        (
            "read -r line; echo 1; sleep 30",
            0.3,
            vec!["completion 2 of 3", "0.3 seconds", "reward_command_timeout"],
        ),
        ("read -r a; read -r b; echo 1; echo 2; cat", 20.0, vec!["completion 3", "expected a finite number"]),
        ("echo loading; cat", 20.0, vec!["completion 1", "loading", "standard error"]),
        ("while read -r line; do echo NaN; done", 20.0, vec!["completion 1", "NaN", "finite"]),
        ("while read -r line; do echo 1e999; done", 20.0, vec!["completion 1", "1e999", "finite"]),
        ("while read -r line; do echo; done", 20.0, vec!["completion 1", "\"\""]),
        ("while read -r line; do echo true; done", 20.0, vec!["completion 1", "true"]),
        ("while read -r line; do echo 1; echo 1; done", 20.0, vec!["one line more", "\"1\""]),
    ] {
        let reward = start(script, seconds);
        let before = Instant::now();
        let refused = refused(&reward, 3);
        assert!(before.elapsed() < Duration::from_secs(5), "{script}: {:?}", before.elapsed());
        for word in words.into_iter().chain([script]) {
            // The line is printed with its quotes escaped; none of these scripts has any.
            assert!(refused.contains(word), "{script}: {word:?} is not in {refused}");
        }
    }
}

#[test]
fn lines_between_batches_are_refused() {
    let reward = start("read -r line; echo 1; sleep 0.3; echo 2; cat >/dev/null", 20.0);
    assert_eq!(score(&reward, 1).unwrap(), [Some(1.0)]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(refused(&reward, 1).contains("one line more"));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    for line in ["no-such-program-anywhere --x", "", "a 'b"] {
        let refused = CommandReward::start(line, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(refused.contains(&format!("{line:?}")), "{refused}");
    }
}

#[test]
fn the_program_ends_when_its_reward_does() {
    let path = std::env::temp_dir().join(format!("burnish-rewards-pid-{}", std::process::id()));
    let reward =
        start(&format!("echo $$ > {}; while read -r line; do echo 1; done; sleep 30", path.display()), 20.0);
    score(&reward, 1).unwrap();
    let pid = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let alive = || {
        let mut kill = std::process::Command::new("kill");
        kill.args(["-0", pid.trim()]).stderr(std::process::Stdio::null()).status().unwrap().success()
    };
    assert!(alive());
    drop(reward);
    assert!(!alive());
}

#[test]
fn ranks_take_turns() {
    let reward = start(ECHO, 30.0);
    std::thread::scope(|scope| {
        for count in [1, 7, 40] {
            let reward = &reward;
            scope.spawn(move || {
                for _ in 0..5 {
                    let expected: Vec<Option<f64>> = (0..count).map(|i| Some(i as f64)).collect();
                    assert_eq!(score(reward, count).unwrap(), expected);
                }
            });
        }
    });
}
