//! VB-LoRA (Li et al. 2024, arXiv:2405.15179): the parts of factors are mixed of the vectors of one bank.

use serde::{Deserialize, Serialize};

use crate::method::{Method, linear, probability, site};
use crate::{Change, ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, PeftError, Start};

/// What a VB-LoRA configuration says beyond which modules and the rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VbLora {
    /// Vectors of the bank.
    pub num_vectors: usize,
    /// Their length, which divides the sides of each layer.
    pub vector_length: usize,
    /// How many of them a part is made of.
    pub topk: usize,
    /// Whether files have the weights of those that were chosen instead of all logits: only false of one that trains.
    pub save_only_topk_weights: bool,
    /// Probability of dropping an element of a module's input in training.
    pub vblora_dropout: f64,
    /// The bank starts uniform within this.
    pub init_vector_bank_bound: f64,
    /// The standard deviation of logits at the start.
    pub init_logits_std: f64,
}

impl Default for VbLora {
    fn default() -> Self {
        Self {
            num_vectors: 256,
            vector_length: 256,
            topk: 2,
            save_only_topk_weights: false,
            vblora_dropout: 0.0,
            init_vector_bank_bound: 0.02,
            init_logits_std: 0.1,
        }
    }
}

/// Most vectors of a bank: every part of a factor has a logit for each.
const MOST: usize = 1 << 20;
/// The bank's name.
const BANK: &str = "vblora_vector_bank";

impl Method for VbLora {
    const SHARED: &'static [&'static str] =
        &["bias", "exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save", "r"];

    const RANK: usize = 4;

    fn validate(&self, _config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
        if fresh && self.save_only_topk_weights {
            return Err(PeftError::UnsupportedKey {
                key: "save_only_topk_weights".to_owned(),
                value: "true".to_owned(),
                mend: "what was not chosen could not train further: set it to false, or use the adapter as it is",
            });
        }
        let bad = |key, got: String, expected| Err(PeftError::BadValue { key, got, expected });
        probability("vblora_dropout", self.vblora_dropout)?;
        if !(1..=MOST).contains(&self.num_vectors) {
            return bad("num_vectors", self.num_vectors.to_string(), "a whole number from 1 to 1048576");
        }
        if self.vector_length == 0 {
            return bad("vector_length", "0".to_owned(), "a positive length");
        }
        if self.topk == 0 || self.topk > self.num_vectors {
            return bad("topk", self.topk.to_string(), "a whole number from 1 to num_vectors");
        }
        Ok(())
    }

    fn site(&self, module: &ModuleInfo, rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type VBLORA: name linear layers")?;
        let (length, vectors) = (self.vector_length, self.num_vectors);
        if !module.out.is_multiple_of(length) || !module.input.is_multiple_of(length) {
            return Err(PeftError::Divides {
                key: "vector_length",
                got: length,
                module: module.name.clone(),
                sides: vec![module.out, module.input],
            });
        }
        let part = |name: String, shape: Vec<usize>, start: Start| ChangePart {
            name,
            shape,
            start,
            follows: Follows::Whole,
        };
        let logits = |suffix: &str, shape: [usize; 3]| {
            let name = format!("{}.vblora_logits_{suffix}", module.name);
            part(name, shape.to_vec(), Start::normal(self.init_logits_std))
        };
        let bank = Start::Uniform(self.init_vector_bank_bound);
        let parts = vec![
            logits("A", [rank, module.input / length, vectors]),
            logits("B", [module.out / length, rank, vectors]),
            part(BANK.to_owned(), vec![vectors, length], bank),
        ];
        let change = Change::Banked { chosen: self.topk };
        Ok(ChangeSite { dropout: self.vblora_dropout, ..site(module, change, parts) })
    }
}
