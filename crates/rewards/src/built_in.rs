//! Reward functions by name.

use crate::{
    Accuracy, CosineScaled, ExactMatch, FinalAnswer, Length, ReasoningAccuracy, RepetitionPenalty,
    RewardError, RewardFunction, SoftOverlongPunishment, ThinkFormat,
};

/// The names that [`built_in`] knows.
pub const BUILT_IN: &[&str] = &[
    Accuracy::NAME,
    ReasoningAccuracy::NAME,
    FinalAnswer::NAME,
    ExactMatch::NAME,
    "think_format_reward",
    CosineScaled::NAME,
    RepetitionPenalty::NAME,
    SoftOverlongPunishment::NAME,
    Length::NAME,
];

/// Parameters of the built-in functions; the defaults are TRL's where it has any.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltInOptions {
    /// Tokens from which on [`SoftOverlongPunishment`] is -1.
    pub overlong_max_completion_len: usize,
    /// Tokens before that over which it falls.
    pub overlong_soft_punish_cache: usize,
    /// Where reasoning ends, for [`ReasoningAccuracy`].
    pub reasoning_delimiters: Vec<String>,
    /// The function of this kind.
    pub cosine: CosineScaled,
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
            overlong_max_completion_len: 1280,
            overlong_soft_punish_cache: 256,
            reasoning_delimiters: vec!["</think>".to_owned()],
            cosine: CosineScaled::default(),
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
        Accuracy::NAME => Box::new(Accuracy),
        ReasoningAccuracy::NAME => Box::new(ReasoningAccuracy::new(options.reasoning_delimiters.clone())),
        FinalAnswer::NAME => Box::new(FinalAnswer),
        ExactMatch::NAME => Box::new(ExactMatch),
        CosineScaled::NAME | "get_cosine_scaled_reward" => Box::new(options.cosine.checked()?),
        "think_format_reward" => Box::new(ThinkFormat),
        SoftOverlongPunishment::NAME | "get_soft_overlong_punishment" => {
            Box::new(SoftOverlongPunishment::new(
                options.overlong_max_completion_len,
                options.overlong_soft_punish_cache,
            )?)
        }
        RepetitionPenalty::NAME | "get_repetition_penalty_reward" => {
            Box::new(RepetitionPenalty::new(options.repetition_ngram_size, options.repetition_max_penalty)?)
        }
        Length::NAME => Box::new(Length::new(options.length_scale)?),
        _ => return Err(RewardError::Unknown { name: name.to_owned(), known: BUILT_IN.to_vec() }),
    })
}
