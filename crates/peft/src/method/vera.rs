//! VeRA (Kopiczko et al. 2024, arXiv:2310.11454): vectors train between two random matrices that all modules share.

use serde::{Deserialize, Serialize};

use crate::method::{Method, linear, names, probability, site};
use crate::{
    Change, ChangePart, ChangeSite, Drawn, DrawnLaw, Follows, LoraConfig, ModuleInfo, PeftError, Start,
    default_targets,
};

/// What a VeRA configuration says beyond which modules and the rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vera {
    /// PyTorch's seed of the matrices.
    pub projection_prng_key: u64,
    /// Whether the matrices are in the file; they are drawn from the seed otherwise.
    pub save_projection: bool,
    /// Probability of dropping an element of a module's input in training.
    pub vera_dropout: f64,
    /// What the inner vector starts from.
    pub d_initial: f64,
    /// Whether the outer vector starts as zeros and the inner one as `d_initial`; ones and normal otherwise.
    pub init_weights: bool,
}

impl Default for Vera {
    fn default() -> Self {
        Self {
            projection_prng_key: 0,
            save_projection: true,
            vera_dropout: 0.0,
            d_initial: 0.1,
            init_weights: true,
        }
    }
}

impl Method for Vera {
    const SHARED: &'static [&'static str] =
        &["bias", "layers_pattern", "layers_to_transform", "modules_to_save", "r"];

    const RANK: usize = 256;

    fn validate(&self, _config: &LoraConfig, _fresh: bool) -> Result<(), PeftError> {
        probability("vera_dropout", self.vera_dropout)
    }

    fn resolve(&mut self, config: &mut LoraConfig, model_type: &str, _modules: &[ModuleInfo]) -> bool {
        if config.target_modules.is_none() {
            config.target_modules = match model_type {
                "phi" => Some(names(&["q_proj", "v_proj"])),
                _ => default_targets(model_type),
            };
        }
        config.target_modules.is_some()
    }

    fn site(&self, module: &ModuleInfo, rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type VERA: name linear layers")?;
        let [outer, inner] = if self.init_weights {
            [Start::Constant(0.0), Start::Constant(self.d_initial as f32)]
        } else {
            [Start::Constant(1.0), Start::normal(1.0)]
        };
        let vector = |suffix: &str, length: usize, start: Start| ChangePart {
            name: format!("{}.vera_lambda_{suffix}", module.name),
            shape: vec![length],
            start,
            follows: Follows::Whole,
        };
        let parts = vec![vector("b", module.out, outer), vector("d", rank, inner)];
        Ok(ChangeSite { dropout: self.vera_dropout, ..site(module, Change::Projected, parts) })
    }

    /// Gives each site the two matrices, which are as large as the largest module asks; the first is drawn first.
    fn share(&self, _config: &LoraConfig, sites: &mut [ChangeSite]) {
        let most = |of: fn(&ChangeSite) -> usize| sites.iter().map(of).max().unwrap_or_default();
        let (inputs, outs) = (most(|site| site.input), most(|site| site.out));
        for site in sites.iter_mut() {
            let rank = site.parts.last().map_or(0, |part| part.shape[0]);
            let drawn = |name: &str, shape: [usize; 2], skip: usize| ChangePart {
                name: name.to_owned(),
                shape: shape.to_vec(),
                start: Start::Drawn(Drawn {
                    seed: self.projection_prng_key,
                    skip,
                    law: DrawnLaw::Uniform { bound: (6.0 / shape[1] as f64).sqrt() as f32 },
                }),
                follows: Follows::Whole,
            };
            site.parts.push(drawn("vera_A", [rank, inputs], 0));
            site.parts.push(drawn("vera_B", [outs, rank], rank * inputs));
        }
    }
}
