//! What holds for every option and every command line.

use burnish_config::table::{COMMANDS, Raw};
use burnish_config::{Command, GenerateOptions, SftOptions};
use proptest::prelude::*;

use crate::scratch::Scratch;

#[test]
fn every_value_reads_back_as_itself() {
    let mut options = SftOptions::default();
    for (name, raw) in SftOptions::default().values() {
        if raw != Raw::Null {
            options.set(name, &raw).unwrap().unwrap();
        }
    }
    assert_eq!(options, SftOptions::default());
}

/// Words that may stand on a command line: real names, values, and noise.
fn word() -> impl Strategy<Value = String> {
    let names: Vec<String> = SftOptions::entries().iter().map(|entry| format!("--{}", entry.name)).collect();
    prop_oneof![
        proptest::sample::select(names),
        "(--)?(no-)?[a-z_-]{0,12}(=[ -~]{0,6})?",
        "-?[0-9]{1,20}(\\.[0-9]{1,3})?(e-?[0-9]{1,3})?",
        Just("null".to_owned()),
        Just("true".to_owned()),
        "\\PC{0,8}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_command_line_panics(words in proptest::collection::vec(word(), 0..12)) {
        // Either options or at least one fault with a message.
        if let Err(error) = SftOptions::parse(words.clone()) {
            prop_assert!(!error.faults.is_empty() && !error.to_string().is_empty());
        }
        if let Err(error) = GenerateOptions::parse(words) {
            prop_assert!(!error.faults.is_empty());
        }
    }

    #[test]
    fn no_file_panics(text in "(([a-z_]{1,10}|learning_rate|packing)(: | = |:)[ -~]{0,12}\n){0,6}") {
        let scratch = Scratch::new();
        for name in ["config.yaml", "config.toml"] {
            let path = scratch.write(name, &text);
            if let Err(error) = SftOptions::parse(["--config", path.as_str()]) {
                prop_assert!(!error.faults.is_empty());
            }
        }
    }

    #[test]
    fn numbers_keep_their_value(rate in 0.0f64..1.0, seed: u64, steps in 1u32..1_000_000) {
        let scratch = Scratch::new();
        let text = format!("learning_rate: {rate:e}\nseed: {seed}\nmax_steps: {steps}\n");
        let options = scratch.yaml(&text, &[]).unwrap().options;
        prop_assert_eq!(options.training.learning_rate, rate);
        prop_assert_eq!(options.training.seed, seed);
        prop_assert_eq!(options.training.max_steps, i64::from(steps));
    }
}

#[test]
fn names_are_unique_within_a_command() {
    for command in COMMANDS {
        let mut names: Vec<&str> = (command.entries)().iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{}", command.name);
    }
}
