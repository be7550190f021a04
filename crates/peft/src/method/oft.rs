//! OFT (Qiu et al. 2023, arXiv:2306.07280; the second version: Qiu et al. 2025, arXiv:2506.19847): blocks of a layer's inputs
//! are rotated.

use serde::{Deserialize, Serialize};

use crate::method::{Method, linear, no_dropout, site};
use crate::{Change, ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, PeftError, Start};

/// What an OFT configuration says beyond which modules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Oft {
    /// The number of blocks; 0 where their size is given.
    pub r: usize,
    /// The size of a block; 0 where their number is given.
    pub oft_block_size: usize,
    /// Probability of leaving a block unturned in training: only 0.
    pub module_dropout: f64,
    /// Whether rotations start as none; normal otherwise.
    pub init_weights: bool,
    /// Whether rotations are kept small: only false.
    pub coft: bool,
    /// How small.
    pub eps: f64,
    /// Whether all blocks turn alike.
    pub block_share: bool,
    /// Whether the inverse of Cayley's form is a series.
    pub use_cayley_neumann: bool,
    /// Of so many terms.
    pub num_cayley_neumann_terms: usize,
}

impl Default for Oft {
    fn default() -> Self {
        Self {
            r: 0,
            oft_block_size: 32,
            module_dropout: 0.0,
            init_weights: true,
            coft: false,
            eps: 6e-5,
            block_share: false,
            use_cayley_neumann: true,
            num_cayley_neumann_terms: 5,
        }
    }
}

/// A divisor of `size` near `wanted`, as PEFT takes it: the lower of two that are as near.
fn divisor(size: usize, wanted: usize) -> usize {
    if wanted >= size {
        return size;
    }
    let higher = (wanted..=size).find(|n| size.is_multiple_of(*n)).unwrap_or(size);
    let lower = (1..=wanted).rev().find(|n| size.is_multiple_of(*n)).unwrap_or(1);
    if wanted - lower <= higher - wanted { lower } else { higher }
}

impl Method for Oft {
    const SHARED: &'static [&'static str] =
        &["bias", "exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save"];

    fn validate(&self, _config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        no_dropout("module_dropout", self.module_dropout, fresh)?;
        if (self.r == 0) == (self.oft_block_size == 0) {
            let condition = "unless it is 0 and oft_block_size is not, or the other way round";
            return Err(PeftError::Conflict { key: "r", condition });
        }
        if self.coft {
            return Err(PeftError::UnsupportedKey {
                key: "coft".to_owned(),
                value: "true".to_owned(),
                mend: "rotations are not projected here: set it to false, or merge it into its base with PEFT first",
            });
        }
        if self.use_cayley_neumann && !(1..=64).contains(&self.num_cayley_neumann_terms) {
            return Err(PeftError::BadValue {
                key: "num_cayley_neumann_terms",
                got: self.num_cayley_neumann_terms.to_string(),
                expected: "a whole number from 1 to 64",
            });
        }
        Ok(())
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type OFT: name linear layers")?;
        let block = if self.r == 0 {
            divisor(module.input, self.oft_block_size)
        } else {
            module.input / divisor(module.input, self.r)
        };
        if block < 2 {
            return Err(PeftError::BadValue {
                key: "oft_block_size",
                got: block.to_string(),
                expected: "blocks of at least two inputs",
            });
        }
        let rows = if self.block_share { 1 } else { module.input / block };
        let start = if self.init_weights { Start::Constant(0.0) } else { Start::normal(0.1) };
        let part = ChangePart {
            name: format!("{}.oft_R.weight", module.name),
            shape: vec![rows, block * (block - 1) / 2],
            start,
            follows: Follows::Whole,
        };
        let terms = self.use_cayley_neumann.then_some(self.num_cayley_neumann_terms);
        Ok(site(module, Change::Rotation { block, terms }, vec![part]))
    }
}
