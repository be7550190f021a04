//! Targets on mixtures of experts: the names of layers that older classes had, as PEFT 0.21.2 reads them now that experts
//! are parameters (`utils/transformers_weight_conversion.py`).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::matching::{ends_with, is_all_linear};
use crate::{LoraConfig, ModuleInfo, ModuleKind, PeftError, Targets, pattern};

/// The former names of an expert's gate, up and second layer; none for Qwen2-MoE, whose names PEFT leaves alone (they are
/// also those of its shared expert).
fn former(model_type: &str) -> Option<[&'static str; 3]> {
    match model_type {
        "mixtral" | "minimax_m2" => Some(["w1", "w3", "w2"]),
        "qwen3_moe"
        | "olmoe"
        | "flex_olmo"
        | "glm4_moe"
        | "glm4_moe_lite"
        | "deepseek_v2"
        | "deepseek_v3"
        | "dots1"
        | "ernie4_5_moe"
        | "qwen3_next"
        | "hunyuan_v1_moe"
        | "exaone_moe"
        | "solar_open"
        | "mellum"
        | "afmoe"
        | "cohere2_moe"
        | "sarvam_mla"
        | "deepseek_v32"
        | "glm_moe_dsa"
        | "glm4v_moe"
        | "qwen3_omni_moe"
        | "qwen3_omni_moe_thinker" => Some(["gate_proj", "up_proj", "down_proj"]),
        _ => None,
    }
}

/// The router's former name, and what now stands for all four.
const ROUTER: &str = "gate";
const ROUTER_WEIGHT: &str = "gate.weight";
const GATE_UP: &str = "gate_up_proj";
const DOWN: &str = "down_proj";

/// Turns former names in `target_modules` into `target_parameters`. Gate and up are one parameter, whose adapter gets the
/// ranks (and alphas) of both.
pub(crate) fn resolve(
    config: &mut LoraConfig,
    model_type: &str,
    modules: &[ModuleInfo],
) -> Result<(), PeftError> {
    let has_experts = modules.iter().any(|module| module.kind.is_experts());
    let (Some([gate, up, down]), true) = (former(model_type), has_experts) else { return Ok(()) };
    let names: BTreeSet<String> = match &config.target_modules {
        None => return Ok(()),
        Some(Targets::List(names)) => names.iter().cloned().collect(),
        Some(targets) if is_all_linear(targets) => {
            let last = |module: &ModuleInfo| module.name.rsplit('.').next().unwrap_or_default().to_owned();
            let linear = modules.iter().filter(|module| module.kind == ModuleKind::Linear).map(last);
            // HunYuan's router is a linear layer of another name.
            let is_router = |module: &ModuleInfo| {
                ends_with(&module.name, ROUTER) || ends_with(&module.name, ROUTER_WEIGHT)
            };
            let router = modules.iter().any(is_router).then_some(ROUTER);
            let former = [gate, up, down].into_iter().chain(router);
            linear.chain(former.map(str::to_owned)).collect()
        }
        Some(Targets::Pattern(p)) => return refuse_pattern(p, [gate, up, down], modules),
    };
    // AFMoE's is one of that name: its adapter has the same tensors under either key.
    let linear_router =
        modules.iter().any(|module| module.kind == ModuleKind::Linear && ends_with(&module.name, ROUTER));
    let mut rest = BTreeSet::new();
    let mut parameters: BTreeSet<String> = config.target_parameters.iter().flatten().cloned().collect();
    let mut of_gate_up = BTreeSet::new();
    for name in names {
        let is = |former: &str| ends_with(&name, former);
        if is(ROUTER) && !linear_router {
            parameters.insert(ROUTER_WEIGHT.to_owned());
        } else if let Some(half) = [gate, up].into_iter().find(|half| is(half)) {
            of_gate_up.insert(half);
            parameters.insert(GATE_UP.to_owned());
        } else if is(down) {
            parameters.insert(DOWN.to_owned());
        } else {
            rest.insert(name);
        }
    }
    match of_gate_up.len() {
        0 => {}
        1 => {
            let condition = "with one of an expert's gate and up layers alone: they are one parameter here and in \
                             Transformers; name both";
            return Err(PeftError::Conflict { key: "target_modules", condition });
        }
        _ => {
            let pattern = format!(r".*\.{GATE_UP}");
            config.rank_pattern.insert(pattern.clone(), Value::from(2 * config.r));
            let doubled = match config.lora_alpha.as_u64() {
                Some(alpha) => Value::from(2 * alpha),
                None => Value::from(2.0 * config.alpha()),
            };
            config.alpha_pattern.insert(pattern, doubled);
        }
    }
    config.target_modules = Some(Targets::List(rest.into_iter().collect()));
    config.target_parameters = (!parameters.is_empty() || config.target_parameters.is_some())
        .then(|| parameters.into_iter().collect());
    Ok(())
}

/// PEFT takes the last names of what an expression matches, in whatever layer; here such a one is refused.
fn refuse_pattern(given: &str, former: [&str; 3], modules: &[ModuleInfo]) -> Result<(), PeftError> {
    let matcher = pattern::whole("target_modules", given)?;
    let containers = modules.iter().filter(|module| module.kind.is_experts());
    for module in containers.filter_map(|module| Some(module.name.rsplit_once('.')?.0)) {
        for name in former {
            if matcher.matches(&format!("{module}.{name}"))? {
                return Err(PeftError::UnsupportedKey {
                    key: "target_modules".to_owned(),
                    value: format!("{given:?}"),
                    mend: "it matches layers of experts: give a list of names, all-linear, or target_parameters",
                });
            }
        }
    }
    Ok(())
}
