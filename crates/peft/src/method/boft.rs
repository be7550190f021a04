//! BOFT (Liu et al. 2023, arXiv:2311.06243): inputs of a layer are rotated by a product of rotations of few of them each, and
//! its outputs scaled.

use serde::{Deserialize, Serialize};

use crate::method::{Method, linear, no_dropout, site};
use crate::{Change, ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, PeftError, Start};

/// What a BOFT configuration says beyond which modules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Boft {
    /// The size of a block; 0 where their number is given.
    pub boft_block_size: usize,
    /// The number of blocks; 0 where their size is given.
    pub boft_block_num: usize,
    /// How many rotations are multiplied.
    pub boft_n_butterfly_factor: usize,
    /// Share of blocks that one rotation leaves unturned in training: only 0.
    pub boft_dropout: f64,
    /// Whether rotations start as none and scales as one; normal around these otherwise.
    pub init_weights: bool,
}

impl Default for Boft {
    fn default() -> Self {
        Self {
            boft_block_size: 4,
            boft_block_num: 0,
            boft_n_butterfly_factor: 1,
            boft_dropout: 0.0,
            init_weights: true,
        }
    }
}

impl Method for Boft {
    const SHARED: &'static [&'static str] =
        &["bias", "exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save"];

    fn validate(&self, _config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        no_dropout("boft_dropout", self.boft_dropout, fresh)?;
        if (self.boft_block_size == 0) == (self.boft_block_num == 0) {
            let condition = "unless it is 0 and boft_block_num is not, or the other way round";
            return Err(PeftError::Conflict { key: "boft_block_size", condition });
        }
        if !(1..=32).contains(&self.boft_n_butterfly_factor) {
            return Err(PeftError::BadValue {
                key: "boft_n_butterfly_factor",
                got: self.boft_n_butterfly_factor.to_string(),
                expected: "a whole number from 1 to 32",
            });
        }
        Ok(())
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type BOFT: name linear layers")?;
        let (factors, input) = (self.boft_n_butterfly_factor, module.input);
        let divides = |key: &'static str, got: usize| PeftError::Divides {
            key,
            got,
            module: module.name.clone(),
            sides: vec![input],
        };
        let block = if self.boft_block_size == 0 {
            let blocks = self.boft_block_num;
            if !input.is_multiple_of(blocks) {
                return Err(divides("boft_block_num", blocks));
            }
            input / blocks
        } else {
            self.boft_block_size
        };
        // Blocks that the last factor joins.
        let joined = 1_usize << (factors - 1);
        if !input.is_multiple_of(block) {
            return Err(divides("boft_block_size", block));
        }
        if factors > 1 && !(block.is_multiple_of(2) && input.is_multiple_of(block * joined)) {
            return Err(PeftError::Conflict {
                key: "boft_n_butterfly_factor",
                condition: "on a module whose blocks are not of an even size, or their number no multiple of 2 to the factors but one: take fewer factors, or blocks of another size",
            });
        }
        let start = |identity: f64| match self.init_weights {
            true => Start::Constant(identity as f32),
            false => Start::Normal { mean: identity, std: 0.1 },
        };
        let part = |suffix: &str, shape: Vec<usize>, start: Start, follows: Follows| ChangePart {
            name: format!("{}.boft_{suffix}", module.name),
            shape,
            start,
            follows,
        };
        let parts = vec![
            part("R", vec![factors, input / block, block, block], start(0.0), Follows::Whole),
            part("s", vec![module.out, 1], start(1.0), Follows::Outputs),
        ];
        Ok(site(module, Change::Butterfly { block, factors }, parts))
    }
}
