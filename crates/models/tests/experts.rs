//! Mixtures of experts: files, adapters, what trains, the loss that balances them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use burnish_comm::local;
use burnish_core::Dtype;
use burnish_models::{
    AdapterByExpert, ExpertSharding, Mode, Model, ModelFolder, ModelPlan, RouterBalance, Tokens, Tuning, load,
};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_tp::Tp;
use burnish_weight_files::{HostTensor, WeightFolder};

use crate::dora::planned_model;
use crate::families::folders;
use crate::recordings::{close, device, fixtures, json, logits};
use crate::round_trips::target;
use crate::tensor_parallel::is_uneven;

const ROW: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];

/// Merged, an adapter on experts, router and attention gives what it gave.
#[test]
fn adapters_on_experts_merge() {
    let peft = fixtures().join("peft");
    for (base, adapter) in [
        (peft.join("tiny-qwen3-moe"), peft.join("out4_moe_alllinear/nonzero")),
        (peft.join("tiny-qwen3-moe"), peft.join("out4_moe_both/nonzero")),
        (fixtures().join("qwen2-moe"), peft.join("lora_experts")),
        (fixtures().join("gemma4-moe"), peft.join("lora_beside")),
        (fixtures().join("llama4"), peft.join("lora_turned")),
    ] {
        let folder = ModelFolder::open(&base).unwrap();
        let tuned = AdapterFolder::open(&adapter).unwrap();
        let model = Model::load(&folder, &Tuning::Adapter(&tuned), Dtype::F32, 0, &device()).unwrap();
        let (_guard, path, mut writer) = target();
        model.write_merged(&folder, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        let merged = load(&path, &device()).unwrap();
        let (want, got) = (logits(&model.decoder, &[ROW.to_vec()]), logits(&merged.decoder, &[ROW.to_vec()]));
        close(&format!("{}", adapter.display()), &got, &want, 1e-5);
        let plain = logits(&load(&base, &device()).unwrap().decoder, &[ROW.to_vec()]);
        assert!(plain.iter().zip(&want).any(|(a, b)| (a - b).abs() > 1e-3), "the adapter shows");
        // One tensor of each expert's matrix, as the base's files have it.
        let names = |path: &std::path::Path| -> BTreeSet<String> {
            WeightFolder::open(path).unwrap().names().map(str::to_owned).collect()
        };
        assert_eq!(names(&path), names(&base));
    }
}

/// Files have an expert's matrices one behind the other, of two stacks by turns: each stack is read once, however many
/// experts there are, and the folder is what it was.
#[test]
fn stacks_of_experts_are_read_once_to_be_written() {
    for name in ["qwen3-moe", "qwen2-moe", "mixtral", "deepseek-v3"] {
        let base = fixtures().join(name);
        let folder = ModelFolder::open(&base).unwrap();
        let model = Model::load(&folder, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
        let registry = model.parameters.registry();
        let reads: Vec<Cell<usize>> = registry.iter().map(|_| Cell::new(0)).collect();
        let (_guard, path, mut writer) = target();
        let rows = |index: usize| std::iter::once(0..registry.at(index).shape[0]).collect();
        let value = |index: usize| {
            reads[index].update(|count| count + 1);
            let values = model.parameters.read(index).to_f32();
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Ok(HostTensor::new(Dtype::F32, &registry.at(index).shape, bytes).unwrap())
        };
        folder.write(&mut writer, registry, registry.len(), Dtype::F32, false, rows, value).unwrap();
        writer.commit().unwrap();
        for (parameter, count) in registry.iter().zip(&reads) {
            assert_eq!(count.get(), usize::from(parameter.alias_of.is_none()), "{name}: {}", parameter.name);
        }
        let [theirs, ours] = [&base, &path].map(|path| WeightFolder::open(path).unwrap());
        for name in theirs.names() {
            assert_eq!(ours.read(name).unwrap(), theirs.read(name).unwrap().cast(Dtype::F32), "{name}");
        }
    }
}

/// An adapter on experts is written as PEFT wrote it.
#[test]
fn adapters_on_experts_are_written_as_they_were_read() {
    for (base, case) in
        [("qwen2-moe", "lora_experts"), ("gemma4-moe", "lora_beside"), ("llama4", "lora_turned")]
    {
        let case = fixtures().join("peft").join(case);
        let tuned = AdapterFolder::open(&case).unwrap();
        let (_, _, model, _) = planned_model(base, &Tuning::Adapter(&tuned));
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let (theirs, ours) = (open(&case), open(&path));
        let theirs_names: Vec<&str> = theirs.names().filter(|name| name.contains("lora")).collect();
        assert_eq!(ours.names().collect::<Vec<_>>(), theirs_names);
        for name in ours.names() {
            assert_eq!(ours.read(name).unwrap(), theirs.read(name).unwrap(), "{name}");
        }
        let config =
            |folder: &std::path::Path, key: &str| json(&folder.join("adapter_config.json"))[key].clone();
        for key in ["target_parameters", "rank_pattern", "alpha_pattern"] {
            assert_eq!(config(&path, key), config(&case, key));
        }
    }
}

/// PhiMoE's routers choose in training as they do otherwise, which whoever trains it is told.
#[test]
fn a_choice_that_is_not_sampled_is_said() {
    let notes = |name: &str| ModelFolder::open(fixtures().join(name)).unwrap().training_notes();
    let said = notes("phimoe");
    assert!(said.len() == 1 && said[0].contains("best two") && said[0].contains("samples"), "{said:?}");
    assert!(notes("mixtral").is_empty() && notes("llama").is_empty());
}

/// Written with factors of each expert, an adapter adds to the base's own matrices what it added: the folder whose weights
/// have `B A` added, name by name, gives the logits of the adapter over its base.
#[test]
fn adapters_on_experts_are_written_by_expert() {
    let peft = fixtures().join("peft");
    for (base, adapter, dtype) in [
        (peft.join("tiny-qwen3-moe"), peft.join("out4_moe_alllinear/nonzero"), Dtype::F32),
        (peft.join("tiny-qwen3-moe"), peft.join("out4_moe_both/nonzero"), Dtype::F32),
        (fixtures().join("qwen2-moe"), peft.join("lora_experts"), Dtype::F32),
        (fixtures().join("qwen2-moe"), peft.join("lora_experts"), Dtype::Bf16),
    ] {
        let folder = ModelFolder::open(&base).unwrap();
        let tuned = AdapterFolder::open(&adapter).unwrap();
        let export = AdapterByExpert::new(&folder, &tuned).unwrap();
        let (_guard, path, mut writer) = target();
        export.write(&mut writer, dtype).unwrap();
        let worst = export.compare(&writer, dtype).unwrap();
        writer.commit().unwrap();
        assert!(worst.relative < if dtype == Dtype::F32 { 1e-6 } else { 1e-2 }, "{worst:?}");
        let (factors, config) = (open(&path), json(&path.join("adapter_config.json")));
        assert_eq!(config["r"], config["lora_alpha"]);
        assert!(factors.names().any(|name| name.contains("mlp.experts.1.up_proj.lora_A.weight")));
        for module in factors.names().filter_map(|name| name.strip_suffix(".lora_A.weight")) {
            let last = module.rsplit('.').next().unwrap();
            assert!(config["target_modules"].as_array().unwrap().iter().any(|t| t == last), "{module}");
        }

        let weights = WeightFolder::open(&base).unwrap();
        let (_base, added, mut writer) = target();
        for name in ["config.json", "generation_config.json"] {
            if let Ok(bytes) = std::fs::read(base.join(name)) {
                writer.file(name, &bytes).unwrap();
            }
        }
        let mut used = 0;
        let tensors: Vec<(String, HostTensor)> = weights
            .names()
            .map(|name| {
                let weight = weights.read(name).unwrap();
                let module = format!("base_model.model.{}", name.strip_suffix(".weight").unwrap_or(name));
                let factor = |end: &str| factors.read(&format!("{module}.lora_{end}.weight"));
                let (Ok(a), Ok(b)) = (factor("A"), factor("B")) else { return (name.to_owned(), weight) };
                used += 2;
                let (rank, columns) = (a.shape[0], a.shape[1]);
                let (a, b, mut values) = (a.to_f32(), b.to_f32(), weight.to_f32());
                for (out, row) in values.chunks_exact_mut(columns).enumerate() {
                    for (at, value) in row.iter_mut().enumerate() {
                        *value += (0..rank).map(|k| b[out * rank + k] * a[k * columns + at]).sum::<f32>();
                    }
                }
                (name.to_owned(), HostTensor::from_f32(&values, &weight.shape, Dtype::F32).unwrap())
            })
            .collect();
        assert_eq!(used, factors.names().count(), "every factor has its matrix");
        let views: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.view())).collect();
        writer.tensors("model", &views).unwrap();
        writer.commit().unwrap();
        let model = Model::load(&folder, &Tuning::Adapter(&tuned), Dtype::F32, 0, &device()).unwrap();
        let want = logits(&model.decoder, &[ROW.to_vec()]);
        let got = logits(&load(&added, &device()).unwrap().decoder, &[ROW.to_vec()]);
        close(&format!("{}", adapter.display()), &got, &want, if dtype == Dtype::F32 { 1e-5 } else { 2e-2 });
    }
}

