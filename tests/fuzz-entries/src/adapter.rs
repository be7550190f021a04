//! `adapter_config.json`, and what it says of a small model's modules.

use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{AdapterFolder, LoraConfig, LoraPlan, ModuleInfo, ModuleKind, Purpose};

use crate::given::{choice, folder, write};

pub(crate) fn read(bytes: &[u8]) {
    let (kind, bytes) = choice(bytes);
    let folder = folder();
    write(folder.path(), "adapter_config.json", bytes);
    let read = LoraConfig::read(folder.path());
    write(folder.path(), "adapter_model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    let _ = AdapterFolder::open(folder.path()).map(|folder| folder.keys().count());
    let config = match read {
        Ok(config) => config,
        Err(error) => return drop(error.to_string()),
    };
    let again = LoraConfig::from_json(&config.to_json()).expect("what is written can be read");
    // As PEFT writes it: what has no meaning for its method is left out.
    assert_eq!(LoraConfig { inference_mode: true, ..config.clone() }.to_json(), again.to_json());
    let _ = config.validate();
    let purpose = if kind % 2 == 0 { Purpose::Create } else { Purpose::Load };
    let (modules, base) = model();
    match LoraPlan::new(&config, purpose, "llama", &modules, &base) {
        Ok(plan) => drop((plan.parameters().len(), plan.base_parameters().count())),
        Err(error) => drop(error.to_string()),
    }
}

fn model() -> (Vec<ModuleInfo>, Registry) {
    let mut modules = vec![ModuleInfo::new("model.embed_tokens", ModuleKind::Embedding, 100, 8)];
    for layer in 0..3 {
        for name in ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"] {
            modules.push(ModuleInfo::new(format!("model.layers.{layer}.{name}"), ModuleKind::Linear, 8, 8));
        }
    }
    modules.push(ModuleInfo::new("lm_head", ModuleKind::Head, 100, 8));
    let mut base = Registry::new();
    for module in &modules {
        for (part, shape, role) in
            [("weight", vec![module.out, module.input], Role::Matrix), ("bias", vec![module.out], Role::Bias)]
        {
            let name = format!("{}.{part}", module.name);
            base.add(Parameter::new(name, &shape, role, Dtype::F32)).expect("names differ");
        }
    }
    (modules, base)
}
