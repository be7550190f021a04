//! Layers that stand several times with factors of their own (`layer_replication`): what PEFT makes of them, and how much
//! memory their weights take.

use burnish_core::{Dtype, Role};
use burnish_models::{Generation, Model, ModelFolder, ModelPlan, Tuning};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_weight_files::FolderWriter;

use crate::recordings::{device, fixtures, ids, json};
use crate::round_trips::{adapted, answers, target};

const FRESH: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear",
    "layer_replication": [[0, 2], [1, 2], [0, 1]]}"#;

fn recorded() -> Model {
    let folder = ModelFolder::open(fixtures().join("llama")).unwrap();
    let adapter = AdapterFolder::open(fixtures().join("peft/replicated")).unwrap();
    Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap()
}

#[test]
fn generated_text_is_peft_s() {
    let model = recorded();
    assert_eq!(model.decoder.spec().layers.len(), 5);
    let expected = json(&fixtures().join("peft/replicated/expected_logits.json"));
    let recorded = expected["generated"].as_array().unwrap();
    let prompts: Vec<Vec<u32>> = recorded.iter().map(|one| ids(&one["prompt"])).collect();
    let settings = Generation { max_new_tokens: 6, ..Generation::default() };
    let done = model.decoder.generate(&prompts, &settings, &mut |_, _| true).unwrap();
    for (one, completion) in recorded.iter().zip(done) {
        assert_eq!(completion.token_ids, ids(&one["tokens"]));
    }
}

/// The base's tensors are those of the base, once; every layer has factors of its own.
#[test]
fn weights_are_shared_and_factors_are_not() {
    let folder = ModelFolder::open(fixtures().join("llama")).unwrap();
    let config = LoraConfig::from_json(FRESH).unwrap();
    let plan =
        |tuning: &Tuning<'_>| ModelPlan::new(&folder, tuning, Dtype::F32, 0).unwrap().registry().clone();
    let (base, replicated) = (plan(&Tuning::Full), plan(&Tuning::NewAdapter(&config)));
    let names = |registry: &burnish_core::Registry| {
        let of_base = registry.iter().filter(|p| p.role != Role::Adapter);
        of_base.map(|p| (p.name.clone(), p.shape.clone())).collect::<Vec<_>>()
    };
    assert_eq!(names(&replicated), names(&base));
    let factors = |layer: usize| {
        let prefix = format!("model.layers.{layer}.");
        replicated.iter().filter(|p| p.role == Role::Adapter && p.name.starts_with(&prefix)).count()
    };
    assert_eq!([0, 1, 2, 3, 4].map(factors), [14, 14, 14, 14, 0]);
}

#[test]
fn it_is_written_as_it_was_read_and_not_merged() {
    let (folder, model) = adapted("llama", FRESH);
    let (_guard, path, mut writer) = target();
    model.write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let adapter = AdapterFolder::open(&path).unwrap();
    let again = Model::load(&folder, &Tuning::Adapter(&adapter), Dtype::F32, 0, &device()).unwrap();
    assert_eq!(answers(&again), answers(&model));
    let merged = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::new_folder(merged.path().join("merged")).unwrap();
    let error = model.write_merged(&folder, &mut writer, Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("layer_replication"), "{error}");
    let (_guard, path, mut writer) = target();
    recorded().write_adapter(&mut writer).unwrap();
    writer.commit().unwrap();
    let text =
        |folder: &std::path::Path| std::fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    assert_eq!(text(&path), text(&fixtures().join("peft/replicated")));
}

#[test]
fn what_layers_cannot_share_is_refused() {
    let endless = format!(r#""layer_replication": [{}]"#, vec!["[0, 2]"; 2049].join(", "));
    for (base, more, why) in [
        ("llama", endless.as_str(), "no more than 4096 layers"),
        ("llama", r#""layer_replication": [[0, 3]]"#, "ranges [start, end)"),
        ("llama", r#""layer_replication": [[1, 1]]"#, "ranges [start, end)"),
        ("gemma2", r#""layer_replication": [[0, 2], [0, 2]]"#, "all of one kind"),
        ("llama", r#""layer_replication": [[0, 2]], "bias": "all""#, "bias"),
        ("llama", r#""layer_replication": [[0, 2]], "use_dora": true"#, "use_dora"),
        ("llama", r#""layer_replication": [[0, 2]], "init_lora_weights": "pissa""#, "init_lora_weights"),
        (
            "llama",
            r#""layer_replication": [[0, 2], [0, 1]], "modules_to_save": ["input_layernorm"]"#,
            "modules_to_save",
        ),
    ] {
        let config = format!(r#"{{"peft_type": "LORA", "target_modules": ["q_proj"], {more}}}"#);
        let config = LoraConfig::from_json(&config).unwrap();
        let folder = ModelFolder::open(fixtures().join(base)).unwrap();
        let error = Model::load(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 0, &device());
        let error = error.err().unwrap_or_else(|| panic!("{base} {more}")).to_string();
        assert!(error.contains(why), "{more}: {error}");
    }
}
