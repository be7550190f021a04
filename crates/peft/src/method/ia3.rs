//! IA3 (Liu et al. 2022, arXiv:2205.05638): vectors that scale the outputs of layers, or the inputs of feed-forward ones.

use serde::{Deserialize, Serialize};

use crate::method::{Method, linear, names, site};
use crate::{
    Change, ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, PeftError, Start, Targets, pattern,
};

/// What an IA3 configuration says beyond which modules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ia3 {
    /// Which of the targets are scaled on their inputs: ends of names, or one regular expression; `None` means the
    /// architecture's default.
    pub feedforward_modules: Option<Targets>,
    /// Whether vectors start as ones; normal otherwise.
    pub init_ia3_weights: bool,
}

impl Default for Ia3 {
    fn default() -> Self {
        Self { feedforward_modules: None, init_ia3_weights: true }
    }
}

impl Method for Ia3 {
    const SHARED: &'static [&'static str] = &["exclude_modules", "modules_to_save"];

    /// That every target that is named feed-forward is a target, as PEFT's constructor asks.
    fn validate(&self, config: &LoraConfig, _fresh: bool) -> Result<(), PeftError> {
        if let (Some(Targets::List(inner)), Some(Targets::List(targets))) =
            (&self.feedforward_modules, &config.target_modules)
            && inner.iter().any(|name| !targets.contains(name))
        {
            let condition = "with names that target_modules does not have; add them there";
            return Err(PeftError::Conflict { key: "feedforward_modules", condition });
        }
        if let Some(Targets::Pattern(p)) = &self.feedforward_modules {
            pattern::whole("feedforward_modules", p)?;
        }
        Ok(())
    }

    fn resolve(&mut self, config: &mut LoraConfig, model_type: &str, _modules: &[ModuleInfo]) -> bool {
        let (targets, inner) = defaults(model_type).unzip();
        config.target_modules = config.target_modules.take().or(targets);
        self.feedforward_modules = self.feedforward_modules.take().or(inner);
        config.target_modules.is_some() && self.feedforward_modules.is_some()
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        linear(module, "on an embedding with peft_type IA3: name linear layers")?;
        let on_input = match &self.feedforward_modules {
            None => false,
            // PEFT compares ends of names without regard to dots here.
            Some(Targets::List(names)) => names.iter().any(|name| module.name.ends_with(name)),
            Some(Targets::Pattern(p)) => pattern::whole("feedforward_modules", p)?.matches(&module.name)?,
        };
        let (change, shape, follows) = if on_input {
            (Change::ScaledInputs, [1, module.input], Follows::Inputs)
        } else {
            (Change::ScaledOutputs, [module.out, 1], Follows::Outputs)
        };
        let start = if self.init_ia3_weights { Start::Constant(1.0) } else { Start::normal(1.0) };
        let part =
            ChangePart { name: format!("{}.ia3_l", module.name), shape: shape.to_vec(), start, follows };
        Ok(site(module, change, vec![part]))
    }
}

/// Targets and feed-forward targets of PEFT's table.
fn defaults(model_type: &str) -> Option<(Targets, Targets)> {
    let (targets, feedforward): (&[&str], &str) = match model_type {
        "gpt2" | "gpt_bigcode" => (&["c_attn", "mlp.c_proj"], "mlp.c_proj"),
        "bloom" => (&["query_key_value", "mlp.dense_4h_to_h"], "mlp.dense_4h_to_h"),
        "opt" => (&["q_proj", "k_proj", "fc2"], "fc2"),
        "gptj" => (&["q_proj", "v_proj", "fc_out"], "fc_out"),
        "gpt_neox" | "falcon" | "RefinedWeb" | "RefinedWebModel" => {
            (&["query_key_value", "dense_4h_to_h"], "dense_4h_to_h")
        }
        "gpt_neo" => (&["q_proj", "v_proj", "c_proj"], "c_proj"),
        "llama" | "mistral" => (&["k_proj", "v_proj", "down_proj"], "down_proj"),
        "llama4" | "gemma" | "gemma2" | "gemma3_text" | "qwen2" | "qwen3" => {
            (&["q_proj", "v_proj", "down_proj"], "down_proj")
        }
        "phi" => (&["q_proj", "v_proj", "fc2"], "fc2"),
        _ => return None,
    };
    Some((names(targets), names(&[feedforward])))
}
