//! C3A (Chen et al. 2024, arXiv:2407.19342): blocks that are circulant are added.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::method::{Method, linear, names, site};
use crate::{
    Change, ChangePart, ChangeSite, Follows, InitWeights, LoraConfig, ModuleInfo, PeftError, Start,
    default_targets, pattern,
};

/// What a C3A configuration says beyond which modules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct C3a {
    /// The size of a block, which divides the sides of each layer.
    pub block_size: usize,
    /// Sizes by pattern; the first pattern that matches counts.
    pub block_size_pattern: Map<String, Value>,
    /// How kernels start: `xavier_uniform` (also `false`), `kaiming_uniform`, `gaussian`, or with `true` at zero.
    pub init_weights: InitWeights,
}

impl Default for C3a {
    fn default() -> Self {
        Self {
            block_size: 256,
            block_size_pattern: Map::new(),
            init_weights: InitWeights::Named("xavier_uniform".to_owned()),
        }
    }
}

impl C3a {
    /// The size of a module's blocks.
    fn block(&self, module: &str) -> Result<usize, PeftError> {
        let size = |value: &Value| value.as_u64().map_or(0, |size| size as usize);
        for (pattern, value) in &self.block_size_pattern {
            if pattern::behind_dot(BLOCKS, pattern)?.matches(module)? {
                return Ok(size(value));
            }
        }
        Ok(self.block_size_pattern.get(module).map_or(self.block_size, size))
    }
}

const BLOCKS: &str = "block_size_pattern";

impl Method for C3a {
    const SHARED: &'static [&'static str] =
        &["bias", "layers_pattern", "layers_to_transform", "modules_to_save"];

    fn validate(&self, _config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        let known = ["xavier_uniform", "kaiming_uniform", "gaussian"];
        match &self.init_weights {
            InitWeights::Named(word) if fresh && !known.contains(&word.as_str()) => {
                Err(PeftError::BadValue {
                    key: "init_weights",
                    got: word.clone(),
                    expected: "xavier_uniform, kaiming_uniform, gaussian, true or false",
                })
            }
            _ => Ok(()),
        }
    }

    fn patterns(&self) -> Option<(&'static str, &Map<String, Value>)> {
        Some((BLOCKS, &self.block_size_pattern))
    }

    fn resolve(&mut self, config: &mut LoraConfig, model_type: &str, _modules: &[ModuleInfo]) -> bool {
        if config.target_modules.is_none() {
            config.target_modules = match model_type {
                "gpt2" | "gpt_bigcode" => Some(names(&["mlp.c_proj"])),
                _ => default_targets(model_type),
            };
        }
        config.target_modules.is_some()
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type C3A: name linear layers")?;
        let block = self.block(&module.name)?;
        if block == 0 || !module.out.is_multiple_of(block) || !module.input.is_multiple_of(block) {
            return Err(PeftError::Divides {
                key: "block_size",
                got: block,
                module: module.name.clone(),
                sides: vec![module.out, module.input],
            });
        }
        let uniform = |fans: usize, of: f64| Start::Uniform((of / fans as f64).sqrt());
        let start = match &self.init_weights {
            InitWeights::Flag(true) => Start::Constant(0.0),
            InitWeights::Named(word) if word == "gaussian" => Start::normal(1.0),
            InitWeights::Named(word) if word == "kaiming_uniform" => uniform(module.input, 1.0),
            _ => uniform(module.input + module.out, 6.0),
        };
        let part = ChangePart {
            name: format!("{}.c3a_kernel", module.name),
            shape: vec![module.out / block, module.input / block, block],
            start,
            follows: Follows::Whole,
        };
        Ok(site(module, Change::Circulant { block }, vec![part]))
    }
}
