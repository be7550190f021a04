//! `Start`: the values of fresh parameters of changes, as a function of the seed, the name and the index.

use std::ops::Range;

use burnish_core::random::Stream;

use super::Drawn;

/// How a fresh parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Every element is this.
    Constant(f32),
    /// Normal.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Uniform in `(-bound, bound)`.
    Uniform(f64),
    /// The rows of the base's table that it replaces.
    BaseRows,
    /// As PyTorch draws: a value that is never trained.
    Drawn(Drawn),
}

impl Start {
    /// Normal around zero.
    pub(crate) const fn normal(std: f64) -> Self {
        Self::Normal { mean: 0.0, std }
    }

    /// PyTorch's `kaiming_uniform_(a = sqrt 5)` of a matrix with so many columns.
    pub(crate) fn kaiming(columns: usize) -> Self {
        Self::Uniform(1.0 / (columns as f64).sqrt())
    }

    /// The values at `range` (indices into the row-major tensor): a function of the seed and the parameter's name. `None`
    /// where the base's values are needed.
    #[must_use]
    pub fn values(self, name: &str, seed: u64, range: Range<usize>) -> Option<Vec<f32>> {
        let stream = Stream::new(seed, name);
        Some(match self {
            Self::Constant(value) => vec![value; range.len()],
            Self::Normal { mean, std } => {
                range.map(|i| (f64::from(stream.normal(i as u64)) * std + mean) as f32).collect()
            }
            Self::Uniform(bound) => {
                let of = |i: usize| ((2.0 * f64::from(stream.uniform(i as u64)) - 1.0) * bound) as f32;
                range.map(of).collect()
            }
            Self::BaseRows => return None,
            Self::Drawn(drawn) => drawn.values(range),
        })
    }
}
