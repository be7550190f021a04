//! Configurations and files that contradict themselves, read as Transformers reads them.

use burnish_core::Dtype;
use burnish_models::{Mode, Model, ModelFolder, ModelPlan, Tuning, load};
use burnish_ops::Parameters;
use burnish_weight_files::{HostTensor, WeightFolder};
use serde_json::json;

use crate::dora::backward;
use crate::recordings::{close, device, fixtures, json as read_json, logits};
use crate::refused::{copy, reweighted};
use crate::round_trips::target;

const ROW: [u32; 6] = [3, 1, 4, 1, 5, 9];

/// A tied configuration over files with a head of their own: equal, it is tied; different, it is not, and both are
/// written.
#[test]
fn a_head_that_is_not_the_embedding_is_not_tied() {
    let with_head = |factor: f32| {
        reweighted("llama-tied", |weights| {
            let embedding = weights.iter().find(|(n, _)| n == "model.embed_tokens.weight").unwrap().1.clone();
            let values: Vec<f32> = embedding.to_f32().iter().map(|x| x * factor).collect();
            let head = HostTensor::from_f32(&values, &embedding.shape, Dtype::F32).unwrap();
            weights.push(("lm_head.weight".to_owned(), head));
        })
    };
    let answers = |path: &std::path::Path| logits(&load(path, &device()).unwrap().decoder, &[ROW.to_vec()]);
    let tied = answers(&fixtures().join("llama-tied"));
    let (same, other) = (with_head(1.0), with_head(2.0));
    assert!(ModelFolder::open(same.path()).unwrap().spec().tied);
    assert_eq!(answers(same.path()), tied);
    let folder = ModelFolder::open(other.path()).unwrap();
    assert!(!folder.spec().tied);
    let doubled: Vec<f32> = tied.iter().map(|x| 2.0 * x).collect();
    close("twice the head", &answers(other.path()), &doubled, 1e-5);
    let model = Model::load(&folder, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
    let (_guard, path, mut writer) = target();
    model.write_full(&folder, &mut writer, Dtype::F32).unwrap();
    writer.commit().unwrap();
    assert!(WeightFolder::open(&path).unwrap().contains("lm_head.weight"));
    assert_eq!(read_json(&path.join("config.json"))["tie_word_embeddings"], false);
    assert_eq!(answers(&path), answers(other.path()));
}

/// Of a tied pair the files may have the head alone.
#[test]
fn a_tied_head_alone_is_the_embedding_too() {
    let folder = reweighted("llama-tied", |weights| {
        for (name, _) in weights.iter_mut().filter(|(n, _)| n == "model.embed_tokens.weight") {
            *name = "lm_head.weight".to_owned();
        }
    });
    let answers = |path: &std::path::Path| logits(&load(path, &device()).unwrap().decoder, &[ROW.to_vec()]);
    assert_eq!(answers(folder.path()), answers(&fixtures().join("llama-tied")));
}

/// What files of ERNIE 4.5 and MiMo have of predicting tokens further on no class reads.
#[test]
fn tensors_of_further_tokens_are_left_out() {
    for (name, tensor) in
        [("ernie4_5-moe", "model.mtp_emb_norm.0.weight"), ("mimo", "model.mtp_layers.0.mlp.down_proj.weight")]
    {
        let folder = reweighted(name, |weights| {
            let extra = HostTensor::from_f32(&[1.0; 4], &[4], Dtype::F32).unwrap();
            weights.push((tensor.to_owned(), extra));
        });
        let answers =
            |path: &std::path::Path| logits(&load(path, &device()).unwrap().decoder, &[ROW.to_vec()]);
        assert_eq!(answers(folder.path()), answers(&fixtures().join(name)), "{name}");
    }
}

/// Keys of the new mixtures that would change what is computed are refused by name.
#[test]
fn what_mixtures_do_not_compute_is_named() {
    for (name, key, value) in [
        ("phimoe", "num_experts_per_tok", json!(3)),
        ("phimoe", "rope_type", json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 10.0})),
        (
            "phimoe",
            "short_mscale",
            json!({"rope_type": "longrope", "rope_theta": 10.0, "factor": 2.0,
            "original_max_position_embeddings": 8, "short_factor": [1, 1, 1, 1, 1, 1], "long_factor": [1, 1, 1, 1, 1, 1]}),
        ),
        ("ernie4_5-moe", "moe_norm_min", json!(0.1)),
        ("ernie4_5-moe", "moe_layer_interval", json!(0)),
        ("minicpm", "num_experts", json!(8)),
        ("minicpm", "sparse_config", json!([{"dense_len": 8192}])),
    ] {
        let folder = copy(name, |config| {
            let key = if value.is_object() { "rope_parameters" } else { key };
            config[key] = value.clone();
        });
        let error = ModelFolder::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(key), "{name}: {error}");
    }
}

/// Transformers writes a window of 0 for a Qwen2-MoE that has none.
#[test]
fn a_window_of_zero_is_none_where_nothing_slides() {
    let folder = copy("qwen2-moe", |config| {
        config["use_sliding_window"] = json!(false);
        config["sliding_window"] = json!(0);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    });
    let spec = ModelFolder::open(folder.path()).unwrap().spec().clone();
    assert!(spec.layers.iter().all(|layer| layer.window.is_none()));
}

