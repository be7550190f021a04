//! Correction for a sampler that is not the policy being trained: another engine, another precision.

use burnish_core::{OptionFaults, choices};

use crate::metric_sums::Extreme;
use crate::{LossError, MetricSums, Metrics};

choices! {
    /// `vllm_importance_sampling_mode`: what the ratio of old policy and sampler is taken of, and what happens to one that
    /// is out of bounds.
    #[derive(Default)]
    pub enum CorrectionMode: "vllm_importance_sampling_mode", LossError {
        /// Per token, cut to the bounds.
        TokenTruncate = "token_truncate",
        /// Per token, 0 outside of the bounds.
        TokenMask = "token_mask",
        /// Per sequence (the product over its tokens), cut to the bounds.
        SequenceTruncate = "sequence_truncate",
        /// Per sequence, 0 outside of the bounds.
        #[default]
        SequenceMask = "sequence_mask",
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
        Self::faults(mode, least, greatest).first()?;
        Ok(Self { mode, least, greatest })
    }

    /// The rules that mode and bounds break, all of them.
    #[must_use]
    pub fn faults(mode: CorrectionMode, least: Option<f64>, greatest: Option<f64>) -> OptionFaults {
        const LEAST: &str = "vllm_importance_sampling_clip_min";
        const GREATEST: &str = "vllm_importance_sampling_clip_max";
        let mut faults = OptionFaults::default();
        for (option, bound) in [(LEAST, least), (GREATEST, greatest)] {
            if let Some(bound) = bound {
                let because = ": ratios are not negative";
                faults.range_because(
                    option,
                    bound >= 0.0,
                    bound,
                    "null or a number that is at least 0",
                    because,
                );
            }
        }
        if let (Some(least), Some(greatest)) = (least, greatest) {
            faults.conflict(
                LEAST,
                least >= greatest,
                format_args!("{GREATEST}: {greatest}"),
                "swap them or leave one out",
                format!("`{LEAST}` is not less than `{GREATEST}`; swap them or leave one out"),
            );
        }
        let truncates = matches!(mode, CorrectionMode::TokenTruncate | CorrectionMode::SequenceTruncate);
        faults.conflict(
            "vllm_importance_sampling_mode",
            truncates && least.is_none() && greatest.is_none(),
            "bounds that are not given",
            "set vllm_importance_sampling_clip_min, vllm_importance_sampling_clip_max or both",
            format!(
                "`vllm_importance_sampling_mode` truncates to bounds that are not given; set `{LEAST}`, `{GREATEST}` or both"
            ),
        );
        faults
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
    pub fn ratios(&self, old: &[f32], sampling: &[f32]) -> Result<(Correction, MetricSums), LossError> {
        if old.len() != sampling.len() {
            let (got, expected) = (sampling.len(), old.len());
            return Err(LossError::Length {
                what: "sampling log-probabilities",
                got,
                expected,
                of: "targets",
            });
        }
        let mut tally = MetricSums::new();
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
