//! RandLoRA (Albert et al. 2025, arXiv:2502.00987): random bases that all modules share are weighed and summed.

use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::method::{Method, linear, probability, site};
use crate::{
    Change, ChangePart, ChangeSite, Drawn, DrawnLaw, Follows, LoraConfig, ModuleInfo, PeftError, Start,
};

/// What a RandLoRA configuration says beyond which modules and the rank of a basis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RandLora {
    /// PyTorch's seed of the bases.
    pub projection_prng_key: u64,
    /// Whether the bases are in the file; they are drawn from the seed otherwise.
    pub save_projection: bool,
    /// Whether bases are of -1, 0 and 1, two thirds of them zeros.
    pub sparse: bool,
    /// The same with a share of 1 / sqrt(width) that is not zero; it comes before `sparse`.
    pub very_sparse: bool,
    /// Probability of dropping an element of a module's input in training.
    pub randlora_dropout: f64,
    /// The scale's numerator.
    pub randlora_alpha: Number,
    /// Whether one weight starts at zero and the other at one over its length; normal, and one over the longer side, otherwise.
    pub init_weights: bool,
}

impl Default for RandLora {
    fn default() -> Self {
        Self {
            projection_prng_key: 0,
            save_projection: true,
            sparse: false,
            very_sparse: false,
            randlora_dropout: 0.0,
            randlora_alpha: 640.into(),
            init_weights: true,
        }
    }
}

impl Method for RandLora {
    const SHARED: &'static [&'static str] =
        &["bias", "layers_pattern", "layers_to_transform", "modules_to_save", "r"];

    const RANK: usize = 32;

    fn validate(&self, _config: &LoraConfig, _fresh: bool) -> Result<(), PeftError> {
        probability("randlora_dropout", self.randlora_dropout)
    }

    fn site(&self, module: &ModuleInfo, rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type RANDLORA: name linear layers")?;
        let (least, most) = (module.out.min(module.input), module.out.max(module.input));
        let count = least.div_ceil(rank);
        let [lambda, gamma] = if self.init_weights {
            [Start::Constant(0.0), Start::Constant(1.0 / count.max(least) as f32)]
        } else {
            [Start::normal(1.0), Start::Constant(1.0 / most as f32)]
        };
        let part = |suffix: &str, shape: [usize; 2], start: Start| ChangePart {
            name: format!("{}.randlora_{suffix}", module.name),
            shape: shape.to_vec(),
            start,
            follows: Follows::Whole,
        };
        let parts = vec![part("lambda", [rank, count], lambda), part("gamma", [count, least], gamma)];
        let scale = self.randlora_alpha.as_f64().unwrap_or(f64::NAN) / rank as f64;
        Ok(ChangeSite { dropout: self.randlora_dropout, ..site(module, Change::Bases { scale }, parts) })
    }

    /// Gives each site the bases, which are as large as the largest module asks; those of the shorter side are drawn first.
    fn share(&self, _config: &LoraConfig, sites: &mut [ChangeSite]) {
        let most = |of: fn(&ChangeSite) -> usize| sites.iter().map(of).max().unwrap_or_default();
        let (inputs, outs) = (most(|site| site.input), most(|site| site.out));
        let (least, most) = (inputs.min(outs), inputs.max(outs));
        for site in sites.iter_mut() {
            let rank = site.parts.first().map_or(1, |part| part.shape[0]);
            let drawn = |name: &str, shape: [usize; 3], skip: usize| {
                let tail = if self.very_sparse {
                    Some(0.5 / (least as f64).sqrt())
                } else {
                    self.sparse.then_some(0.5 / 3.0)
                };
                let law = match tail {
                    Some(tail) => DrawnLaw::Ternary { tail, elements: shape.iter().product() },
                    None => DrawnLaw::Bases { bound: 1.0 / (shape[2] as f32).sqrt(), shape },
                };
                ChangePart {
                    name: name.to_owned(),
                    shape: shape.to_vec(),
                    start: Start::Drawn(Drawn { seed: self.projection_prng_key, skip, law }),
                    follows: Follows::Whole,
                }
            };
            site.parts.push(drawn("randlora_A", [rank, 1, least], 0));
            site.parts.push(drawn("randlora_B", [most, least.div_ceil(rank), rank], rank * least));
        }
    }
}