/// Transformers writes the numbers of Gemma 4's blocks as wide as the last one.
#[test]
fn blocks_of_gemma_4_may_be_numbered_with_zeros() {
    let sizes = |spell: fn(usize) -> String| {
        let folder = copy("gemma4", |config| {
            let each = config["per_layer_config"].as_object().unwrap();
            assert!(!each.is_empty());
            let again = each.iter().map(|(at, own)| (spell(at.parse().unwrap()), own.clone()));
            config["per_layer_config"] = serde_json::Value::Object(again.collect());
        });
        let spec = ModelFolder::open(folder.path()).unwrap().spec().clone();
        (0..spec.layers.len()).map(|layer| spec.sizes(layer)).collect::<Vec<_>>()
    };
    assert_eq!(sizes(|at| format!("{at:02}")), sizes(|at| at.to_string()));
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_configuration() {
    let folder = copy("llama", |_| {});
    let path = folder.path().join("config.json");
    let marked = [b"\xef\xbb\xbf".as_slice(), &std::fs::read(&path).unwrap()].concat();
    std::fs::write(path, marked).unwrap();
    load(folder.path(), &device()).unwrap();
}

/// Llama's class turns whole heads whatever the configuration says; Phi-3's reads the factor.
#[test]
fn llama_turns_whole_heads() {
    let with = |name: &str| copy(name, |c| c["rope_parameters"]["partial_rotary_factor"] = json!(0.5));
    let dim = |path: &std::path::Path| ModelFolder::open(path).unwrap().spec().ropes[0].dim;
    assert_eq!(dim(with("llama").path()), dim(&fixtures().join("llama")));
    assert_eq!(2 * dim(with("phi3").path()), dim(&fixtures().join("phi3")));
}

/// Frequencies that follow the length follow each text's own.
#[test]
fn a_text_scores_alone_as_among_others() {
    for name in ["llama-rope-dynamic", "llama-rope-longrope", "phi3-longrope"] {
        let model = load(fixtures().join(name), &device()).unwrap().decoder;
        assert!(model.spec().depends_on_length());
        let rows: [Vec<u32>; 3] = [(3..40).collect(), vec![5, 3, 8], (0..45).map(|i| 3 + i % 40).collect()];
        let together = logits(&model, &rows);
        let apart: Vec<f32> = rows.iter().flat_map(|row| logits(&model, std::slice::from_ref(row))).collect();
        close(name, &together, &apart, 1e-5);
    }
}

/// The lookup does not train the pad token's row; a tied head's part of its gradient still flows.
#[test]
fn the_pad_token_s_row_is_held() {
    for (name, tied) in [("llama", false), ("llama-tied", true)] {
        let gradient = |pad: serde_json::Value| {
            let folder = copy(name, |c| c["pad_token_id"] = pad);
            let folder = ModelFolder::open(folder.path()).unwrap();
            let planned = ModelPlan::new(&folder, &Tuning::Full, Dtype::F32, 0).unwrap();
            let (model, resident) = planned.resident(&device()).unwrap();
            let mode = Mode::Train { recompute: false, dropout: None };
            backward(&model.decoder, &[vec![3, 5, 7, 5, 9]], 4.0, 0, mode);
            let index = resident.registry().index_of("model.embed_tokens.weight").unwrap();
            resident.take_gradient(index).unwrap().to_f32()
        };
        let (trained, held) = (gradient(json!(null)), gradient(json!(5)));
        assert_eq!(held, gradient(json!(5 - 56)), "{name}: from the end, as torch counts");
        let hidden = 32;
        for (token, (a, b)) in trained.chunks(hidden).zip(held.chunks(hidden)).enumerate() {
            let size: f32 = b.iter().map(|x| x.abs()).sum();
            match (token, tied) {
                (5, false) => assert_eq!(size, 0.0, "{name}"),
                (5, true) => assert!(size > 0.0 && a != b, "{name}"),
                _ => assert_eq!(a, b, "{name}: token {token}"),
            }
        }
    }
}

/// Published files of Gemma 3n and 4 have keys and values for blocks that read others', which no class reads.
#[test]
fn keys_of_blocks_that_borrow_theirs_are_not_read() {
    for (name, prefix) in [
        ("gemma3n", "model.layers.2"),
        ("gemma4", "model.layers.4"),
        ("gemma4-vision", "model.language_model.layers.2"),
    ] {
        let modules = ["k_proj", "v_proj", "k_norm", "v_norm"];
        let more = |layer: &str| {
            reweighted(name, |weights| {
                let value = weights[0].1.clone();
                weights.extend(
                    modules.map(|module| (format!("{layer}.self_attn.{module}.weight"), value.clone())),
                );
            })
        };
        let row = [vec![3_u32, 5, 7]];
        let want = logits(&load(fixtures().join(name), &device()).unwrap().decoder, &row);
        let got = logits(&load(more(prefix).path(), &device()).unwrap().decoder, &row);
        assert_eq!(want, got, "{name}");
        let said = load(more(&prefix.replace("layers.", "layers.9")).path(), &device()).err().unwrap();
        assert!(said.to_string().contains("belongs to no parameter"), "{name}: {said}");
    }
}
