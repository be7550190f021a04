//! `Rewards`: scores of a generation batch per reward function, weighted and summed.

use burnish_core::OptionFault;

use crate::LossError;

/// Rewards of all completions of a generation batch (all ranks), completions of a prompt one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rewards<'a> {
    /// Names of the functions.
    pub names: &'a [String],
    /// Their weights (`reward_weights`).
    pub weights: &'a [f64],
    /// `[completions, functions]`, row by row; NaN where a function declined.
    pub values: &'a [f64],
    /// Completions of a prompt (`num_generations`).
    pub group: usize,
}

impl Rewards<'_> {
    /// Number of completions.
    #[must_use]
    pub fn completions(&self) -> usize {
        self.values.len() / self.names.len().max(1)
    }

    pub(super) fn check(&self) -> Result<(), LossError> {
        let functions = self.names.len();
        if functions == 0 {
            return Err(LossError::Conflict {
                what: "there is no reward function",
                mend: "name at least one in `reward_funcs`",
            });
        }
        if self.weights.len() != functions {
            let got = self.weights.len();
            return Err(LossError::Length {
                what: "`reward_weights`",
                got,
                expected: functions,
                of: "reward functions",
            });
        }
        if self.group == 0 {
            let expected =
                "at least 1, and at least 2 in training: an advantage compares completions of one prompt";
            let (option, got, because) = ("num_generations", "0".to_owned(), "");
            return Err(OptionFault::Range { option, got, expected, because }.into());
        }
        let whole = self.group * functions;
        if !self.values.len().is_multiple_of(whole) {
            return Err(LossError::Length {
                what: "rewards",
                got: self.values.len(),
                expected: self.values.len().next_multiple_of(whole),
                of: "groups of `num_generations` completions by reward functions",
            });
        }
        Ok(())
    }

    pub(super) fn row(&self, completion: usize) -> &[f64] {
        &self.values[completion * self.names.len()..][..self.names.len()]
    }

    pub(super) fn column(&self, function: usize) -> Vec<f64> {
        (0..self.completions()).map(|i| self.row(i)[function]).collect()
    }

    pub(super) fn is_unscorable(&self, completion: usize) -> bool {
        self.row(completion).iter().all(|r| r.is_nan())
    }

    /// The weighted sum over the functions that scored; NaN where none did.
    pub(super) fn weighted(&self) -> Vec<f64> {
        self.weigh(|completion, function| self.row(completion)[function])
    }

    pub(super) fn weigh(&self, value: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        (0..self.completions())
            .map(|i| {
                if self.is_unscorable(i) {
                    return f64::NAN;
                }
                let parts: Vec<f64> = self.weights.iter().enumerate().map(|(k, w)| w * value(i, k)).collect();
                super::statistics::sum(&parts)
            })
            .collect()
    }
}
