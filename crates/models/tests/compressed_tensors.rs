//! Folders as compressed-tensors writes them, against Transformers' that are multiplied out.

use std::path::PathBuf;

use burnish_core::{Dtype, Role, Scheme};
use burnish_models::{ModelError, ModelFolder, ModelPlan, Tuning, load};
use burnish_weight_files::{HostTensor, ScaleLayout, WeightFolder};
use serde_json::{Value, json};

use crate::quantized::{gradients_are_those_over_the_values, with_tensor};
use crate::recordings::{close, device, fixtures, floats, ids, json as read_json, logits};
use crate::refused::copy;

/// Folders whose matrices rest in 16 bits when they are read.
const WIDENED: [(&str, Dtype); 9] = [
    ("fp8", Dtype::Bf16),
    ("fp8-dynamic", Dtype::Bf16),
    ("fp8-block", Dtype::Bf16),
    ("mxfp8", Dtype::Bf16),
    ("w8a8", Dtype::F16),
    ("w8a8-asym", Dtype::Bf16),
    ("w4a8", Dtype::Bf16),
    ("w8a16", Dtype::Bf16),
    ("experts-fp8", Dtype::Bf16),
];
/// Folders whose matrices stay in four bits.
const KEPT: [(&str, Scheme, Dtype); 7] = [
    ("w4a16", Scheme::Int4 { group: 32, ordered: false }, Dtype::Bf16),
    ("w4a16-asym", Scheme::Int4 { group: 32, ordered: false }, Dtype::F16),
    ("w4a16-ordered", Scheme::Int4 { group: 32, ordered: true }, Dtype::Bf16),
    ("mxfp4", Scheme::Mxfp4, Dtype::Bf16),
    ("nvfp4", Scheme::Nvfp4, Dtype::Bf16),
    ("experts-w4a16", Scheme::Int4 { group: 32, ordered: false }, Dtype::Bf16),
    ("experts-nvfp4", Scheme::Nvfp4, Dtype::Bf16),
];

fn folder(name: &str) -> PathBuf {
    fixtures().join("compressed-tensors").join(name)
}

fn is_projection(role: Role, name: &str) -> bool {
    matches!(role, Role::Matrix | Role::Expert) && name.contains("proj")
}