/// What has more than factors is refused by name.
#[test]
fn adapters_that_cannot_be_written_by_expert_are_refused() {
    let peft = fixtures().join("peft");
    let folder = ModelFolder::open(peft.join("tiny-llama-1l")).unwrap();
    for (adapter, part) in [
        ("out_dora/nonzero", "use_dora"),
        ("out_bias/nonzero", "lora_bias"),
        ("out_emb/nonzero", "an embedding"),
        ("out_mts/nonzero", "modules_to_save"),
    ] {
        let tuned = AdapterFolder::open(peft.join(adapter)).unwrap();
        let error = AdapterByExpert::new(&folder, &tuned).err().unwrap().to_string();
        assert!(error.contains(part) && error.contains("burnish merge"), "{adapter}: {error}");
    }
}

fn open(folder: &std::path::Path) -> WeightFolder {
    WeightFolder::open_stem(folder, "adapter_model").unwrap()
}

/// Full training trains experts and routers; an adapter on attention neither; and what is named and not there is said.
#[test]
fn what_trains_is_what_was_named() {
    let trained = |tuning: &Tuning<'_>| -> Vec<String> {
        let (_, registry, ..) = planned_model("mixtral", tuning);
        registry.trainable().map(|p| p.name.clone()).collect()
    };
    let full = trained(&Tuning::Full);
    for name in ["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"] {
        assert!(full.contains(&format!("model.layers.1.{name}")), "{name}");
    }
    let config =
        |more: &str| LoraConfig::from_json(&format!(r#"{{"peft_type": "LORA", "r": 2{more}}}"#)).unwrap();
    // PEFT's default for Mixtral.
    let attention = trained(&Tuning::NewAdapter(&config("")));
    assert!(attention.iter().all(|name| name.contains("q_proj.lora") || name.contains("v_proj.lora")));
    let experts = trained(&Tuning::NewAdapter(&config(r#", "target_modules": ["w1", "w2", "w3"]"#)));
    assert_eq!(experts.len(), 8, "{experts:?}");
    assert!(experts.iter().all(|name| name.contains("mlp.experts.")), "{experts:?}");
    let folder = ModelFolder::open(fixtures().join("mixtral")).unwrap();
    let wrong = config(r#", "target_parameters": ["experts.w9"]"#);
    let error =
        ModelPlan::new(&folder, &Tuning::NewAdapter(&wrong), Dtype::F32, 0).err().unwrap().to_string();
    assert!(error.contains("target_parameters") && error.contains("experts.w9"), "{error}");
}

/// The balancing loss of a pass, and its gradient of the routers, as Transformers' (recorded for Mixtral).
#[test]
fn the_balancing_loss_equals_transformers() {
    for name in ["mixtral", "qwen2-moe", "granitemoe", "granitemoeshared", "ernie4_5-moe", "phimoe"] {
        let expected = json(&fixtures().join(name).join("expected.json"))["balance"].clone();
        for recompute in [false, true] {
            let (_, registry, model, resident) = planned_model(name, &Tuning::Full);
            let rows: Vec<Vec<u32>> = serde_json::from_value(expected["input_ids"].clone()).unwrap();
            let balance: Arc<RouterBalance> = model.decoder.router_balance(1.0).unwrap();
            let pass = model.decoder.pass(Mode::Train { recompute, dropout: None });
            let pass = pass.with_router_balance(Some(balance.clone()));
            let hidden = model.decoder.hidden(&Tokens::from_sequences(&rows), &pass).unwrap();
            let (got, want) = (balance.loss(), expected["loss"].as_f64().unwrap());
            assert!((got - want).abs() < 1e-5, "{name}: {got} is not {want}");
            // Nothing but the balancing loss.
            let nothing = burnish_ops::AnyTensor::new((hidden.rank::<2>().unwrap() * 0.0).sum());
            pass.backward(&nothing).unwrap();
            let norms = expected["gradient_norms"].as_object().unwrap();
            assert!(norms.len() >= 3, "{name}");
            for (parameter, norm) in norms {
                let gradient =
                    resident.take_gradient(registry.index_of(parameter).unwrap()).unwrap().to_f32();
                let got = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                let want = norm.as_f64().unwrap();
                assert!((got - want).abs() < 1e-4 * want + 1e-7, "{name}: {parameter}: {got} is not {want}");
            }
        }
    }
    assert!(load(fixtures().join("llama"), &device()).unwrap().decoder.router_balance(1.0).is_none());
}

/// Of every family of mixtures: ranks that have some experts whole say what one rank says, of the same tokens or of their
/// own.
#[test]
fn whole_experts_on_ranks_say_what_one_rank_says() {
    let mut mixtures = 0;
    for path in folders() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let folder = ModelFolder::open(&path).unwrap();
        let Some(experts) = folder.spec().experts else { continue };
        mixtures += 1;
        let hidden = |over: Option<(&Tp, ExpertSharding)>, row: &[u32]| {
            let mut planned = ModelPlan::new(&folder, &Tuning::None, Dtype::F32, 0).unwrap();
            if let Some((tp, sharding)) = over {
                planned = planned.sharing_experts(sharding).over(tp).unwrap();
            }
            let model = planned.resident(&device()).unwrap().0;
            let pass = model.decoder.pass(Mode::Score);
            let hidden = model.decoder.hidden(&Tokens::from_sequences(&[row.to_vec()]), &pass).unwrap();
            model.decoder.final_norm(&hidden, &pass).unwrap().to_f32()
        };
        // Each its own: the text from another token on, and of one rank nothing but that.
        let own = |rank: usize| if rank == 1 { &ROW[..1] } else { &ROW[rank..] };
        for ranks in [2, 3] {
            if ranks > experts.count {
                continue;
            }
            let over = |tp: &Tp, sharding, row: &[u32]| hidden(Some((tp, sharding)), row);
            let found = local::run(ranks, |world| {
                let tp = Tp::new(&world.group());
                over(&tp, ExpertSharding::Exchanged, own(tp.rank()))
            });
            for (rank, found) in found.into_iter().enumerate() {
                let alone = hidden(None, own(rank));
                close(&format!("{name}, rank {rank} of {ranks}"), &found.unwrap(), &alone, 1e-4);
            }
            if ranks > folder.spec().heads || is_uneven(&name, ranks) {
                continue;
            }
            let one = hidden(None, &ROW);
            for found in
                local::run(ranks, |world| over(&Tp::new(&world.group()), ExpertSharding::Whole, &ROW))
            {
                close(&format!("{name} over {ranks}"), &found.unwrap(), &one, 1e-4);
            }
        }
    }
    assert!(mixtures >= 20, "{mixtures} mixtures");
}
