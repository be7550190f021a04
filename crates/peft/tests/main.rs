//! Adapters against what PEFT does and writes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod fixtures;
mod folder;
mod init;
mod matching;
mod merge;
#[cfg(feature = "burn")]
mod module;
mod weighted;

use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{ModuleInfo, ModuleKind};

/// The modules and parameters of a small two-layer Llama with biases on the query projection.
fn llama() -> (Vec<ModuleInfo>, Registry) {
    let mut modules = vec![ModuleInfo::new("model.embed_tokens", ModuleKind::Embedding, 20, 8)];
    for layer in 0..2 {
        for (name, out, input) in [
            ("self_attn.q_proj", 8, 8),
            ("self_attn.k_proj", 4, 8),
            ("self_attn.v_proj", 4, 8),
            ("self_attn.o_proj", 8, 8),
            ("mlp.gate_proj", 12, 8),
            ("mlp.up_proj", 12, 8),
            ("mlp.down_proj", 8, 12),
        ] {
            modules.push(ModuleInfo::new(
                format!("model.layers.{layer}.{name}"),
                ModuleKind::Linear,
                out,
                input,
            ));
        }
    }
    modules.push(ModuleInfo::new("lm_head", ModuleKind::Head, 20, 8));
    let mut base = Registry::new();
    for m in &modules {
        base.add(Parameter::new(format!("{}.weight", m.name), &[m.out, m.input], Role::Matrix, Dtype::F32))
            .unwrap();
        if m.name.ends_with("q_proj") {
            base.add(Parameter::new(format!("{}.bias", m.name), &[m.out], Role::Bias, Dtype::F32)).unwrap();
        }
    }
    base.add(Parameter::new("model.norm.weight", &[8], Role::Norm, Dtype::F32)).unwrap();
    (modules, base)
}
