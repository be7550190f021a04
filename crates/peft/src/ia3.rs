//! IA3 (Liu et al. 2022, arXiv:2205.05638): vectors that scale the outputs of layers, or the inputs of feed-forward ones.

use burnish_weight_files::HostTensor;
use serde::{Deserialize, Serialize};

use crate::merge::{Merged, expect_shape};
use crate::pattern;
use crate::{LoraConfig, ModuleInfo, ModuleKind, PeftError, Registry, Targets};

/// PEFT's word for it.
pub(crate) const IA3: &str = "IA3";

/// The keys of [`LoraConfig`] that an IA3 configuration has.
pub(crate) const SHARED_KEYS: &[&str] = &[
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "modules_to_save",
    "peft_type",
    "target_modules",
    "task_type",
];

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

impl Ia3 {
    /// The keys of its fields.
    pub(crate) const KEYS: [&str; 2] = ["feedforward_modules", "init_ia3_weights"];

    /// That every target that is named feed-forward is a target, as PEFT's constructor asks.
    pub(crate) fn validate(&self, config: &LoraConfig) -> Result<(), PeftError> {
        if let (Some(Targets::List(inner)), Some(Targets::List(targets))) =
            (&self.feedforward_modules, &config.target_modules)
            && inner.iter().any(|name| !targets.contains(name))
        {
            let condition = "with names that target_modules does not have; add them there";
            return Err(PeftError::Conflict { key: "feedforward_modules", condition });
        }
        if config.target_parameters.is_some() {
            return Err(PeftError::Conflict { key: "target_parameters", condition: "with peft_type IA3" });
        }
        Ok(())
    }

    /// Targets and feed-forward targets of PEFT's table.
    pub(crate) fn defaults(model_type: &str) -> Option<(Targets, Targets)> {
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
        let list = |names: &[&str]| Targets::List(names.iter().map(|&name| name.to_owned()).collect());
        Some((list(targets), list(&[feedforward])))
    }

    /// The vector of a module.
    pub(crate) fn site(&self, module: &ModuleInfo, base: &Registry) -> Result<ScaleSite, PeftError> {
        if !matches!(module.kind, ModuleKind::Linear | ModuleKind::Head) {
            let condition = "on an embedding with peft_type IA3: name linear layers";
            return Err(PeftError::Conflict { key: "target_modules", condition });
        }
        let on_input = match &self.feedforward_modules {
            None => false,
            // PEFT compares ends of names without regard to dots here.
            Some(Targets::List(names)) => names.iter().any(|name| module.name.ends_with(name)),
            Some(Targets::Pattern(p)) => pattern::whole("feedforward_modules", p)?.matches(&module.name)?,
        };
        Ok(ScaleSite {
            module: module.name.clone(),
            kind: module.kind,
            out: module.out,
            input: module.input,
            on_input,
            has_bias: base.get(&format!("{}.bias", module.name)).is_some(),
            name: format!("{}.ia3_l", module.name),
        })
    }
}

/// A module whose outputs or inputs a vector scales: `l (W x + b)`, or `W (l x) + b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleSite {
    /// The module's name in the base model.
    pub module: String,
    /// What the module is.
    pub kind: ModuleKind,
    /// Output features.
    pub out: usize,
    /// Input features.
    pub input: usize,
    /// Whether inputs are scaled.
    pub on_input: bool,
    /// Whether the base layer has a bias, which is scaled with the outputs.
    pub has_bias: bool,
    /// The vector's name.
    pub name: String,
}

impl ScaleSite {
    /// The vector's shape: `[out, 1]`, of inputs `[1, in]`.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        if self.on_input { [1, self.input] } else { [self.out, 1] }
    }

    /// The name of the base weight that is scaled.
    #[must_use]
    pub fn base_weight(&self) -> String {
        format!("{}.weight", self.module)
    }

    /// The name of the module's bias, which is scaled with the outputs.
    #[must_use]
    pub fn base_bias(&self) -> String {
        format!("{}.bias", self.module)
    }

    /// Folds the vector into a pristine base weight and bias, each rounded once to its dtype.
    ///
    /// # Errors
    /// If a shape is not the site's, or the result is not finite.
    pub fn merge(
        &self,
        weight: &HostTensor,
        bias: Option<&HostTensor>,
        vector: &HostTensor,
    ) -> Result<Merged, PeftError> {
        expect_shape(&self.base_weight(), weight, &[self.out, self.input])?;
        expect_shape(&self.name, vector, &self.shape())?;
        let vector = vector.to_f32();
        let mut values = weight.to_f32();
        for (row, at) in values.chunks_exact_mut(self.input.max(1)).zip(0..) {
            for (column, w) in row.iter_mut().enumerate() {
                *w *= vector[if self.on_input { column } else { at }];
            }
        }
        let finite = |tensor: HostTensor| {
            if tensor.to_f32().iter().all(|x| x.is_finite()) {
                return Ok(tensor);
            }
            Err(PeftError::NotFinite { module: self.module.clone() })
        };
        let weight = finite(HostTensor::from_f32(&values, &weight.shape, weight.dtype)?)?;
        let bias = match bias {
            Some(bias) if !self.on_input => {
                expect_shape(&self.base_bias(), bias, &[self.out])?;
                let values: Vec<f32> = bias.to_f32().iter().zip(&vector).map(|(b, l)| b * l).collect();
                Some(finite(HostTensor::from_f32(&values, &bias.shape, bias.dtype)?)?)
            }
            other => other.cloned(),
        };
        Ok(Merged { weight, bias })
    }
}
