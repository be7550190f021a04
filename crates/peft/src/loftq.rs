//! `Loftq`: how an adapter's base is quantised where its factors are made of what that loses (LoftQ; Li et al. 2023, algorithm
//! 1).

use burnish_core::{Quantization, Scheme};
use serde_json::{Map, Value, json};

use crate::{InitWeights, LoraConfig, LoraPlan, PeftError, Purpose};

/// What `loftq_config` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loftq {
    /// Four (NF4) or eight; a fresh adapter takes those of its base.
    pub bits: Option<u8>,
    /// How often the base is quantised anew, each time without what the factors of the time before have; 1 is the base itself.
    pub iterations: usize,
}

impl Loftq {
    /// How PEFT quantises in so many bits.
    #[must_use]
    pub fn quantization(self) -> Quantization {
        let scheme = if self.bits == Some(8) { Scheme::Int8 } else { Scheme::Nf4 };
        Quantization { scheme, nested: false }
    }
}

impl LoraConfig {
    /// How the base is quantised, of an adapter that starts so.
    ///
    /// # Errors
    /// If `loftq_config` has other bits than four or eight, or no number of iterations.
    pub fn loftq(&self) -> Result<Option<Loftq>, PeftError> {
        let is = |word: &InitWeights| matches!(word, InitWeights::Named(word) if word == "loftq");
        if self.method.is_some() || !is(&self.init_lora_weights) {
            return Ok(None);
        }
        let none = Map::new();
        let own = self.rest.get("loftq_config").and_then(Value::as_object).unwrap_or(&none);
        let number = |key: &str, fits: &dyn Fn(u64) -> bool, mend| match own.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().filter(|&n| fits(n)).map(Some).ok_or_else(|| {
                let key = format!("loftq_config.{key}");
                PeftError::UnsupportedKey { key, value: value.to_string(), mend }
            }),
        };
        let bits = number("loftq_bits", &|bits| bits == 4 || bits == 8, "use 4 or 8")?;
        let most = |n: u64| (1..=1000).contains(&n);
        let iterations = number("loftq_iter", &most, "use a whole number from 1 to 1000")?;
        Ok(Some(Loftq { bits: bits.map(|bits| bits as u8), iterations: iterations.unwrap_or(1) as usize }))
    }
}

impl LoraPlan {
    /// How the weights of its modules are quantised, where that is not as in any base in so many bits: in several iterations, or
    /// as the file of an adapter says.
    #[must_use]
    pub fn own_quantization(&self) -> Option<Loftq> {
        let own = self.config.loftq().ok().flatten()?;
        (own.iterations > 1 || self.is_loaded()).then_some(own)
    }

    /// Whether it is the plan of an adapter that exists.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.purpose == Purpose::Load
    }

    /// Notes of a fresh adapter in how many bits its base rests.
    pub fn note_bits(&mut self, bits: u8) {
        if let Ok(Some(own)) = self.config.loftq() {
            let settings = json!({"loftq_bits": bits, "loftq_iter": own.iterations});
            self.config.rest.insert("loftq_config".to_owned(), settings);
        }
    }

    /// That the adapter adds to the base's own weights.
    ///
    /// # Errors
    /// If it adds to weights that are quantised [in a way of its own](Self::own_quantization).
    pub fn check_plain_base(&self) -> Result<(), PeftError> {
        let condition =
            "loftq where the base is not quantised as it says; merge it with `burnish merge` first";
        let conflict = PeftError::Conflict { key: "init_lora_weights", condition };
        self.own_quantization().map_or(Ok(()), |_| Err(conflict))
    }
}
