//! LN tuning (Zhao et al. 2023, arXiv:2312.11420): copies of norms train in their place.

use std::borrow::Cow;

use burnish_core::Registry;
use serde::{Deserialize, Serialize};

use crate::method::{Method, names};
use crate::{ChangeSite, LoraConfig, ModuleInfo, ModuleKind, PeftError};

/// What a configuration of LN tuning says beyond which modules: nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LnTuning {}

impl Method for LnTuning {
    const SHARED: &'static [&'static str] = &["exclude_modules", "modules_to_save"];

    fn validate(&self, _config: &LoraConfig, _fresh: bool) -> Result<(), PeftError> {
        Ok(())
    }

    fn resolve(&mut self, config: &mut LoraConfig, model_type: &str, _modules: &[ModuleInfo]) -> bool {
        if config.target_modules.is_none() {
            config.target_modules = default_norms(model_type).map(names);
        }
        config.target_modules.is_some()
    }

    /// Every module with a weight: norms, and what else PEFT would copy where it is named.
    fn modules<'a>(&self, modules: &'a [ModuleInfo], base: &Registry) -> Cow<'a, [ModuleInfo]> {
        let all = base.iter().filter_map(|parameter| {
            let name = parameter.name.strip_suffix(".weight")?;
            let known = modules.iter().find(|module| module.name == name).cloned();
            let width = parameter.shape.first().copied().unwrap_or(1);
            Some(known.unwrap_or_else(|| ModuleInfo::new(name, ModuleKind::Linear, width, 1)))
        });
        Cow::Owned(all.collect())
    }

    fn copies(&self) -> Option<&'static str> {
        Some("ln_tuning_layers")
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        unreachable!("invariant: {} is copied, and no site", module.name)
    }
}

/// The norms of PEFT's table.
fn default_norms(model_type: &str) -> Option<&'static [&'static str]> {
    Some(match model_type {
        "llama" | "mistral" | "gemma" => &["input_layernorm", "post_attention_layernorm", "norm"],
        "gemma2" | "gemma3_text" => &[
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
            "norm",
        ],
        "qwen2" | "qwen3" => &["post_attention_layernorm"],
        "bloom" | "falcon" => &["input_layernorm", "post_attention_layernorm", "ln_f"],
        "gpt2" => &["ln_1", "ln_2", "ln_f"],
        "gptj" => &["ln_1", "ln_f"],
        "phi" => &["input_layernorm", "final_layernorm"],
        _ => return None,
    })
}
