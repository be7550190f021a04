//! Errors of reward functions.

use std::error::Error;
use std::io;

use burnish_core::{Coded, ErrorCode};

/// A reward function that does not exist or cannot score.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// A name that no built-in function has.
    #[error(
        "there is no reward function {name:?}; the built-in ones are {}, other programs go through --reward_command",
        known.join(", ")
    )]
    Unknown {
        /// The name as given.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// A setting outside its range.
    #[error("{function}: `{setting}` is {got}; expected {expected}")]
    Setting {
        /// The reward function.
        function: &'static str,
        /// The setting.
        setting: &'static str,
        /// What was given.
        got: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A column that a reward function needs and a row lacks, or has in another type.
    #[error(
        "{function}: column {column:?} of the row of completion {sample} is {got}; expected {expected}: add the column to \
         the data set or take the function out of reward_funcs"
    )]
    Column {
        /// The reward function.
        function: String,
        /// The column.
        column: &'static str,
        /// Which completion of the batch, counted from 1.
        sample: usize,
        /// What is there: `missing`, or the value's beginning.
        got: String,
        /// What is needed.
        expected: &'static str,
    },
    /// A command line that cannot be split into words.
    #[error(
        "--reward_command {line:?}: {reason}; give a program and its arguments, with quotes as in a shell"
    )]
    CommandLine {
        /// The line.
        line: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A program that does not start.
    #[error(
        "--reward_command {line:?}: cannot start the program: {source}; give its path, or a name that PATH finds"
    )]
    CommandStart {
        /// The line.
        line: String,
        /// The system's words.
        source: io::Error,
    },
    /// A program that ended before it had answered everything.
    #[error(
        "--reward_command {line:?}: the program {status} before it answered completion {completion} of {completions}; it has \
         to answer every line it reads and to go on until its input ends{}{said}",
        if said.is_empty() { "" } else { "; its last words:" }
    )]
    CommandEnded {
        /// The line.
        line: String,
        /// How it ended.
        status: String,
        /// Which completion of the batch had no answer, counted from 1.
        completion: usize,
        /// How many the batch has.
        completions: usize,
        /// The last lines it wrote to standard error, each after a line break.
        said: String,
    },
    /// A program that takes too long, or waits for more than it was asked.
    #[error(
        "--reward_command {line:?}: no answer to completion {completion} of {completions} within {seconds} seconds; the \
         program has to write one line per line it reads and to flush it, or raise reward_command_timeout"
    )]
    CommandTimeout {
        /// The line.
        line: String,
        /// The time it had for the batch.
        seconds: f64,
        /// Which completion of the batch had no answer, counted from 1.
        completion: usize,
        /// How many the batch has.
        completions: usize,
    },
    /// An answer that is not a reward.
    #[error(
        "--reward_command {line:?}: the answer to completion {completion} is {got:?}; expected a finite number, null, or an \
         object with such a `reward`: write anything else to standard error"
    )]
    CommandAnswer {
        /// The line.
        line: String,
        /// Which completion of the batch, counted from 1.
        completion: usize,
        /// The answer's beginning.
        got: String,
    },
    /// An answer that nobody asked for.
    #[error(
        "--reward_command {line:?}: {got:?} is one line more than there were completions; the program has to write one line \
         per line it reads: write anything else to standard error"
    )]
    CommandExtra {
        /// The line.
        line: String,
        /// The beginning of what it wrote.
        got: String,
    },
    /// A program that was asked again after it had failed.
    #[error(
        "--reward_command {line:?}: the program was stopped as it had failed; see the error before this one"
    )]
    CommandStopped {
        /// The line.
        line: String,
    },
    /// A function from outside this crate failed.
    #[error("reward function {name}: {source}")]
    Function {
        /// Its name.
        name: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl Coded for RewardError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } | Self::Column { .. } | Self::Function { .. } => ErrorCode::BadReward,
            Self::Setting { .. } => ErrorCode::BadValue,
            Self::CommandLine { .. }
            | Self::CommandStart { .. }
            | Self::CommandEnded { .. }
            | Self::CommandTimeout { .. }
            | Self::CommandAnswer { .. }
            | Self::CommandExtra { .. }
            | Self::CommandStopped { .. } => ErrorCode::RewardCommand,
        }
    }
}
