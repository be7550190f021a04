//! Correction for a sampler that is not the policy being trained: another engine, another precision.

use std::str::FromStr;

use crate::error::range;
use crate::tally::Extreme;
use crate::{LossError, Metrics, Tally};

/// `vllm_importance_sampling_mode`: what the ratio of old policy and sampler is taken of, and what happens to one that
/// is out of bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorrectionMode {
    /// Per token, cut to the bounds.
    TokenTruncate,
    /// Per token, 0 outside of the bounds.
    TokenMask,
    /// Per sequence (the product over its tokens), cut to the bounds.
    SequenceTruncate,
    /// Per sequence, 0 outside of the bounds.
    #[default]
    SequenceMask,
}

impl FromStr for CorrectionMode {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        match text {
            "token_truncate" => Ok(Self::TokenTruncate),
            "token_mask" => Ok(Self::TokenMask),
            "sequence_truncate" => Ok(Self::SequenceTruncate),
            "sequence_mask" => Ok(Self::SequenceMask),
            _ => Err(LossError::Unknown {
                option: "vllm_importance_sampling_mode",
                got: text.to_owned(),
                expected: "token_truncate, token_mask, sequence_truncate, sequence_mask".to_owned(),
            }),
        }
    }
}

/// The sampler's importance ratios of a sequence: factors of its objective, without gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Correction {
    /// None: the sampler is the policy.
    #[default]
    None,
    /// One for the sequence.
    Sequence(f64),
    /// One per target.
    Tokens(Vec<f64>),
}

impl Correction {
    pub(super) fn of(&self, token: usize) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Sequence(ratio) => *ratio,
            Self::Tokens(ratios) => ratios[token],
        }
    }

    pub(super) fn ratios(&self) -> &[f64] {
        match self {
            Self::None => &[],
            Self::Sequence(ratio) => std::slice::from_ref(ratio),
            Self::Tokens(ratios) => ratios,
        }
    }
}

/// How sampled sequences are corrected (`vllm_importance_sampling_*`; the defaults are TRL's).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerCorrection {
    mode: CorrectionMode,
    least: Option<f64>,
    greatest: Option<f64>,
}

impl Default for SamplerCorrection {
    fn default() -> Self {
        Self { mode: CorrectionMode::SequenceMask, least: None, greatest: Some(3.0) }
    }
}

impl SamplerCorrection {
    /// With bounds `vllm_importance_sampling_clip_min` and `_max`.
    ///
    /// # Errors
    /// If a bound is negative, the lower is not below the upper, or a truncating mode has none.
    pub fn new(mode: CorrectionMode, least: Option<f64>, greatest: Option<f64>) -> Result<Self, LossError> {
        for (option, bound) in
            [("vllm_importance_sampling_clip_min", least), ("vllm_importance_sampling_clip_max", greatest)]
        {
            if let Some(bound) = bound {
                range(bound >= 0.0, option, bound, "a number of at least 0: ratios are not negative")?;
            }
        }
        if let (Some(least), Some(greatest)) = (least, greatest)
            && least >= greatest
        {
            return Err(LossError::Conflict {
                what: "`vllm_importance_sampling_clip_min` is not less than `vllm_importance_sampling_clip_max`",
                mend: "swap them or leave one out",
            });
        }
        let truncates = matches!(mode, CorrectionMode::TokenTruncate | CorrectionMode::SequenceTruncate);
        if truncates && least.is_none() && greatest.is_none() {
            return Err(LossError::Conflict {
                what: "`vllm_importance_sampling_mode` truncates to bounds that are not given",
                mend: "set `vllm_importance_sampling_clip_min`, `vllm_importance_sampling_clip_max` or both",
            });
        }
        Ok(Self { mode, least, greatest })
    }

    /// What [`SamplerCorrection::ratios`] tallies.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics {
            least: vec!["sampling/importance_sampling_ratio/min"],
            greatest: vec!["sampling/importance_sampling_ratio/max", "sampling/sampling_logp_difference/max"],
            ..Metrics::sums(&[
                "sampling/importance_sampling_ratio/mean",
                "sampling/sampling_logp_difference/mean",
            ])
        }
    }

    /// The ratios of a sequence, and metrics of how far the sampler is from the policy. A log-probability that the
    /// sampler could not give (NaN) corrects nothing.
    ///
    /// # Shapes
    /// - old, sampling: `[targets of the sequence]`, log-probabilities of the old policy and of the sampler
    ///
    /// # Errors
    /// If the lists differ in length.
    pub fn ratios(&self, old: &[f32], sampling: &[f32]) -> Result<(Correction, Tally), LossError> {
        if old.len() != sampling.len() {
            let (got, expected) = (sampling.len(), old.len());
            return Err(LossError::Length {
                what: "sampling log-probabilities",
                got,
                expected,
                of: "targets",
            });
        }
        let mut tally = Tally::new();
        let mut differences = Vec::with_capacity(old.len());
        for (&old, &sampling) in old.iter().zip(sampling) {
            let difference = f64::from(old) - f64::from(sampling);
            if difference.is_nan() {
                differences.push(0.0);
                continue;
            }
            tally.add("sampling/sampling_logp_difference/mean", difference.abs(), 1.0);
            tally.extreme("sampling/sampling_logp_difference/max", Extreme::Greatest(difference.abs()));
            differences.push(difference);
        }
        let correction = match self.mode {
            CorrectionMode::SequenceMask | CorrectionMode::SequenceTruncate => {
                Correction::Sequence(self.bounded(differences.iter().sum::<f64>().exp()))
            }
            CorrectionMode::TokenMask | CorrectionMode::TokenTruncate => {
                Correction::Tokens(differences.iter().map(|d| self.bounded(d.exp())).collect())
            }
        };
        for &ratio in correction.ratios() {
            tally.add("sampling/importance_sampling_ratio/mean", ratio, 1.0);
            tally.extreme("sampling/importance_sampling_ratio/min", Extreme::Least(ratio));
            tally.extreme("sampling/importance_sampling_ratio/max", Extreme::Greatest(ratio));
        }
        Ok((correction, tally))
    }

    fn bounded(&self, ratio: f64) -> f64 {
        let (least, greatest) = (self.least.unwrap_or(0.0), self.greatest.unwrap_or(f64::INFINITY));
        match self.mode {
            CorrectionMode::TokenTruncate | CorrectionMode::SequenceTruncate => ratio.clamp(least, greatest),
            CorrectionMode::TokenMask | CorrectionMode::SequenceMask => {
                if (least..=greatest).contains(&ratio) { ratio } else { 0.0 }
            }
        }
    }
}
