//! Reward functions by name.

use crate::{Length, RepetitionPenalty, RewardError, RewardFunction, SoftOverlongPunishment, ThinkFormat};

/// The names that [`built_in`] knows.
pub const BUILT_IN: &[&str] =
    &["think_format_reward", SoftOverlongPunishment::NAME, RepetitionPenalty::NAME, Length::NAME];

/// Parameters of the built-in functions; the defaults are TRL's.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltInOptions {
    /// Tokens from which on [`SoftOverlongPunishment`] is -1.
    pub max_completion_len: usize,
    /// Tokens before that over which it falls.
    pub soft_punish_cache: usize,
    /// Tokens of an n-gram of [`RepetitionPenalty`].
    pub repetition_ngram_size: usize,
    /// What it tends to for a completion of one repeated token; not above 0.
    pub repetition_max_penalty: f64,
    /// What [`Length`] gives for one token.
    pub length_scale: f64,
}

impl Default for BuiltInOptions {
    fn default() -> Self {
        Self {
            max_completion_len: 1280,
            soft_punish_cache: 256,
            repetition_ngram_size: 3,
            repetition_max_penalty: -1.0,
            length_scale: -0.001,
        }
    }
}

/// The function of this name: TRL's, with or without the `get_` of those that have parameters.
///
/// # Errors
///
/// [`RewardError::Unknown`] if there is none, [`RewardError::Setting`] if a parameter of it is out of range.
pub fn built_in(name: &str, options: &BuiltInOptions) -> Result<Box<dyn RewardFunction>, RewardError> {
    Ok(match name {
        "think_format_reward" => Box::new(ThinkFormat),
        SoftOverlongPunishment::NAME | "get_soft_overlong_punishment" => {
            Box::new(SoftOverlongPunishment::new(options.max_completion_len, options.soft_punish_cache)?)
        }
        RepetitionPenalty::NAME | "get_repetition_penalty_reward" => {
            Box::new(RepetitionPenalty::new(options.repetition_ngram_size, options.repetition_max_penalty)?)
        }
        Length::NAME => Box::new(Length::new(options.length_scale)?),
        _ => return Err(RewardError::Unknown { name: name.to_owned(), known: BUILT_IN.to_vec() }),
    })
}
