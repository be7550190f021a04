//! LoHa (Hyeon-Woo et al. 2022, arXiv:2108.06098): the product, by elements, of two matrices of low rank is added.

use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::method::{Method, linear, no_dropout, site};
use crate::{Change, ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, PeftError, Start};

/// The keys of [`LoraConfig`] that LoHa and LoKr have.
pub(crate) const LYCORIS: &[&str] = &[
    "alpha_pattern",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "modules_to_save",
    "r",
    "rank_pattern",
];

/// What a LoHa configuration says beyond which modules and ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Loha {
    /// The scale's numerator.
    pub alpha: Number,
    /// Probability of dropping a row of the change in training: only 0.
    pub rank_dropout: f64,
    /// Probability of leaving the change of a module out in training: only 0.
    pub module_dropout: f64,
    /// Of convolutions.
    pub use_effective_conv2d: bool,
    /// Whether one factor starts at zero; all random otherwise.
    pub init_weights: bool,
}

impl Default for Loha {
    fn default() -> Self {
        Self {
            alpha: 8.into(),
            rank_dropout: 0.0,
            module_dropout: 0.0,
            use_effective_conv2d: false,
            init_weights: true,
        }
    }
}

impl Method for Loha {
    const SHARED: &'static [&'static str] = LYCORIS;

    fn validate(&self, _config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        no_dropout("rank_dropout", self.rank_dropout, fresh)?;
        no_dropout("module_dropout", self.module_dropout, fresh)
    }

    fn site(&self, module: &ModuleInfo, rank: usize, alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type LOHA: name linear layers")?;
        let part = |suffix: &str, outer: bool, zero: bool| {
            let (shape, follows) = if outer {
                ([module.out, rank], Follows::Outputs)
            } else {
                ([rank, module.input], Follows::Inputs)
            };
            let start = if zero { Start::Constant(0.0) } else { Start::kaiming(shape[1]) };
            ChangePart {
                name: format!("{}.hada_{suffix}", module.name),
                shape: shape.to_vec(),
                start,
                follows,
            }
        };
        let parts = vec![
            part("w1_a", true, false),
            part("w1_b", false, false),
            part("w2_a", true, false),
            part("w2_b", false, self.init_weights),
        ];
        let own = self.alpha.as_f64().unwrap_or(f64::NAN);
        let scale = alpha.unwrap_or(own) / rank as f64;
        Ok(site(module, Change::Hadamard { scale }, parts))
    }
}
