//! LoKr (Yeh et al. 2024, arXiv:2309.14859): a Kronecker product is added.

use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::method::loha::LYCORIS;
use crate::method::{Method, linear, no_dropout, site};
use crate::{Change, ChangePart, ChangeSite, Follows, InitWeights, LoraConfig, ModuleInfo, PeftError, Start};

/// What a LoKr configuration says beyond which modules and ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lokr {
    /// The scale's numerator.
    pub alpha: Number,
    /// Probability of dropping a row of the change in training: only 0.
    pub rank_dropout: f64,
    /// Whether what is dropped is made up for.
    pub rank_dropout_scale: bool,
    /// Probability of leaving the change of a module out in training: only 0.
    pub module_dropout: f64,
    /// Of convolutions.
    pub use_effective_conv2d: bool,
    /// Whether the first matrix may be a product of low rank as well.
    pub decompose_both: bool,
    /// The size of the first matrix; -1 for the divisor next to the root.
    pub decompose_factor: i64,
    /// Whether the first matrix starts at zero (`lycoris`: the second); all random otherwise.
    pub init_weights: InitWeights,
}

impl Default for Lokr {
    fn default() -> Self {
        Self {
            alpha: 8.into(),
            rank_dropout: 0.0,
            rank_dropout_scale: false,
            module_dropout: 0.0,
            use_effective_conv2d: false,
            decompose_both: false,
            decompose_factor: -1,
            init_weights: InitWeights::Flag(true),
        }
    }
}

/// Two factors of `size`, the first at most the second, whose sum is least, or of which the first is `factor` or comes near.
fn factors(size: usize, factor: i64) -> [usize; 2] {
    if let Ok(factor) = usize::try_from(factor)
        && factor > 0
        && size.is_multiple_of(factor)
    {
        return [factor, size / factor];
    }
    let most = usize::try_from(factor).unwrap_or(size);
    let mut best = [1, size];
    let mut first = 1;
    while best[0] < best[1] {
        first += 1;
        while first <= size && !size.is_multiple_of(first) {
            first += 1;
        }
        let second = size / first.max(1);
        if first + second > best[0] + best[1] || first > most {
            break;
        }
        best = [first, second];
    }
    best.sort_unstable();
    best
}

impl Method for Lokr {
    const SHARED: &'static [&'static str] = LYCORIS;

    fn validate(&self, _config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        no_dropout("rank_dropout", self.rank_dropout, fresh)?;
        no_dropout("module_dropout", self.module_dropout, fresh)?;
        match &self.init_weights {
            InitWeights::Named(word) if fresh && word != "lycoris" => Err(PeftError::BadValue {
                key: "init_weights",
                got: word.clone(),
                expected: "true, false or lycoris",
            }),
            _ => Ok(()),
        }
    }

    fn site(&self, module: &ModuleInfo, rank: usize, alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type LOKR: name linear layers")?;
        let (outs, inputs) =
            (factors(module.out, self.decompose_factor), factors(module.input, self.decompose_factor));
        let narrow = |at: usize| 2 * rank < outs[at].max(inputs[at]);
        let factored = [self.decompose_both && narrow(0), narrow(1)];
        let mut parts = Vec::new();
        for (at, product) in factored.into_iter().enumerate() {
            let lycoris = matches!(self.init_weights, InitWeights::Named(_));
            let zero = match self.init_weights {
                InitWeights::Flag(false) => false,
                _ => (at == 0) != lycoris,
            };
            let mut part = |suffix: &str, shape: [usize; 2], zero: bool| {
                let name = format!("{}.lokr_w{}{suffix}", module.name, at + 1);
                let start = if zero { Start::Constant(0.0) } else { Start::kaiming(shape[1]) };
                parts.push(ChangePart { name, shape: shape.to_vec(), start, follows: Follows::Whole });
            };
            if product {
                part("_a", [outs[at], rank], zero && !lycoris);
                part("_b", [rank, inputs[at]], zero && lycoris);
            } else {
                part("", [outs[at], inputs[at]], zero);
            }
        }
        let own = self.alpha.as_f64().unwrap_or(f64::NAN);
        let scale = alpha.unwrap_or(own) / rank as f64;
        Ok(site(module, Change::Kronecker { scale, factored }, parts))
    }
}
