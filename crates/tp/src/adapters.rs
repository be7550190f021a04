//! `AdapterReduce`: the place where partial sums of an adapter on a tensor-parallel layer are reduced.

use std::fmt;

use burnish_core::{UnknownWord, choices};

choices! {
    /// How the sums of adapters are chosen.
    #[derive(Default)]
    pub enum AdapterReduce: "tp_adapter_reduce", UnknownWord {
        /// By the elements that a step moves.
        #[default]
        Auto = "auto",
        /// [`AdapterSum::Fused`] everywhere.
        Fused = "fused",
        /// [`AdapterSum::RankR`] everywhere.
        RankR = "rank_r",
    }
}

/// What ranks sum of an adapter on a divided layer, beside the layer's own sum.
///
/// | | row-parallel (`A` divided, `B` whole) | column-parallel (`A` whole, `B` divided) |
/// |---|---|---|
/// | fused | the gradient of `B`, once a step | the gradient of `A`, once a step |
/// | rank r | `A x` `[tokens, r]` in every forward | the gradient of `A x` `[tokens, r]` in every backward |
///
/// Both give the same numbers up to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdapterSum {
    /// The adapter runs inside its layer, whose sum serves both; the gradient of the whole factor is an addend.
    #[default]
    Fused,
    /// The adapter's activations of rank r are summed on their own, as PEFT does; every gradient is complete.
    RankR,
}

impl fmt::Display for AdapterSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fused => "fused",
            Self::RankR => "rank_r",
        })
    }
}

/// The sums of a model's adapters by the direction of their layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AdapterSums {
    /// Of column-parallel layers.
    pub colwise: AdapterSum,
    /// Of row-parallel layers.
    pub rowwise: AdapterSum,
}

impl AdapterReduce {
    /// The sum of adapters whose whole factor is `[r, features]`, when a step puts `tokens` rows of r elements through a
    /// sum of activations (the tokens of all its micro-batches; twice, where a forward with the sum runs again).
    ///
    /// Per unit of r that sum moves `tokens` elements a step, the fused one `features`. Of equals the fused one: it is
    /// one call a step.
    ///
    /// ```
    /// use burnish_tp::{AdapterReduce, AdapterSum};
    ///
    /// assert_eq!(AdapterReduce::Auto.choose(8192, 4096), AdapterSum::Fused);
    /// assert_eq!(AdapterReduce::Auto.choose(512, 4096), AdapterSum::RankR);
    /// assert_eq!(AdapterReduce::Fused.choose(512, 4096), AdapterSum::Fused);
    /// ```
    #[must_use]
    pub fn choose(self, tokens: usize, features: usize) -> AdapterSum {
        match self {
            Self::Auto if tokens < features => AdapterSum::RankR,
            Self::Auto | Self::Fused => AdapterSum::Fused,
            Self::RankR => AdapterSum::RankR,
        }
    }
}
