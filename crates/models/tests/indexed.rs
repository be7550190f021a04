//! Attention over tokens that an indexer picks, where it picks all.

use std::collections::BTreeSet;

use burnish_core::Dtype;
use burnish_models::{Mode, Model, ModelFolder, ModelPlan, Tokens, Tuning, load};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use serde_json::json;

use crate::recordings::{device, fixtures, json as read_json, logits};
use crate::refused::copy;
use crate::round_trips::target;

const NAME: &str = "glm-moe-dsa";
const ROW: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];

#[test]
fn texts_are_no_longer_than_it_picks() {
    let want = logits(&load(fixtures().join(NAME), &device()).unwrap().decoder, &[ROW[..8].to_vec()]);
    let folder = copy(NAME, |config| config["index_topk"] = json!(8));
    let decoder = load(folder.path(), &device()).unwrap().decoder;
    assert_eq!(logits(&decoder, &[ROW[..8].to_vec()]), want);
    assert_eq!(decoder.spec().limit(), Some((8, "index_topk")));
    let tokens = Tokens::from_sequences(&[ROW.to_vec()]);
    let said = decoder.hidden(&tokens, &decoder.pass(Mode::Score)).err().unwrap().to_string();
    assert!(said.contains("9 tokens exceeds index_topk 8"), "{said}");
}

/// Qwen of before 1.5 computes longer texts otherwise, where its configuration says so.
#[test]
fn texts_are_no_longer_than_those_that_another_rotation_has() {
    let limit = |change: fn(&mut serde_json::Value)| {
        let folder = copy("qwen", change);
        load(folder.path(), &device()).unwrap().decoder.spec().limit()
    };
    assert_eq!(limit(|_| {}), Some((48, "seq_length")));
    assert_eq!(limit(|config| config["use_dynamic_ntk"] = json!(false)), Some((48, "seq_length")));
    let plain = |config: &mut serde_json::Value| {
        config["use_dynamic_ntk"] = json!(false);
        config["use_logn_attn"] = json!(false);
    };
    assert_eq!(limit(plain), None);
    let decoder = load(fixtures().join("qwen"), &device()).unwrap().decoder;
    let tokens = Tokens::from_sequences(&[vec![3; 49]]);
    let said = decoder.hidden(&tokens, &decoder.pass(Mode::Score)).err().unwrap().to_string();
    assert!(said.contains("49 tokens exceeds seq_length 48"), "{said}");
}

#[test]
fn the_indexer_stays_as_it_is() {
    let opened = ModelFolder::open(fixtures().join(NAME)).unwrap();
    let model = Model::load(&opened, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
    let (_guard, path, mut writer) = target();
    model.write_full(&opened, &mut writer, Dtype::Bf16).unwrap();
    writer.commit().unwrap();
    let (from, to) = (WeightFolder::open(fixtures().join(NAME)).unwrap(), WeightFolder::open(&path).unwrap());
    assert_eq!(from.names().collect::<BTreeSet<_>>(), to.names().collect::<BTreeSet<_>>());
    let mut stayed = 0;
    for tensor in from.names().filter(|name| name.contains(".indexer.")) {
        assert_eq!(from.read(tensor).unwrap(), to.read(tensor).unwrap(), "{tensor}");
        stayed += 1;
    }
    assert_eq!(stayed, 10);
    let said = ModelFolder::open_untrained(fixtures().join(NAME)).err().unwrap().to_string();
    assert!(said.contains("random weights"), "{said}");
}

/// PEFT adapts the indexer's layers too where all linear layers are named; no gradient reaches what it makes there.
#[test]
fn adapters_of_the_indexer_that_never_moved_are_read() {
    let opened = ModelFolder::open(fixtures().join(NAME)).unwrap();
    let config = json!({"peft_type": "LORA", "r": 2, "target_modules": ["q_a_proj"]});
    let config = LoraConfig::from_json(&config.to_string()).unwrap();
    let model = Model::load(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device()).unwrap();
    let (_guard, path, mut writer) = target();
    model.write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let with_indexer = |b: f32| {
        let weights = WeightFolder::open_stem(&path, "adapter_model").unwrap();
        let mut all: Vec<(String, HostTensor)> =
            weights.names().map(|n| (n.to_owned(), weights.read(n).unwrap())).collect();
        let site = "base_model.model.model.layers.0.self_attn.indexer.wk";
        let of = |value: f32, shape: [usize; 2]| {
            HostTensor::from_f32(&vec![value; shape[0] * shape[1]], &shape, Dtype::F32).unwrap()
        };
        all.push((format!("{site}.lora_A.weight"), of(0.3, [2, 24])));
        all.push((format!("{site}.lora_B.weight"), of(b, [8, 2])));
        let folder = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(folder.path()).unwrap();
        let views: Vec<_> = all.iter().map(|(n, t)| (n.clone(), t.view())).collect();
        writer.tensors("adapter_model", &views).unwrap();
        let mut config = read_json(&path.join("adapter_config.json"));
        config["target_modules"] = json!(["q_a_proj", "wk"]);
        writer.json("adapter_config.json", &config).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(folder.path()).unwrap();
        ModelPlan::new(&opened, &Tuning::Adapter(&adapter), Dtype::F32, 0)
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    with_indexer(0.0).unwrap();
    let said = with_indexer(0.5).unwrap_err();
    assert!(said.contains("layers.0.self_attn.indexer.wk.lora_B.weight"), "{said}");
}
