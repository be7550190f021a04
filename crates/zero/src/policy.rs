//! `Policy`: the ZeRO stage, when gradients are reduced, what stays gathered.

use std::fmt;
use std::str::FromStr;

use burnish_core::{Coded, ErrorCode, UnknownWord, choices};
use serde::{Deserialize, Serialize};

/// A stage of ZeRO (Rajbhandari et al., arXiv:1910.02054): what of the training state is sharded over the
/// data-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Stage {
    /// Nothing: plain data parallelism.
    #[default]
    Zero,
    /// The optimizer's state.
    One,
    /// Gradients too.
    Two,
    /// Weights too.
    Three,
}

/// A number that is no stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown zero_stage `{0}`; expected 0, 1, 2 or 3")]
pub struct UnknownStage(pub String);

impl From<Stage> for u8 {
    fn from(stage: Stage) -> Self {
        stage as Self
    }
}

impl TryFrom<u8> for Stage {
    type Error = UnknownStage;

    fn try_from(number: u8) -> Result<Self, UnknownStage> {
        match number {
            0 => Ok(Self::Zero),
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            3 => Ok(Self::Three),
            _ => Err(UnknownStage(number.to_string())),
        }
    }
}

impl FromStr for Stage {
    type Err = UnknownStage;

    fn from_str(s: &str) -> Result<Self, UnknownStage> {
        s.parse::<u8>().map_err(|_| UnknownStage(s.to_owned())).and_then(Self::try_from)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u8::from(*self))
    }
}

choices! {
    /// When gradients are summed over ranks, under accumulation (stages 2 and 3; stages 0 and 1 always at the step).
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ReduceWhen: "zero_reduce", UnknownWord {
        /// In the last micro-batch: one reduction a step, and whole gradients in between.
        Step = "step",
        /// In every micro-batch: as many reductions, and only shards in between.
        MicroBatch = "micro_batch",
    }
}

/// How a model is spread over ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// What is sharded.
    pub stage: Stage,
    /// When gradients are summed.
    pub reduce: ReduceWhen,
    /// Stage 3: parameters with fewer elements stay whole on every rank.
    pub persist_below: usize,
    /// Stage 3: root units (embedding, head) stay gathered until the micro-batch ends.
    pub keep_root: bool,
    /// The most elements of a bucket; a larger parameter has one of its own.
    pub bucket_elements: usize,
    /// Stage 3: start gathering the next unit while one computes.
    pub prefetch: bool,
}

impl Policy {
    /// The defaults of a stage: one reduction a step (stage 3: one a micro-batch), parameters below 10 000 elements
    /// whole, roots kept, buckets of 16 Mi elements, prefetch.
    #[must_use]
    pub fn new(stage: Stage) -> Self {
        let reduce = if stage == Stage::Three { ReduceWhen::MicroBatch } else { ReduceWhen::Step };
        Self {
            stage,
            reduce,
            persist_below: 10_000,
            keep_root: true,
            bucket_elements: 16 << 20,
            prefetch: true,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new(Stage::Zero)
    }
}

impl Coded for UnknownStage {
    fn code(&self) -> ErrorCode {
        ErrorCode::BadValue
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn stages_are_numbers_in_text_and_files() {
        for (stage, number) in [(Stage::Zero, 0), (Stage::One, 1), (Stage::Two, 2), (Stage::Three, 3)] {
            assert_eq!(serde_json::to_string(&stage).unwrap(), number.to_string());
            assert_eq!(number.to_string().parse::<Stage>().unwrap(), stage);
            assert_eq!(stage.to_string(), number.to_string());
        }
        assert_eq!(
            "4".parse::<Stage>().unwrap_err().to_string(),
            "unknown zero_stage `4`; expected 0, 1, 2 or 3"
        );
        assert!("two".parse::<Stage>().is_err());
        assert!(serde_json::from_str::<Stage>("9").is_err());
    }
}
