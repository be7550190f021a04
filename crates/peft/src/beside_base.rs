//! `BesideBase`: what of a configuration keeps an adapter beside its base, since no weights would do the same.

use crate::method::PeftMethod;
use crate::{LoraConfig, PeftError};

/// A key whose value is no change of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BesideBase {
    /// PEFT's name of it.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Why.
    pub reason: &'static str,
}

impl LoraConfig {
    /// What keeps the adapter beside its base, if anything does.
    #[must_use]
    pub fn beside_base(&self) -> Option<BesideBase> {
        let of = |key, value, reason| Some(BesideBase { key, value, reason });
        if self.method.as_ref().is_some_and(PeftMethod::is_prompt) {
            let reason = "it puts tokens before every text and changes no weight";
            return of("peft_type", self.peft_type.clone(), reason);
        }
        if let Some(tokens) = self.invocation() {
            let reason = "weights act on every token, and the adapter from these on alone";
            return of("alora_invocation_tokens", format!("{tokens:?}"), reason);
        }
        let ranges = self.replication()?;
        let reason = "layers that share a weight have factors of their own";
        of("layer_replication", format!("{ranges:?}"), reason)
    }

    /// That the adapter is a change of weights, as it has to be to become `what`.
    ///
    /// # Errors
    /// [`PeftError::BesideBase`] if it is not.
    pub fn check_weights(&self, what: &'static str) -> Result<(), PeftError> {
        match self.beside_base() {
            Some(BesideBase { key, value, reason }) => {
                Err(PeftError::BesideBase { key, value, reason, what })
            }
            None => Ok(()),
        }
    }
}
