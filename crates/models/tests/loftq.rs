//! Adapters that start from what quantising their base loses (LoftQ), against PEFT's.

use burnish_core::{Dtype, Quantization, QuantizeOnLoad, Scheme};
use burnish_models::{ModelFolder, ModelPlan, Tuning, to_device};
use burnish_peft::{AdapterFolder, InitWeights, LoraConfig};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};

use crate::dora::loss_and_gradients;
use crate::recordings::{close, device, fixtures, floats, ids, json, logits};

const SCHEMES: [(u8, Scheme); 2] = [(4, Scheme::Nf4), (8, Scheme::Int8)];

fn on_load(scheme: Scheme) -> QuantizeOnLoad {
    QuantizeOnLoad { quantization: Quantization { scheme, nested: false }, experts: false }
}

fn config(alpha: f64, more: &str) -> LoraConfig {
    let text = format!(
        r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": {alpha}, "init_lora_weights": "loftq", {more} "target_modules":
            ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]}}"#
    );
    LoraConfig::from_json(&text).unwrap()
}

fn plain() -> ModelFolder {
    ModelFolder::open(fixtures().join("quantized/plain")).unwrap()
}

fn planned<'a>(folder: &'a ModelFolder, config: &LoraConfig, scheme: Scheme) -> ModelPlan<'a> {
    let planned = ModelPlan::new(folder, &Tuning::NewAdapter(config), Dtype::F32, 3).unwrap();
    planned.quantized(on_load(scheme), Dtype::F32).unwrap()
}

/// `s B A` of a site, `[out, in]`.
fn product(b: &HostTensor, a: &HostTensor, scale: f64) -> Vec<f32> {
    let (rank, width) = (a.shape[0], a.shape[1]);
    let (a, b) = (a.to_f32(), b.to_f32());
    let element = |o: usize, i: usize| -> f64 {
        (0..rank).map(|r| f64::from(b[o * rank + r]) * f64::from(a[r * width + i])).sum::<f64>() * scale
    };
    (0..b.len() / rank)
        .flat_map(|o| (0..width).map(move |i| (o, i)))
        .map(|(o, i)| element(o, i) as f32)
        .collect()
}

