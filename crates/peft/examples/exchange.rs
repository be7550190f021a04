//! Writes random adapters for a small Llama folder, and the base with each of them merged, so that PEFT and
//! Transformers can be asked whether they compute the same (`tests/record/exchange.py` does).
//!
//! `cargo run -p burnish-peft --example exchange -- BASE_FOLDER OUTPUT_FOLDER`

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use burnish_core::{Parameter, Registry, Role};
use burnish_peft::{
    AdapterFolder, LoraConfig, LoraPlan, ModuleInfo, ModuleKind, PeftError, Purpose, init_lora_weights,
    merge_adapter, write_adapter,
};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};

const CASES: &[(&str, &str)] = &[
    ("list", r#"{"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"]}"#),
    ("all-linear", r#"{"r": 3, "use_rslora": true, "target_modules": "all-linear", "lora_dropout": 0.1}"#),
    (
        "pattern",
        r#"{"r": 4, "target_modules": ".*\\.(k|o)_proj", "rank_pattern": {"k_proj": 2}, "alpha_pattern": {"o_proj": 1.5}}"#,
    ),
    ("ends", r#"{"r": 5, "target_modules": ["embed_tokens", "lm_head", "v_proj"]}"#),
    ("saved", r#"{"r": 2, "target_modules": ["gate_proj"], "modules_to_save": ["lm_head", "model.norm"]}"#),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(base), Some(out)) = (arguments.next(), arguments.next()) else {
        return Err("usage: exchange BASE_FOLDER OUTPUT_FOLDER".into());
    };
    let (base, out) = (Path::new(&base), Path::new(&out));
    let weights = WeightFolder::open(base)?;
    let (modules, registry) = describe(&weights)?;
    for (name, json) in CASES {
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json)?;
        object.insert("peft_type".into(), "LORA".into());
        object.insert("task_type".into(), "CAUSAL_LM".into());
        object.insert("init_lora_weights".into(), false.into());
        let config = LoraConfig::from_json(&serde_json::Value::Object(object).to_string())?;
        let plan = LoraPlan::new(&config, Purpose::Create, "llama", &modules, &registry)?;
        let mut values: BTreeMap<String, HostTensor> = BTreeMap::new();
        for site in &plan.sites {
            for factor in site.factors() {
                let shape = site.shape(factor);
                let all = init_lora_weights(
                    site,
                    factor,
                    &plan.config.init_lora_weights,
                    1,
                    0..shape.iter().product(),
                )?;
                values.insert(site.name(factor).to_owned(), HostTensor::from_slice(&all, &shape)?);
            }
        }
        for saved in &plan.saved {
            let tensor = weights.read(saved)?;
            let changed: Vec<f32> = tensor.to_f32().iter().map(|x| x * 1.25).collect();
            values.insert(saved.clone(), HostTensor::from_slice(&changed, &tensor.shape)?);
        }
        let mut writer = FolderWriter::in_place(out.join(name).join("adapter"))?;
        write_adapter(&mut writer, &plan, |n| Ok::<_, PeftError>(values.get(n).cloned()))?;
        let adapter = AdapterFolder::open(writer.commit()?)?.load(&plan)?;

        let merged = merge_adapter(&plan, &adapter, |n| Ok::<_, PeftError>(Some(weights.read(n)?)))?;
        let mut all = merged.tensors;
        for name in weights.names().filter(|n| !all.contains_key(*n)).collect::<Vec<_>>() {
            all.insert(name.to_owned(), weights.read(name)?);
        }
        let views: Vec<_> = all.iter().map(|(n, t)| (n.clone(), t.view())).collect();
        let mut writer = FolderWriter::in_place(out.join(name).join("merged"))?.max_shard_size(20_000);
        writer.tensors("model", &views)?;
        writer.file("config.json", &fs::read(base.join("config.json"))?)?;
        println!("{}", writer.commit()?.display());
    }
    Ok(())
}

/// Modules and parameters of an untied Llama, from the names and shapes of its weights.
fn describe(weights: &WeightFolder) -> Result<(Vec<ModuleInfo>, Registry), Box<dyn Error>> {
    let (mut modules, mut registry) = (Vec::new(), Registry::new());
    for name in weights.names() {
        let info = weights.info(name)?;
        registry.add(Parameter::new(name, &info.shape, Role::Matrix, info.dtype))?;
        let (Some(module), &[out, input]) = (name.strip_suffix(".weight"), &info.shape[..]) else { continue };
        let kind = match module {
            "model.embed_tokens" => ModuleKind::Embedding,
            "lm_head" => ModuleKind::Head,
            _ => ModuleKind::Linear,
        };
        modules.push(ModuleInfo::new(module, kind, out, input));
    }
    Ok((modules, registry))
}