#[test]
fn logits_are_those_of_the_model_multiplied_out() {
    let names = WIDENED.iter().map(|(name, _)| *name).chain(KEPT.iter().map(|(name, ..)| *name));
    for name in names {
        let expected = read_json(&folder(name).join("expected.json"));
        let model = load(folder(name), &device()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = logits(&model.decoder, &[ids(&expected["ids"])]);
        close(name, &got, &floats(&expected["logits"]), 1e-4);
    }
}

#[test]
fn eight_bits_are_widened_and_four_stay() {
    for (name, read) in WIDENED {
        let opened = ModelFolder::open(folder(name)).unwrap();
        assert!(!opened.is_quantized(), "{name}");
        let frozen = ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap();
        for parameter in frozen.registry().iter().filter(|p| is_projection(p.role, &p.name)) {
            assert_eq!((parameter.precision.store, parameter.quantization), (read, None), "{name}");
        }
        assert!(ModelPlan::new(&opened, &Tuning::Full, Dtype::F32, 0).is_ok(), "{name}: trains whole");
    }
    for (name, scheme, read) in KEPT {
        let opened = ModelFolder::open(folder(name)).unwrap();
        let planned = ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap();
        for parameter in planned.registry().iter().filter(|p| is_projection(p.role, &p.name)) {
            let own = parameter.quantization.map(|own| own.scheme);
            assert_eq!((own, parameter.precision.store), (Some(scheme), read), "{name}: {}", parameter.name);
        }
        let whole = ModelPlan::new(&opened, &Tuning::Full, Dtype::F32, 0).err().unwrap().to_string();
        assert!(whole.contains("the whole model cannot train: train an adapter (use_peft)"), "{whole}");
    }
}

/// Rows and columns of a matrix as ranks read them.
#[test]
fn parts_are_those_of_the_whole() {
    for (name, _) in WIDENED {
        let block = (name == "fp8-block").then_some([16, 32]);
        let opened = WeightFolder::open(folder(name)).unwrap();
        let layout = ScaleLayout::CompressedTensors { block, read: Dtype::F32 };
        let opened = opened.with_scales(layout).unwrap();
        let all: Vec<_> = opened.names().filter(|name| name.ends_with("proj.weight")).collect();
        assert!(all.len() >= 7 && !opened.names().any(|name| name.contains("_scale")), "{name}");
        for tensor in all {
            let whole = opened.read(tensor).unwrap();
            let (rows, columns) = (whole.shape[0], whole.shape[1]);
            let part = opened.read_block(tensor, 5..rows, 3..columns - 1).unwrap().to_f32();
            let values = whole.to_f32();
            let row = |row: usize| values[row * columns + 3..(row + 1) * columns - 1].to_vec();
            assert_eq!(part, (5..rows).flat_map(row).collect::<Vec<_>>(), "{name}: {tensor}");
        }
    }
    for (name, scheme, _) in KEPT {
        let opened = ModelFolder::open(folder(name)).unwrap();
        let planned = ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap();
        let down = planned.registry().iter().find(|p| p.role == Role::Matrix && p.quantization.is_some());
        let down = down.unwrap_or_else(|| panic!("{name}: {scheme}"));
        let whole = opened.rows(down, 0..down.shape[0]).unwrap().to_f32();
        let part = opened.block(down, 3..9, 16..48).unwrap().to_f32();
        let columns = down.shape[1];
        let row = |row: usize| whole[row * columns + 16..row * columns + 48].to_vec();
        assert_eq!(part, (3..9).flat_map(row).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn gradients_of_an_adapter_are_those_over_the_values() {
    for (name, ..) in KEPT.iter().filter(|(name, ..)| !name.starts_with("experts")) {
        gradients_are_those_over_the_values(name, &folder(name), 4);
    }
}

#[test]
fn what_is_read_otherwise_is_refused() {
    let says = |name: &str, change: &dyn Fn(&mut Value), expected: &str| {
        let folder =
            copy(&format!("compressed-tensors/{name}"), |config| change(&mut config["quantization_config"]));
        let error: ModelError = ModelFolder::open(folder.path()).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    };
    says("w8a8", &|own| own["quantization_status"] = json!("frozen"), "quantization_status` = frozen");
    says(
        "w8a8",
        &|own| own["sparsity_config"] = json!({"format": "sparse-24-bitmask"}),
        "sparsity_config.format",
    );
    says(
        "w4a16",
        &|own| own["transform_config"] = json!({"config_groups": {"R1": {"type": "hadamard"}}}),
        "transform_config` = R1",
    );
    says(
        "w4a16",
        &|own| own["config_groups"]["group_0"]["format"] = json!("marlin-24"),
        "format` = marlin-24",
    );
    says("w4a16", &|own| own["config_groups"]["group_0"]["weights"]["num_bits"] = json!(3), "num_bits` = 3");
    let blocks = |size: Value| {
        move |own: &mut Value| {
            own["config_groups"]["group_0"]["weights"]["block_structure"] = size.clone();
        }
    };
    says("fp8-block", &blocks(json!([16, 16])), "_scale` is [4, 3], expected [4, 6]");
    says("fp8-block", &blocks(json!("all")), "weights.block_structure` = \"all\"");
}

#[test]
fn damaged_matrices_are_refused() {
    let module = "model.layers.0.self_attn.q_proj.weight";
    let says = |name: &str, tensor: &str, change: &dyn Fn(&mut HostTensor), expected: &str| {
        let error = with_tensor(&format!("compressed-tensors/{name}"), &format!("{module}{tensor}"), change);
        assert!(error.contains(expected), "{name}: {error}");
    };
    let shaped = |shape: &'static [usize], dtype: Dtype| {
        move |t: &mut HostTensor| *t = HostTensor::zeros(dtype, shape)
    };
    says(
        "w4a16",
        "_scale",
        &shaped(&[64, 3], Dtype::Bf16),
        "is [64, 3], expected [64, groups that share 64 inputs evenly]",
    );
    says("w4a16", "_packed", &shaped(&[64, 7], Dtype::I32), "is int32 [64, 7], expected int32 [64, 8]");
    says("w4a16", "_scale", &|t| t.bytes[..2].copy_from_slice(&[0x80, 0x7f]), "scale 0 is inf");
    says("w4a16-asym", "_zero_point", &shaped(&[7, 2], Dtype::I32), "is int32 [7, 2], expected int32 [8, 2]");
    says("mxfp4", "_scale", &shaped(&[64, 3], Dtype::U8), "is uint8 [64, 3], expected uint8 [64, 2]");
    says("w8a8-asym", "_zero_point", &shaped(&[64, 2], Dtype::I8), "is [64, 2], expected [64, 1]");
    // Words that are no matrix of four bits either.
    says(
        "w8a16",
        "_shape",
        &|t| t.bytes[0] = 9,
        "tensor `model.layers.0.self_attn.q_proj.weight` is missing",
    );
}
