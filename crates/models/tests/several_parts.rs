//! The text part of models that also see: names, what stays, adapters.

use std::collections::BTreeSet;
use std::path::Path;

use burnish_core::Dtype;
use burnish_models::{Model, ModelFolder, ModelPlan, Tuning, load};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use serde_json::json;

use crate::recordings::{device, fixtures, json as read_json, logits};
use crate::refused::{copy, reweighted};
use crate::round_trips::target;

const ROW: [u32; 6] = [3, 1, 4, 1, 5, 9];

fn answers(folder: &Path) -> Vec<f32> {
    logits(&load(folder, &device()).unwrap_or_else(|e| panic!("{e}")).decoder, &[ROW.to_vec()])
}

/// Types that have what another fixture has: the fixture, and where their files have its decoder, if not where it is there.
pub(crate) const OF_OTHERS: [(&str, &str, &str); 49] = [
    ("lfm3_vl", "lfm3", "model.language_model."),
    ("deepseek_vl", "llama", "model.language_model."),
    ("deepseek_vl_hybrid", "llama", "model.language_model."),
    ("janus", "llama", "model.language_model."),
    ("perception_lm", "llama", "model.language_model."),
    ("video_llava", "llama", "model.language_model."),
    ("glmasr", "llama", "model.language_model."),
    ("omniasr", "llama", "model.language_model."),
    ("kimi_k25", "deepseek-v3", "language_model.model."),
    ("got_ocr2", "qwen2", "model.language_model."),
    ("pp_chart2table", "qwen2", "model.language_model."),
    ("fast_vlm", "qwen2", "model.language_model."),
    ("ovis2", "qwen2", "model.language_model."),
    ("video_llama_3", "qwen2", "model.language_model."),
    ("qwen2_audio", "qwen2", "model.language_model."),
    ("vibevoice_asr", "qwen2", "model.language_model."),
    ("lighton_ocr", "qwen3", "model.language_model."),
    ("qianfan_ocr", "qwen3", "model.language_model."),
    ("qwen3_asr", "qwen3", "model.language_model."),
    ("fun_asr_nano", "qwen3", "model.language_model."),
    ("moss_transcribe_diarize", "qwen3", "model.language_model."),
    ("minicpm_ocr", "qwen3_5", "model.language_model."),
    ("minicpmv4_6", "qwen3_5", "model.language_model."),
    ("minicpmv4_7", "qwen3_5", "model.language_model."),
    ("hyperclovax_vision_v2", "hyperclovax", "model.language_model."),
    ("fuyu", "persimmon", "model.language_model."),
    ("granite_speech", "granite", "model.language_model."),
    ("granite_speech_plus", "granite", "model.language_model."),
    ("qwen3_omni_moe_thinker", "qwen3-moe", "model.language_model."),
    ("idefics2", "mistral", "model.text_model."),
    ("qwen3_omni_moe", "qwen3-moe", "thinker.model."),
    ("qwen2_5_omni_thinker", "qwen2-vl", ""),
    ("glmga", "glm46v", ""),
    ("kimi_k2", "deepseek-v3", ""),
    ("sarvam_mla", "deepseek-v3", ""),
    ("deepseek_v32", "glm-moe-dsa", ""),
    ("internvl_chat", "qwen2", "language_model.model."),
    ("kimi_vl", "deepseek-v3", "language_model.model."),
    ("llava_llama", "llama", ""),
    ("llava_mistral", "mistral", ""),
    ("llava_qwen", "qwen2", ""),
    ("phi4_multimodal", "phi3", ""),
    ("aria", "aria", "language_model.model."),
    ("apertus1p5", "apertus1p5", "model.language_model."),
    ("shieldgemma2", "gemma3-vision", ""),
    ("granite4_vision", "granite", "model.language_model."),
    ("hunyuan_vl", "hunyuan", "model.language_model."),
    ("cohere_compass", "cohere-compass", "model.language_model."),
    ("nemotron_h_omni", "nemotron-h", "language_model.model."),
];

/// Of those the ones whose own head multiplies logits as the decoder's does.
const SCALES_LOGITS: [&str; 2] = ["granite4_vision", "cohere_compass"];

