//! Writes adapters as a run leaves them, and folded into their base, with the logits they give, for PEFT and Transformers to
//! load. Kinds whose modules the base does not have are left out.
//!
//! ```text
//! cargo run -p burnish-models --example written_adapters -- crates/models/tests/fixtures/llama /tmp/exchange
//! python crates/models/tests/record/written_adapters.py crates/models/tests/fixtures/llama /tmp/exchange
//! ```

use std::path::Path;

use burn::tensor::Device;
use burnish_core::Dtype;
use burnish_core::random::Stream;
use burnish_models::{Mode, ModelFolder, ModelPlan, Tokens, Tuning, to_device};
use burnish_peft::LoraConfig;
use burnish_weight_files::{FolderWriter, HostTensor};

const CASES: [(&str, &str); 7] = [
    ("dora", r#""use_dora": true, "target_modules": "all-linear", "use_rslora": true"#),
    ("dora_ends", r#""use_dora": true, "target_modules": ["embed_tokens", "lm_head", "q_proj"]"#),
    ("orthogonal", r#""init_lora_weights": "orthogonal", "target_modules": "all-linear""#),
    (
        "olora",
        r#""init_lora_weights": "olora", "target_modules": "all-linear", "use_rslora": true,
        "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}"#,
    ),
    ("alora", r#""target_modules": ["q_proj", "o_proj", "down_proj"], "alora_invocation_tokens": [15, 18]"#),
    ("replicated", r#""target_modules": ["q_proj", "down_proj"], "layer_replication": [[0, 2], [0, 1]]"#),
    (
        "pissa_dora",
        r#""init_lora_weights": "pissa", "use_dora": true, "target_modules": ["q_proj", "embed_tokens"]"#,
    ),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, out] = &arguments[..] else { return Err("usage: exchange BASE OUT".into()) };
    let (folder, device) = (ModelFolder::open(base)?, Device::flex());
    for (name, more) in CASES {
        let text = format!(
            r#"{{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6, "base_model_name_or_path": "base", {more}}}"#
        );
        let config = LoraConfig::from_json(&text)?;
        let planned = match ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 1) {
            Ok(planned) => planned,
            Err(error) => {
                println!("{name} left out: {error}");
                continue;
            }
        };
        let registry = planned.registry().clone();
        let (model, resident) = planned.resident(&device)?;
        for (index, p) in registry.iter().enumerate().filter(|(_, p)| p.trainable) {
            let noise = Stream::new(2, &p.name);
            let start = model.host(index).to_f32();
            let values: Vec<f32> = start.iter().zip(0..).map(|(x, i)| x + 0.1 * noise.normal(i)).collect();
            resident.write(index, to_device(HostTensor::from_f32(&values, &p.shape, Dtype::F32)?, &device));
        }
        let tokens = Tokens::from_sequences(&[(0..12_u32).map(|i| i * 3).collect::<Vec<_>>()]);
        let pass = model.decoder.pass(Mode::Score);
        let hidden = model.decoder.final_norm(&model.decoder.hidden(&tokens, &pass)?, &pass)?;
        let head = model.decoder.head(&pass, &tokens.rows)?;
        let logits = burnish_ops::head_logits(&hidden, &head, model.decoder.head_options(1.0))?;
        let mut writer = FolderWriter::in_place(Path::new(out).join(name))?;
        model.write_adapter(&mut writer)?;
        writer.json("logits.json", &serde_json::json!(logits))?;
        writer.commit()?;
        if config.beside_base().is_some() {
            // There are no weights that would do the same.
            continue;
        }
        let mut writer = FolderWriter::in_place(Path::new(out).join(name).join("merged"))?;
        model.write_merged(&folder, &mut writer, Dtype::F32)?;
        writer.commit()?;
    }
    Ok(())
}
