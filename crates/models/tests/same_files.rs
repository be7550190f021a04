//! Files do not tell how many ranks shared each layer.

use burnish_core::Dtype;
use burnish_models::{ModelFolder, Tuning};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::WeightFolder;

use crate::part::{files, greatest, on_ranks, written};
use crate::recordings::{close, fixtures};
use crate::round_trips::{adapted, target};

const RANKS: [usize; 4] = [1, 2, 3, 4];

#[track_caller]
fn same_bytes(what: &str, one: &[(String, Vec<u8>)], many: &[(String, Vec<u8>)]) {
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(one), names(many), "{what}");
    for ((name, one), (_, many)) in one.iter().zip(many) {
        assert!(one == many, "{what}: {name} differs");
    }
}

/// Full models: loaded, divided, saved.
#[test]
fn the_same_values_give_byte_identical_models_for_tp_1_2_3_4() {
    for base in [
        "llama",
        "llama-bf16",
        "llama-f16",
        "llama-bias",
        "llama-sharded",
        "llama-tied",
        "qwen2-tied",
        "qwen3",
    ] {
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        for shard in [u64::MAX, 4096] {
            let all = RANKS.map(|ranks| {
                let (_guard, path) = written(ranks, &folder, &Tuning::Full, shard, |_| {});
                files(&path)
            });
            assert!(all[0].iter().any(|(n, _)| n.ends_with(".safetensors")));
            for (ranks, many) in RANKS.iter().zip(&all) {
                same_bytes(&format!("{base} over {ranks} ranks"), &all[0], many);
            }
        }
    }
}

const ALL: &str = r#""target_modules": "all-linear""#;
const ENDS: &str = r#""target_modules": ["embed_tokens", "q_proj", "o_proj", "lm_head"]"#;

/// Adapter folders: loaded, divided, saved. The first ones are those that one process wrote without `tp`.
#[test]
fn the_same_values_give_byte_identical_adapters_for_tp_1_2_3_4() {
    for (base, more) in [
        ("llama", ALL.to_owned()),
        ("llama", ENDS.to_owned()),
        ("llama", format!(r#"{ALL}, "use_dora": true"#)),
        ("qwen2-tied", format!(r#"{ENDS}, "use_dora": true, "use_rslora": true"#)),
        ("llama-bias", format!(r#"{ALL}, "bias": "all", "lora_bias": true"#)),
        ("qwen3", r#""target_modules": ["v_proj"], "modules_to_save": ["lm_head", "q_norm"]"#.to_owned()),
    ] {
        let text = format!(r#"{{"peft_type": "LORA", "r": 3, "lora_alpha": 8, {more}}}"#);
        let (folder, model) = adapted(base, &text);
        let (_guard, first, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(&first).unwrap();
        let one = files(&first);
        assert_eq!(one.len(), 3, "weights, configuration, card");
        for ranks in RANKS {
            let (_guard, path) = written(ranks, &folder, &Tuning::Adapter(&adapter), u64::MAX, |_| {});
            same_bytes(&format!("{base} {more} over {ranks} ranks"), &one, &files(&path));
        }
    }
}

/// Fresh adapters, whose values every rank makes for itself.
#[test]
fn fresh_adapters_give_byte_identical_files_for_tp_1_2_3_4() {
    for init in [
        "true",
        "false",
        r#""gaussian""#,
        r#""orthogonal""#,
        r#""pissa""#,
        r#""pissa_niter_2""#,
        r#""olora""#,
    ] {
        for dora in [false, true] {
            let text = format!(
                r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": {init}, "use_dora": {dora},
                "target_modules": ["embed_tokens", "k_proj", "o_proj", "down_proj", "lm_head"]}}"#
            );
            let config = LoraConfig::from_json(&text).unwrap();
            let folder = ModelFolder::open(fixtures().join("llama")).unwrap();
            let all = RANKS.map(|ranks| {
                let (_guard, path) = written(ranks, &folder, &Tuning::NewAdapter(&config), u64::MAX, |_| {});
                files(&path)
            });
            for (ranks, many) in RANKS.iter().zip(&all) {
                same_bytes(&format!("{init} {dora} over {ranks} ranks"), &all[0], many);
            }
        }
    }
}

const ROW: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

/// A folder with magnitudes, opened at another number of ranks: the same function, and training goes on.
#[test]
fn a_dora_adapter_is_loaded_and_trained_further_at_tp_2_and_4() {
    for (base, targets) in [("llama", ALL), ("qwen2-tied", ENDS)] {
        let text =
            format!(r#"{{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true, {targets}}}"#);
        let (folder, model) = adapted(base, &text);
        let (_guard, path, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let adapter = AdapterFolder::open(&path).unwrap();
        let tuning = Tuning::Adapter(&adapter);
        let run = |ranks| {
            on_ranks(ranks, &folder, &tuning, |part| {
                let logits = part.logits(&ROW);
                let losses: Vec<f32> = (0..4).map(|_| part.step(&[ROW.to_vec()], 7.0, 0.05)).collect();
                (logits, losses, part.trained())
            })
        };
        let (logits, losses, trained) = run(1).remove(0);
        assert!(losses.windows(2).all(|w| w[1] < w[0]), "{losses:?}");
        for ranks in [2, 4] {
            for (l, s, t) in run(ranks) {
                let what = format!("{base} over {ranks} ranks");
                close(&what, &l, &logits, 1e-5 * greatest(&logits).max(1.0));
                close(&what, &s, &losses, 1e-5 * losses[0].max(1.0));
                for ((name, got), (_, want)) in t.iter().zip(&trained) {
                    close(&format!("{what}: {name}"), got, want, 1e-5 * greatest(want).max(1.0));
                }
            }
        }
    }
}

/// What ranks write of an adapter that PEFT wrote is PEFT's file: the same keys, shapes and values (in fp32, which they
/// train in), without the frozen matrices that PEFT writes along.
#[test]
fn adapters_of_peft_divided_and_saved_are_peft_s_files() {
    let root = fixtures().join("peft");
    let mut seen = 0;
    for name in [
        "out_default",
        "out_alllin",
        "out_dora",
        "out_bias",
        "out_emb",
        "out_lmhead",
        "out_mts",
        "dora_everything",
    ] {
        for case in [root.join(name), root.join(name).join("nonzero")] {
            if !case.join("adapter_model.safetensors").is_file() {
                continue;
            }
            let expected = crate::recordings::json(&case.join("expected_logits.json"));
            let folder = ModelFolder::open(root.join(expected["base_model"].as_str().unwrap())).unwrap();
            let adapter = AdapterFolder::open(&case).unwrap();
            let (_guard, path) = written(2, &folder, &Tuning::Adapter(&adapter), u64::MAX, |_| {});
            let open = |at| WeightFolder::open_stem(at, "adapter_model").unwrap();
            let (theirs, ours) = (open(&case), open(&path));
            let keys: Vec<&str> = theirs.names().filter(|k| !k.ends_with("base_layer.weight")).collect();
            assert_eq!(ours.names().collect::<Vec<_>>(), keys, "{}", case.display());
            for key in keys {
                let expected = theirs.read(key).unwrap().cast(Dtype::F32);
                assert_eq!(ours.read(key).unwrap(), expected, "{}: {key}", case.display());
            }
            let text =
                |at: &std::path::Path| std::fs::read_to_string(at.join("adapter_config.json")).unwrap();
            assert_eq!(text(&path), text(&case), "{}", case.display());
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen}");
}
