//! Folders in fine-grained FP8 are read as the bfloat16 that Transformers makes of them, and written so.

use burnish_core::Dtype;
use burnish_models::{ModelError, ModelFolder, ModelPlan, Tuning, load};
use burnish_weight_files::{ScaleLayout, WeightFolder};
use serde_json::json;

use crate::recordings::{close, device, fixtures, floats, ids, json as read_json, logits};
use crate::refused::copy;

#[test]
fn logits_are_those_of_the_model_multiplied_out() {
    for name in ["dense", "experts"] {
        let folder = fixtures().join("fp8").join(name);
        let expected = read_json(&folder.join("expected.json"));
        let model = load(&folder, &device()).unwrap();
        let got = logits(&model.decoder, &[ids(&expected["ids"])]);
        close(name, &got, &floats(&expected["logits"]), 1e-4);
    }
}

#[test]
fn the_matrices_train_and_are_written_as_bfloat16() {
    for name in ["dense", "experts"] {
        let path = fixtures().join("fp8").join(name);
        let folder = ModelFolder::open(&path).unwrap();
        let planned = ModelPlan::new(&folder, &Tuning::Full, Dtype::F32, 0).unwrap();
        let is_wide = |p: &&burnish_core::Parameter| p.name.contains("proj") && p.shape.len() > 1;
        let wide: Vec<_> = planned.registry().iter().filter(is_wide).collect();
        assert!(wide.len() > 8 && wide.iter().all(|p| p.trainable && p.quantization.is_none()));
        let frozen = ModelPlan::new(&folder, &Tuning::None, Dtype::F32, 0).unwrap();
        assert!(frozen.registry().iter().filter(is_wide).all(|p| p.precision.store == Dtype::Bf16));
        // Rows and columns of a part, as ranks read them.
        let opened = WeightFolder::open(&path).unwrap();
        let opened = opened.with_scales(ScaleLayout::FineGrained { block: Some([16, 16]) }).unwrap();
        let down = opened.names().find(|name| name.ends_with("down_proj.weight")).unwrap();
        let whole = opened.read(down).unwrap();
        let (rows, columns) = (whole.shape[0], whole.shape[1]);
        let part = opened.read_block(down, 5..rows, 3..columns - 1).unwrap().to_f32();
        let all = whole.to_f32();
        let want = (5..rows).flat_map(|row| all[row * columns + 3..(row + 1) * columns - 1].to_vec());
        assert_eq!(part, want.collect::<Vec<_>>());
    }
}

#[test]
fn what_is_no_such_folder_is_refused() {
    let says = |key: &str, value: serde_json::Value, expected: &str| {
        let folder = copy("fp8/dense", |config| config["quantization_config"][key] = value);
        let error: ModelError = ModelFolder::open(folder.path()).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    };
    says("weight_block_size", json!([16, 32]), "expected [4, 3]: a scale for each block");
    says("weight_block_size", json!("all"), "quantization_config.weight_block_size");
    says("fmt", json!("e5m2"), "quantization_config.fmt");
    says("quant_method", json!("fp9"), "fp8; or a folder of unquantised weights");
}