/// Base and product of every module are PEFT's; another alpha and rsLoRA leave the product as it is.
#[test]
fn factors_multiply_to_peft_s() {
    for (bits, scheme) in SCHEMES {
        let recorded = WeightFolder::open_stem(fixtures().join("loftq"), &bits.to_string()).unwrap();
        for config in [config(4.0, ""), config(10.0, ""), config(7.0, r#""use_rslora": true,"#)] {
            let folder = plain();
            let planned = planned(&folder, &config, scheme);
            let (model, _) = planned.resident(&device()).unwrap();
            let plan = model.plan.as_ref().unwrap();
            assert_eq!(plan.sites.len(), 6);
            for site in &plan.sites {
                let host = |name: &str| model.host(model.parameters.registry().index_of(name).unwrap());
                let base = recorded.read(&format!("{}.base", site.module)).unwrap().to_f32();
                close(&site.module, &host(&site.base_weight()).to_f32(), &base, 1e-6);
                let want = recorded.read(&format!("{}.product", site.module)).unwrap().to_f32();
                let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let got = product(&host(&site.b_name), &host(&site.a_name), site.scale);
                close(&format!("{bits} bits: {}", site.module), &got, &want, 1e-3 * largest);
            }
        }
    }
}

/// The same after three iterations, in which the base becomes another.
#[test]
fn several_iterations_are_peft_s() {
    for (bits, scheme) in SCHEMES {
        let recorded = WeightFolder::open_stem(fixtures().join("loftq"), &format!("{bits}-3")).unwrap();
        for (alpha, more) in [(4.0, ""), (10.0, r#""use_rslora": true,"#)] {
            let more = format!(r#""loftq_config": {{"loftq_iter": 3}}, {more}"#);
            let (folder, config) = (plain(), config(alpha, &more));
            let (model, _) = planned(&folder, &config, scheme).resident(&device()).unwrap();
            let once = LoraConfig { rest: Default::default(), ..config.clone() };
            let (once, _) = planned(&folder, &once, scheme).resident(&device()).unwrap();
            let of = |model: &burnish_models::Model, name: &str| {
                model.host(model.parameters.registry().index_of(name).unwrap())
            };
            let plan = model.plan.as_ref().unwrap();
            for module in ["model.layers.0.self_attn.k_proj", "model.layers.0.mlp.up_proj"] {
                let site = plan.site(module).unwrap();
                let want = recorded.read(&format!("{module}.base")).unwrap().to_f32();
                let got = of(&model, &site.base_weight()).to_f32();
                close(module, &got, &want, 1e-6);
                assert_ne!(got, of(&once, &site.base_weight()).to_f32(), "{module}");
                let want = recorded.read(&format!("{module}.product")).unwrap().to_f32();
                let largest = want.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let got = product(&of(&model, &site.b_name), &of(&model, &site.a_name), site.scale);
                close(&format!("{bits} bits: {module}"), &got, &want, 1e-3 * largest);
            }
        }
    }
}

/// Its file says how the base is quantised, as PEFT's do: read over the base in as many bits or in full it is the model that
/// trained, up to what modules without an adapter lose.
#[test]
fn a_file_of_several_iterations_quantises_again() {
    let row = vec![ids(&json(&fixtures().join("loftq/4.json"))["ids"])];
    let folder = plain();
    for (bits, scheme) in SCHEMES {
        let mut config = config(8.0, r#""loftq_config": {"loftq_iter": 2},"#);
        config.target_modules = Some(burnish_peft::Targets::Pattern("all-linear".to_owned()));
        let (model, _) = planned(&folder, &config, scheme).resident(&device()).unwrap();
        let wanted = logits(&model.decoder, &row);
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(out.path()).unwrap();
        assert_eq!(adapter.config.init_lora_weights, InitWeights::Named("loftq".to_owned()));
        assert_eq!(
            adapter.config.rest["loftq_config"],
            serde_json::json!({"loftq_bits": bits, "loftq_iter": 2})
        );
        let again = || ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 7).unwrap();
        let (in_bits, _) =
            again().quantized(on_load(scheme), Dtype::F32).unwrap().resident(&device()).unwrap();
        assert_eq!(logits(&in_bits.decoder, &row), wanted, "{bits} bits");
        let (in_full, _) = again().resident(&device()).unwrap();
        // The folder is in bfloat16.
        for (index, parameter) in in_full.parameters.registry().iter().enumerate() {
            let value = in_bits.host(index).cast(parameter.precision.store);
            assert_eq!(in_full.host(index).bytes, value.bytes, "{bits} bits: {}", parameter.name);
        }
        let rounded = logits(&in_full.decoder, &row);
        close(&format!("{bits} bits in full"), &rounded, &wanted, 0.1);
        let merged = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(merged.path()).unwrap();
        in_full.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        let merged = burnish_models::load(merged.path(), &device()).unwrap();
        close(&format!("{bits} bits merged"), &logits(&merged.decoder, &row), &rounded, 1e-4);
        let other = SCHEMES.iter().find(|(_, other)| *other != scheme).unwrap().1;
        let said = again().quantized(on_load(other), Dtype::F32).err().unwrap().to_string();
        assert!(said.contains("loftq_config"), "{said}");
        let weighted = adapter.load(again().plan().unwrap()).unwrap();
        let said = burnish_peft::merge_adapter(again().plan().unwrap(), &weighted, |_| {
            Ok::<_, burnish_peft::PeftError>(None)
        });
        assert!(said.unwrap_err().to_string().contains("burnish merge"));
    }
}

/// The losses of steps over the quantised base.
#[test]
fn steps_are_peft_s() {
    for (bits, scheme) in SCHEMES {
        let expected = json(&fixtures().join(format!("loftq/{bits}.json")));
        let (row, rate) = (ids(&expected["ids"]), expected["rate"].as_f64().unwrap() as f32);
        let folder = plain();
        let config = config(4.0, "");
        let planned = planned(&folder, &config, scheme);
        let (model, resident) = planned.resident(&device()).unwrap();
        let mut losses = Vec::new();
        for _ in 0..4 {
            let rows = std::slice::from_ref(&row);
            let (loss, gradients) =
                loss_and_gradients(&model, &resident, rows, row.len() as f32 - 1.0, 0, None);
            losses.push(loss);
            assert_eq!(gradients.len(), 12);
            for (name, gradient) in gradients {
                let index = model.parameters.registry().index_of(&name).unwrap();
                let mut value = model.host(index).to_f32();
                value.iter_mut().zip(&gradient).for_each(|(x, g)| *x -= rate * g);
                let shape = &model.parameters.registry().at(index).shape;
                let value = HostTensor::from_f32(&value, shape, Dtype::F32).unwrap();
                resident.write(index, to_device(value, &device()));
            }
        }
        close(&format!("{bits} bits"), &losses, &floats(&expected["losses"]), 2e-4);
    }
}

/// The start is nearer to the model in full than the base in few bits is, and the file is an adapter of that base as any
/// other: PEFT, told that it is LoftQ's, would quantise once more.
#[test]
fn a_written_adapter_is_one_of_the_quantised_base() {
    let row = vec![ids(&json(&fixtures().join("loftq/4.json"))["ids"])];
    let folder = plain();
    let full = burnish_models::load(folder.path(), &device()).unwrap();
    let config = config(16.0, r#""loftq_config": {"loftq_bits": 4, "loftq_iter": 1}, "use_dora": true,"#);
    for config in [config.clone(), LoraConfig { use_dora: false, r: 32, ..config }] {
        let (model, _) = planned(&folder, &config, Scheme::Nf4).resident(&device()).unwrap();
        let (wanted, got) = (logits(&full.decoder, &row), logits(&model.decoder, &row));
        let none = ModelPlan::new(&folder, &Tuning::None, Dtype::F32, 0).unwrap();
        let (base, _) =
            none.quantized(on_load(Scheme::Nf4), Dtype::F32).unwrap().resident(&device()).unwrap();
        let apart = |got: &[f32]| got.iter().zip(&wanted).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        assert!(apart(&got) < apart(&logits(&base.decoder, &row)), "{}", apart(&got));

        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(out.path()).unwrap();
        assert_eq!(adapter.config.init_lora_weights, InitWeights::Flag(true));
        assert_eq!(adapter.config.rest["loftq_config"], serde_json::json!({}));
        let again = ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0).unwrap();
        let (again, _) =
            again.quantized(on_load(Scheme::Nf4), Dtype::F32).unwrap().resident(&device()).unwrap();
        assert_eq!(logits(&again.decoder, &row), got);
    }
}

/// Rows that ranks ask for are those of the whole; a head in full starts as ever.
#[test]
fn rows_are_those_of_the_whole() {
    let mut config = config(8.0, "");
    config.target_modules = Some(burnish_peft::Targets::List(vec!["q_proj".into(), "lm_head".into()]));
    let folder = plain();
    let (one, other) = (planned(&folder, &config, Scheme::Nf4), planned(&folder, &config, Scheme::Nf4));
    for (index, p) in one.registry().iter().enumerate().filter(|(_, p)| p.trainable) {
        let (n, cut) = (p.shape[0], p.shape[0] / 3);
        let whole = one.rows(index, 0..n).unwrap();
        let mut bytes = other.rows(index, 0..cut).unwrap().bytes;
        bytes.extend(other.rows(index, cut..n).unwrap().bytes);
        assert_eq!(whole.bytes, bytes, "{}", p.name);
        let zero = whole.to_f32().iter().all(|x| *x == 0.0);
        assert_eq!(zero, p.name == "lm_head.lora_B.weight", "{}", p.name);
    }
}

#[test]
fn a_base_that_loses_nothing_is_refused() {
    let (folder, config) = (plain(), config(4.0, ""));
    let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 3).unwrap();
    let said = planned.resident(&device()).err().unwrap().to_string();
    assert!(said.contains("init_lora_weights") && said.contains("load_in_4bit"), "{said}");
    let packed = ModelFolder::open(fixtures().join("quantized/nf4")).unwrap();
    let said =
        ModelPlan::new(&packed, &Tuning::NewAdapter(&config), Dtype::F32, 3).err().unwrap().to_string();
    assert!(said.contains("what that lost is in no file of it: take another init_lora_weights"), "{said}");
    // One of PEFT's, whose base it quantised.
    let out = tempfile::tempdir().unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(fixtures().join("peft/out_default").join(name), out.path().join(name)).unwrap();
    }
    let text = std::fs::read_to_string(out.path().join("adapter_config.json")).unwrap();
    let text = text.replace(r#""init_lora_weights": true"#, r#""init_lora_weights": "loftq""#);
    std::fs::write(out.path().join("adapter_config.json"), text).unwrap();
    let adapter = AdapterFolder::open(out.path());
    let said = match adapter {
        Err(error) => error.to_string(),
        Ok(adapter) => {
            ModelPlan::new(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0).err().unwrap().to_string()
        }
    };
    assert!(said.contains("write loftq_bits and loftq_iter there"), "{said}");
}