/// Each computes what its decoder alone is recorded for; a head of its own is a plain product.
#[test]
fn decoders_of_others_are_the_same_model() {
    for (model_type, name, prefix) in OF_OTHERS {
        let base = ModelFolder::open(fixtures().join(name)).unwrap();
        let scaled = prefix.is_empty() || SCALES_LOGITS.contains(&model_type);
        let (tied, scale) = (base.spec().tied, if scaled { 1.0 } else { base.spec().logit_scale });
        let part = match model_type {
            _ if prefix.starts_with("thinker.") => "thinker.",
            "internvl_chat" | "kimi_vl" | "nemotron_h_omni" => "language_model.",
            _ => "",
        };
        let folder = reweighted(name, |weights| {
            for (tensor, _) in weights.iter_mut().filter(|_| !prefix.is_empty()) {
                *tensor = match tensor.strip_prefix("model.") {
                    Some(rest) => format!("{prefix}{rest}"),
                    None => format!("{part}{tensor}"),
                };
            }
        });
        let path = folder.path().join("config.json");
        let mut config = read_json(&path);
        if prefix.is_empty() {
            config["model_type"] = json!(model_type);
            config["tie_word_embeddings"] = json!(tied);
        } else {
            let key = if model_type == "internvl_chat" { "llm_config" } else { "text_config" };
            config = json!({"model_type": model_type, "tie_word_embeddings": tied, key: config});
        }
        if part == "thinker." {
            config = json!({"model_type": model_type, "thinker_config": config});
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let want = answers(&fixtures().join(name));
        let got: Vec<f32> = answers(folder.path()).iter().map(|x| x * scale).collect();
        let apart = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(got.len() == want.len() && apart <= 1e-5, "{model_type}: {apart}");
    }
}

/// Files of every age: as Transformers 4.5x writes them, with the names that its classes have.
#[test]
fn files_of_other_spellings_are_the_same_model() {
    for (name, own, others) in [
        (
            "gemma3-vision",
            "model.",
            &["language_model.model.", "vision_tower.", "multi_modal_projector."][..],
        ),
        ("llava", "model.", &["language_model.model.", "vision_tower.", "multi_modal_projector."]),
        ("qwen2-vl", "model.", &["model.", "visual."]),
    ] {
        let want = answers(&fixtures().join(name));
        let renamed = reweighted(name, |weights| {
            for (tensor, _) in weights.iter_mut() {
                let Some(prefix) = others.iter().find(|prefix| tensor.starts_with(**prefix)) else {
                    // The head of the language model.
                    *tensor = tensor.replace("language_model.lm_head", "lm_head");
                    continue;
                };
                let rest = tensor.strip_prefix(prefix).unwrap();
                let part = prefix.trim_end_matches(".model.").trim_end_matches('.');
                let part = if part == "model" { "language_model" } else { part };
                *tensor = format!("{own}{part}.{rest}");
            }
        });
        assert_eq!(answers(renamed.path()), want, "{name}");
        let names = WeightFolder::open(renamed.path()).unwrap();
        assert!(names.contains("model.language_model.embed_tokens.weight"), "{name}");
    }
}

#[test]
fn other_parts_stay_as_they_are() {
    for name in ["gemma3-vision", "qwen2_5-vl", "smolvlm"] {
        // In another dtype than the text is written in.
        let folder = reweighted(name, |weights| {
            for (tensor, value) in weights.iter_mut() {
                if tensor.contains("vis") {
                    *value = value.cast(Dtype::F16);
                }
            }
        });
        let opened = ModelFolder::open(folder.path()).unwrap();
        let model = Model::load(&opened, &Tuning::Full, Dtype::F32, 0, &device()).unwrap();
        let (_guard, path, mut writer) = target();
        model.write_full(&opened, &mut writer, Dtype::Bf16).unwrap();
        writer.commit().unwrap();
        let (from, to) = (WeightFolder::open(folder.path()).unwrap(), WeightFolder::open(&path).unwrap());
        assert_eq!(from.names().collect::<BTreeSet<_>>(), to.names().collect::<BTreeSet<_>>(), "{name}");
        let (mut stayed, mut written) = (0, 0);
        for tensor in from.names() {
            if tensor.contains("vis") {
                assert_eq!(from.read(tensor).unwrap(), to.read(tensor).unwrap(), "{name}: {tensor}");
                stayed += 1;
            } else if to.info(tensor).unwrap().dtype == Dtype::Bf16 {
                written += 1;
            }
        }
        assert!(stayed > 5 && written > 10, "{name}: {stayed} {written}");
        let config = read_json(&path.join("config.json"));
        assert_eq!(config["dtype"], "bfloat16", "{name}");
        let class = config["architectures"][0].as_str().unwrap();
        assert!(class.ends_with("ForConditionalGeneration"), "{class}");
        // What is missing or unknown of the text is said as of any model.
        let part = |tensor: &str| tensor.contains("layers.0") && !tensor.contains("vis");
        let less = reweighted(name, |weights| {
            let at = weights.iter().position(|(tensor, _)| part(tensor)).unwrap();
            weights.remove(at);
        });
        assert!(load(less.path(), &device()).err().unwrap().to_string().contains("is missing"), "{name}");
        let more = reweighted(name, |weights| {
            let (tensor, value) = weights.iter().find(|(tensor, _)| part(tensor)).unwrap().clone();
            weights.push((tensor.replace("layers.0", "layers.9"), value));
        });
        let said = load(more.path(), &device()).err().unwrap().to_string();
        assert!(said.contains("belongs to no parameter"), "{name}: {said}");
    }
}

/// PEFT meets the whole model: the configuration says which part, and what it writes of others changes nothing.
#[test]
fn adapters_are_of_the_text_part_alone() {
    let folder = fixtures().join("gemma3-vision");
    let opened = ModelFolder::open(&folder).unwrap();
    let config =
        LoraConfig::from_json(r#"{"peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "v_proj"]}"#);
    let config = config.unwrap();
    let model = Model::load(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device()).unwrap();
    let (_guard, path, mut writer) = target();
    model.write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let written = read_json(&path.join("adapter_config.json"));
    assert_eq!(written["exclude_modules"], r"^(?!model\.language_model\.|lm_head$).*");
    let keys: Vec<String> = AdapterFolder::open(&path).unwrap().keys().map(str::to_owned).collect();
    assert_eq!(keys.len(), 8);
    assert!(keys.contains(
        &"base_model.model.model.language_model.layers.1.self_attn.v_proj.lora_B.weight".to_owned()
    ));
    // As PEFT writes it without the exclusion: the tower's factors, of which B never moved.
    let with_tower = |b: f32| {
        let weights = WeightFolder::open_stem(&path, "adapter_model").unwrap();
        let mut all: Vec<(String, HostTensor)> =
            weights.names().map(|n| (n.to_owned(), weights.read(n).unwrap())).collect();
        let site = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj";
        let a = HostTensor::from_f32(&[0.3; 32], &[2, 16], Dtype::F32).unwrap();
        let b = HostTensor::from_f32(&[b; 32], &[16, 2], Dtype::F32).unwrap();
        all.extend([(format!("{site}.lora_A.weight"), a), (format!("{site}.lora_B.weight"), b)]);
        let folder = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(folder.path()).unwrap();
        let views: Vec<_> = all.iter().map(|(n, t)| (n.clone(), t.view())).collect();
        writer.tensors("adapter_model", &views).unwrap();
        writer
            .json(
                "adapter_config.json",
                &json!({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "v_proj"]}),
            )
            .unwrap();
        writer.commit().unwrap();
        folder
    };
    let opens = |adapter: &Path| {
        let adapter = AdapterFolder::open(adapter).unwrap();
        ModelPlan::new(&opened, &Tuning::Adapter(&adapter), Dtype::F32, 0)
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    opens(with_tower(0.0).path()).unwrap();
    let said = opens(with_tower(0.5).path()).unwrap_err();
    assert!(said.contains("vision_tower.encoder.layers.0.self_attn.q_proj.lora_B.weight"), "{said}");
}

/// With the class of text alone, or before Transformers 4.52, modules had other names: such adapters are read, merged and
/// written by them.
#[test]
fn adapters_name_the_text_part_as_their_class_does() {
    let config = r#"{"peft_type": "LORA", "r": 2, "init_lora_weights": false, "target_modules": "all-linear",
        "modules_to_save": ["norm"]}"#;
    let config = LoraConfig::from_json(config).unwrap();
    let rows = [vec![3, 1, 4, 1, 5], vec![9, 2]];
    for (name, own, theirs) in [
        ("qwen3_5-vision", "model.language_model.", "model."),
        ("qwen3_5-moe-vision", "model.language_model.", "model."),
        ("mllama", "model.language_model.", "model."),
        ("qwen2-vl", "model.language_model.", "model."),
        ("llama4-vision", "language_model.model.", "model."),
        ("gemma3-vision", "model.language_model.", "language_model.model."),
        ("llava", "model.language_model.", "language_model.model."),
    ] {
        let path = fixtures().join(name);
        let opened = ModelFolder::open(&path).unwrap();
        let model = Model::load(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 7, &device()).unwrap();
        let (_guard, written, mut writer) = target();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let (_merged_guard, merged, mut writer) = target();
        model.write_merged(&opened, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();

        let respelled = |key: &str| {
            let module = key.strip_prefix("base_model.model.").unwrap();
            format!("base_model.model.{}", module.replacen(own, theirs, 1))
        };
        let weights = WeightFolder::open_stem(&written, "adapter_model").unwrap();
        let tensors: Vec<(String, HostTensor)> =
            weights.names().map(|name| (respelled(name), weights.read(name).unwrap())).collect();
        let keys: Vec<&String> = tensors.iter().map(|(key, _)| key).collect();
        assert!(!keys.iter().any(|key| weights.contains(key)), "{name}: {keys:?}");
        let views: Vec<_> = tensors.iter().map(|(key, tensor)| (key.clone(), tensor.view())).collect();
        let mut said = read_json(&written.join("adapter_config.json"));
        said.as_object_mut().unwrap().remove("exclude_modules");
        let of_blocks = |target: &str| target.replacen(own, theirs, 1);
        let targets: Vec<String> = said["target_modules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| of_blocks(t.as_str().unwrap()))
            .collect();
        said["target_modules"] = json!(targets);
        let (_other_guard, other, mut writer) = target();
        writer.tensors("adapter_model", &views).unwrap();
        writer.json("adapter_config.json", &said).unwrap();
        writer.commit().unwrap();

        let adapter = AdapterFolder::open(&other).unwrap();
        let named = ModelFolder::open(&path).unwrap().for_adapter(&adapter);
        let planned = ModelPlan::new(&named, &Tuning::Adapter(&adapter), Dtype::F32, 0).unwrap();
        // Over a base that is there only what the adapter has is read.
        let base =
            ModelPlan::new(&opened, &Tuning::None, Dtype::F32, 0).unwrap().resident(&device()).unwrap().1;
        let again = planned.resident_beside(&device(), Some(&base)).unwrap().0;
        assert_eq!(logits(&again.decoder, &rows), logits(&model.decoder, &rows), "{name}");
        let (_again_guard, path, mut writer) = target();
        again.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let rewritten = WeightFolder::open_stem(&path, "adapter_model").unwrap();
        assert!(rewritten.names().eq(AdapterFolder::open(&other).unwrap().keys()), "{name}");
        let (_both_guard, both, mut writer) = target();
        again.write_merged(&named, &mut writer, Dtype::F32).unwrap();
        writer.commit().unwrap();
        let [got, want] = [both, merged].map(|folder| WeightFolder::open(folder).unwrap());
        assert!(got.names().eq(want.names()), "{name}");
        for tensor in want.names() {
            assert_eq!(got.read(tensor).unwrap().bytes, want.read(tensor).unwrap().bytes, "{name}: {tensor}");
        }
    }
}

#[test]
fn what_a_part_cannot_be_is_said() {
    let opened = ModelFolder::open(fixtures().join("llava")).unwrap().into_scorer();
    let said = ModelPlan::new(&opened, &Tuning::Full, Dtype::F32, 0).err().unwrap().to_string();
    assert!(said.contains("llava") && said.contains("for scores"), "{said}");
    let said = ModelFolder::open_untrained(fixtures().join("llava")).err().unwrap().to_string();
    assert!(said.contains("random weights"), "{said}");
    let other = copy("llava", |config| config["text_config"]["model_type"] = json!("gpt2"));
    let said = load(other.path(), &device()).err().unwrap().to_string();
    assert!(said.contains("text_config.model_type") || said.contains("hidden_size"), "{said}");
    let unknown = copy("llava", |config| config["text_config"]["model_type"] = json!("dbrx"));
    let said = load(unknown.path(), &device()).err().unwrap().to_string();
    assert!(said.contains("`text_config.model_type` = dbrx"), "{said}");
}

/// GPT-2's matrices are turned in files: a part of a rank is a part of columns there.
#[test]
fn turned_matrices_are_written_by_several_ranks() {
    let folder = fixtures().join("gpt2");
    let opened = ModelFolder::open(&folder).unwrap();
    let config =
        LoraConfig::from_json(r#"{"peft_type": "LORA", "r": 2, "modules_to_save": ["c_fc"]}"#).unwrap();
    let said =
        ModelPlan::new(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 0).err().unwrap().to_string();
    assert!(said.contains("[in, out]") && said.contains("mlp.c_fc.weight"), "{said}");
    let config = LoraConfig::from_json(r#"{"peft_type": "LORA", "r": 2}"#).unwrap();
    let planned = ModelPlan::new(&opened, &Tuning::NewAdapter(&config), Dtype::F32, 0).unwrap();
    let plan = planned.plan().unwrap();
    assert_eq!(plan.config.rest["fan_in_fan_out"], true);
    assert_eq!((plan.sites[0].out, plan.sites[0].input), (96, 32));
    // Rows of the whole, in any parts.
    let index = planned.registry().index_of("transformer.h.0.attn.c_attn.weight").unwrap();
    let (whole, file) = (planned.rows(index, 0..96).unwrap(), WeightFolder::open(&folder).unwrap());
    let file = file.read("transformer.h.0.attn.c_attn.weight").unwrap();
    assert_eq!((whole.shape.clone(), file.shape.clone()), (vec![96, 32], vec![32, 96]));
    assert_eq!(whole.transposed(), file);
    assert_eq!(planned.rows(index, 7..30).unwrap(), whole.rows(7..30));
}
