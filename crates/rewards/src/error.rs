//! What can go wrong while rewards are given.

use std::error::Error;

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
    /// A function from outside this crate failed.
    #[error("reward function {name}: {source}")]
    Function {
        /// Its name.
        name: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}
