//! AdaLoRA (Zhang et al. 2023, arXiv:2303.10512): factors with singular values, whose ranks training allocates
//! ([`RankAllocator`](crate::RankAllocator)).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::method::{Method, linear, names, site};
use crate::{
    Change, ChangePart, ChangeSite, Follows, InitWeights, LoraConfig, ModuleInfo, PeftError, Start,
    default_targets,
};

/// What an AdaLoRA configuration says beyond LoRA's keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdaLora {
    /// The mean rank that training ends with.
    pub target_r: usize,
    /// The rank that every module begins with.
    pub init_r: usize,
    /// Steps before ranks fall.
    pub tinit: u64,
    /// Steps after they fell.
    pub tfinal: u64,
    /// Steps from one allocation to the next.
    #[serde(rename = "deltaT")]
    pub delta_t: u64,
    /// Smoothing of sensitivities.
    pub beta1: f64,
    /// Smoothing of their uncertainty.
    pub beta2: f64,
    /// The weight of the factors' distance from orthogonal ones in the loss.
    pub orth_reg_weight: f64,
    /// Steps of the whole training; those of the run where they are not said.
    pub total_step: Option<u64>,
    /// By the name of a module's singular values which of them are left.
    pub rank_pattern: Option<BTreeMap<String, Vec<bool>>>,
}

impl Default for AdaLora {
    fn default() -> Self {
        Self {
            target_r: 8,
            init_r: 12,
            tinit: 0,
            tfinal: 0,
            delta_t: 1,
            beta1: 0.85,
            beta2: 0.85,
            orth_reg_weight: 0.5,
            total_step: None,
            rank_pattern: None,
        }
    }
}

impl AdaLora {
    /// What training asks of its values.
    fn check_fresh(&self, config: &LoraConfig) -> Result<(), PeftError> {
        let bad = |key, got: String, expected| Err(PeftError::BadValue { key, got, expected });
        if self.rank_pattern.is_some() {
            return Err(PeftError::UnsupportedKey {
                key: "rank_pattern".to_owned(),
                value: "given".to_owned(),
                mend: "ranks that were allocated do not grow again: go on from a checkpoint (resume_from_checkpoint), or begin a new adapter; this one can be used and merged",
            });
        }
        let condition = "with peft_type ADALORA, which does not have it: take it out";
        for (key, given) in [
            ("use_dora", config.use_dora),
            ("use_rslora", config.use_rslora),
            ("lora_bias", config.lora_bias),
            ("alpha_pattern", !config.alpha_pattern.is_empty()),
        ] {
            if given {
                return Err(PeftError::Conflict { key, condition });
            }
        }
        if !matches!(config.init_lora_weights, InitWeights::Flag(_)) {
            let condition = "other than true and false with peft_type ADALORA";
            return Err(PeftError::Conflict { key: "init_lora_weights", condition });
        }
        if self.init_r > 65_536 {
            return bad("init_r", self.init_r.to_string(), "a whole number that is at most 65536");
        }
        if self.target_r >= self.init_r {
            return bad("target_r", self.target_r.to_string(), "a rank below init_r");
        }
        for (key, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(beta > 0.0 && beta < 1.0) {
                return bad(key, beta.to_string(), "a number between 0 and 1");
            }
        }
        if !(self.orth_reg_weight >= 0.0 && self.orth_reg_weight.is_finite()) {
            return bad("orth_reg_weight", self.orth_reg_weight.to_string(), "a number from 0 on");
        }
        if self.delta_t == 0 {
            return bad("deltaT", "0".to_owned(), "a positive number of steps");
        }
        self.total_step.map_or(Ok(()), |total| self.check_steps(total))
    }

    /// That ranks have steps to fall in.
    pub(crate) fn check_steps(&self, total_step: u64) -> Result<(), PeftError> {
        if self.tinit.saturating_add(self.tfinal) < total_step {
            return Ok(());
        }
        let got = format!("{} of {total_step} steps, of which tfinal are {}", self.tinit, self.tfinal);
        Err(PeftError::BadValue { key: "tinit", got, expected: "less than total_step - tfinal" })
    }
}

impl Method for AdaLora {
    const SHARED: &'static [&'static str] = &[
        "alora_invocation_tokens",
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layer_replication",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_bias",
        "lora_dropout",
        "modules_to_save",
        "r",
        "target_parameters",
        "trainable_token_indices",
        "use_dora",
        "use_rslora",
    ];

    fn validate(&self, config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        let refused = |key: &str, value: &str, mend| {
            Err(PeftError::UnsupportedKey { key: key.to_owned(), value: value.to_owned(), mend })
        };
        if fresh {
            self.check_fresh(config)?;
        }
        if config.trainable_token_indices.is_some() {
            return refused("trainable_token_indices", "given", "merge it into its base with PEFT first");
        }
        if self.init_r == 0 {
            return Err(PeftError::BadValue { key: "init_r", got: "0".into(), expected: "a positive rank" });
        }
        Ok(())
    }

    fn resolve(&mut self, config: &mut LoraConfig, model_type: &str, _modules: &[ModuleInfo]) -> bool {
        if config.target_modules.is_none() {
            config.target_modules = match model_type {
                "opt" => Some(names(&["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"])),
                other => default_targets(other),
            };
        }
        config.target_modules.is_some()
    }

    /// PEFT reads neither alpha_pattern nor use_rslora here.
    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type ADALORA: name linear layers")?;
        let name = |suffix: &str| format!("{}.lora_{suffix}", module.name);
        let left = self.rank_pattern.as_ref().and_then(|ranks| ranks.get(&name("E")));
        let rank = left.map_or(self.init_r, |left| left.iter().filter(|&&kept| kept).count());
        let part = |suffix: &str, shape: [usize; 2], start: Start, follows: Follows| ChangePart {
            name: name(suffix),
            shape: shape.to_vec(),
            start,
            follows,
        };
        let parts = vec![
            part("A", [rank, module.input], Start::normal(0.02), Follows::Inputs),
            part("B", [module.out, rank], Start::normal(0.02), Follows::Outputs),
            part("E", [rank, 1], Start::Constant(0.0), Follows::Whole),
        ];
        Ok(site(module, Change::Singular { scale: 1.0 }, parts))
    }

    fn share(&self, config: &LoraConfig, sites: &mut [ChangeSite]) {
        let first = self.init_r as f64;
        let alpha = Some(config.alpha()).filter(|alpha| *alpha > 0.0).unwrap_or(first);
        for site in sites {
            site.change = Change::Singular { scale: alpha / (first + 1e-5) };
            site.dropout = config.dropout();
            if config.init_lora_weights == InitWeights::Flag(false) {
                site.parts.iter_mut().for_each(|part| part.start = Start::normal(1.0));
            }
        }
    }
}
