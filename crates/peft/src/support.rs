//! Support of PEFT's options: those that are computed, and those that are refused by name.

use serde_json::Value;

use crate::{CordaConfig, EvaConfig, Init, InitWeights, LoraConfig, LoraGaConfig, PeftError, PeftType};

/// What a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A fresh adapter: its initialisation must be one of ours.
    Create,
    /// An adapter from a file: its factors exist, so how they were initialised matters only where that changed the
    /// base.
    Load,
}

/// Keys whose every value other than null, false or empty changes the arithmetic.
const REFUSED: &[(&str, &str)] = &[
    ("use_qalora", "merge it into its base with PEFT first"),
    ("use_bdlora", "merge it into its base with PEFT first"),
    ("arrow_config", "load the single adapters instead"),
    ("kasa_config", "merge it into its base with PEFT first"),
    ("monteclora_config", "merge it into its base with PEFT first"),
    ("velora_config", "merge it into its base with PEFT first"),
    ("megatron_config", "train it without Megatron layers"),
];

/// Keys of PEFT 0.21.2 that do not change the arithmetic of an adapter that exists.
const HARMLESS: &[&str] =
    &["eva_config", "corda_config", "lora_ga_config", "loftq_config", "megatron_core", "qalora_group_size"];

/// Initialisations that change the base: the adapter's file alone does not say what it adds to.
const CHANGES_BASE: &[&str] = &["pissa", "olora", "corda", "lora_ga"];

impl LoraConfig {
    /// Refuses every key whose value changes the arithmetic in a way that burnish does not compute, then
    /// [validates](Self::validate).
    ///
    /// # Errors
    /// Names the key, its value and what to do.
    pub fn check(&self, use_: Purpose) -> Result<(), PeftError> {
        let refuse = |key: &str, value: &Value, mend| {
            Err(PeftError::UnsupportedKey { key: key.to_owned(), value: value.to_string(), mend })
        };
        match &self.method {
            Some(method) => method.validate(self, use_ == Purpose::Create)?,
            None if self.peft_type == PeftType::Lora.name() => {}
            None => return Err(PeftError::UnsupportedMethod { peft_type: self.peft_type.clone() }),
        }
        for (key, value) in self.rest.iter().filter(|(_, v)| !is_off(v)) {
            if let Some((_, mend)) = REFUSED.iter().find(|(k, _)| k == key) {
                return refuse(key, value, mend);
            }
            let looks_like_maths =
                (key.starts_with("use_") && *value == Value::Bool(true)) || key.ends_with("_config");
            if looks_like_maths && !HARMLESS.contains(&key.as_str()) {
                return refuse(key, value, "this version of burnish does not know it: merge with PEFT first");
            }
        }
        // What starts from a layer's weight finds it under the name of the layer.
        let reads = self.init_lora_weights.method().is_some_and(Init::reads_base) || self.use_dora;
        if use_ == Purpose::Create && self.replication().is_some() && reads {
            let key = if self.use_dora { "use_dora" } else { "init_lora_weights" };
            let condition = "with `layer_replication` in a fresh adapter: start from true, false, gaussian or orthogonal without use_dora";
            return Err(PeftError::Conflict { key, condition });
        }
        if let InitWeights::Named(name) = &self.init_lora_weights {
            let changes_base = CHANGES_BASE.iter().any(|p| name.to_lowercase().starts_with(p));
            let value = Value::String(name.clone());
            match use_ {
                Purpose::Load
                    if name == "loftq" && self.loftq()?.is_none_or(|loftq| loftq.bits.is_none()) =>
                {
                    return refuse(
                        "init_lora_weights",
                        &value,
                        "its loftq_config does not say how its base is quantised: write loftq_bits and loftq_iter there",
                    );
                }
                Purpose::Create if name == "loftq" => drop(self.loftq()?),
                Purpose::Load if changes_base => {
                    return refuse(
                        "init_lora_weights",
                        &value,
                        "it adds to a changed base: convert it with PEFT's path_initial_model_for_weight_conversion",
                    );
                }
                Purpose::Create if self.init_lora_weights.method() == Some(Init::Eva) => {
                    _ = EvaConfig::of(self)?
                }
                Purpose::Create if self.init_lora_weights.method() == Some(Init::Corda) => {
                    _ = CordaConfig::of(self)?;
                }
                Purpose::Create if self.init_lora_weights.method() == Some(Init::LoraGa) => {
                    _ = LoraGaConfig::of(self)?;
                }
                Purpose::Create if self.init_lora_weights.method().is_none() => {
                    return refuse(
                        "init_lora_weights",
                        &value,
                        "use true, false, \"gaussian\", \"orthogonal\", \"olora\", \"pissa\", \"pissa_niter_4\", \"loftq\", \"mica\", \"eva\", \"corda\" or \"lora_ga\"",
                    );
                }
                _ => {}
            }
        }
        self.validate()
    }
}

impl LoraConfig {
    /// That an adapter of a file can be trained further: what only training does is computed too.
    ///
    /// # Errors
    /// Names the key, its value and what to do.
    pub fn check_training(&self) -> Result<(), PeftError> {
        let Some(method) = &self.method else { return Ok(()) };
        method.validate(self, true)?;
        method.continues()
    }

    /// Whether B stays as it started, minor singular vectors of the base, and A alone trains (`mica`; arXiv:2604.01694).
    #[must_use]
    pub fn keeps_b(&self) -> bool {
        self.method.is_none() && self.init_lora_weights.method() == Some(Init::Mica)
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
