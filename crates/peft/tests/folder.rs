use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burnish_core::Dtype;
use burnish_peft::{
    AdapterFolder, AdapterTensors, LoraConfig, LoraPlan, ModuleInfo, ModuleKind, PeftError, Purpose,
    Registry, write_adapter,
};
use burnish_weight_files::{FolderWriter, HostTensor, TensorView, WeightFolder};

use crate::llama;

const EVERYTHING: &str = r#"{"peft_type": "LORA", "r": 3, "target_modules": ["q_proj", "embed_tokens", "lm_head"],
    "bias": "all", "modules_to_save": ["model.norm", "layers.1.self_attn.o_proj"], "base_model_name_or_path": "a \"b\""}"#;

fn plan(json: &str) -> LoraPlan {
    let (modules, base) = llama();
    LoraPlan::new(&LoraConfig::from_json(json).unwrap(), Purpose::Create, "llama", &modules, &base).unwrap()
}

fn tensors(plan: &LoraPlan) -> AdapterTensors {
    let mut shapes: Vec<(String, Vec<usize>)> =
        plan.parameters().into_iter().map(|p| (p.name, p.shape)).collect();
    shapes.extend(plan.base_parameters().map(|(n, s)| (n.to_owned(), s.to_vec())));
    let fill = |k: usize, shape: &[usize]| {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| (i + k) as f32).collect();
        HostTensor::from_f32(&values, shape, if k.is_multiple_of(2) { Dtype::F32 } else { Dtype::Bf16 })
            .unwrap()
    };
    let parameters = shapes.iter().enumerate().map(|(k, (n, s))| (n.clone(), fill(k, s))).collect();
    AdapterTensors { parameters, base_weights: BTreeMap::new() }
}

fn save(folder: &Path, plan: &LoraPlan, tensors: &AdapterTensors) {
    let mut writer = FolderWriter::in_place(folder).unwrap();
    let read = |n: &str| {
        Ok::<_, PeftError>(tensors.parameters.get(n).or_else(|| tensors.base_weights.get(n)).cloned())
    };
    write_adapter(&mut writer, plan, read).unwrap();
    writer.commit().unwrap();
}

#[test]
fn what_is_saved_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(EVERYTHING);
    let mut all = tensors(&plan);
    save(dir.path(), &plan, &all);
    let mut files: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["README.md", "adapter_config.json", "adapter_model.safetensors"]);
    let folder = AdapterFolder::open(dir.path()).unwrap();
    assert_eq!(folder.load(&plan).unwrap(), all);
    assert_eq!(folder.config.to_json(), plan.config.to_json());
    let keys: Vec<&str> = folder.keys().collect();
    for key in [
        "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.lora_B.weight",
        "base_model.model.model.norm.weight",
        "base_model.model.model.layers.1.self_attn.o_proj.weight",
    ] {
        assert!(keys.contains(&key), "{key}: {keys:?}");
    }
    let before = fs::read(dir.path().join("adapter_model.safetensors")).unwrap();
    save(dir.path(), &plan, &folder.load(&plan).unwrap());
    assert_eq!(fs::read(dir.path().join("adapter_model.safetensors")).unwrap(), before);

    // A resized embedding travels along.
    let resized = HostTensor::zeros(Dtype::Bf16, &[20, 8]);
    all.base_weights.insert("model.embed_tokens.weight".into(), resized);
    save(dir.path(), &plan, &all);
    assert_eq!(AdapterFolder::open(dir.path()).unwrap().load(&plan).unwrap(), all);

    // A model card written by hand stays.
    fs::write(dir.path().join("README.md"), "mine").unwrap();
    save(dir.path(), &plan, &all);
    assert_eq!(fs::read_to_string(dir.path().join("README.md")).unwrap(), "mine");
}

#[test]
fn all_differences_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let narrow = plan(r#"{"peft_type": "LORA", "r": 3, "target_modules": ["q_proj", "k_proj"]}"#);
    save(dir.path(), &narrow, &tensors(&narrow));
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let other = plan(r#"{"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "v_proj"]}"#);
    let error = folder.load(&other).unwrap_err();
    let PeftError::Mismatch { differences, .. } = &error else { panic!("{error}") };
    assert_eq!(differences.missing.len(), 4);
    assert_eq!(differences.unexpected.len(), 4);
    assert_eq!(differences.shapes.len(), 4);
    let text = error.to_string();
    for line in [
        "\n  missing    base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight",
        "\n  unexpected base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight",
        "\n  shape      base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight: expected [4, 8], got [3, 8]",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let mut writer = FolderWriter::in_place(dir.path()).unwrap();
    let short = write_adapter(&mut writer, &other, |_| Ok::<_, PeftError>(None)).unwrap_err();
    assert!(
        short
            .to_string()
            .contains("missing    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    );
}

#[test]
fn named_adapters_lie_in_subfolders() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(r#"{"peft_type": "LORA", "r": 3, "target_modules": ["q_proj"]}"#);
    let none = AdapterFolder::open(dir.path()).unwrap_err().to_string();
    assert!(none.contains("no adapter_config.json in"), "{none}");
    save(&dir.path().join("one"), &plan, &tensors(&plan));
    assert_eq!(AdapterFolder::open(dir.path()).unwrap().path(), dir.path().join("one"));
    save(&dir.path().join("two"), &plan, &tensors(&plan));
    let many = AdapterFolder::open(dir.path()).unwrap_err().to_string();
    assert!(many.contains("its subfolders one, two hold adapters: name one of them"), "{many}");
    assert!(AdapterFolder::open_named(dir.path(), "two").is_ok());
    assert!(AdapterFolder::open_named(dir.path(), "default").is_err());
    save(dir.path(), &plan, &tensors(&plan));
    assert!(AdapterFolder::open_named(dir.path(), "default").is_ok());
    let gone = AdapterFolder::open(dir.path().join("gone")).unwrap_err().to_string();
    assert!(gone.contains("gone` does not exist"), "{gone}");
}

#[test]
fn damaged_folders() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("adapter_config.json");
    let message = |text: &str| {
        fs::write(&config, text).unwrap();
        AdapterFolder::open(dir.path()).unwrap_err().to_string()
    };
    assert!(message("{").contains("is not an adapter configuration"));
    assert!(message(r#"{"r": 8}"#).contains("it has no `peft_type`"));
    let rank = message(r#"{"peft_type": "LORA", "r": "eight"}"#);
    assert!(rank.contains("`r` is \"eight\""), "{rank}");
    let bias = message(r#"{"peft_type": "LORA", "bias": "some"}"#);
    assert!(bias.contains("`bias` is \"some\""), "{bias}");
    let no_weights = message(r#"{"peft_type": "LORA"}"#);
    assert!(no_weights.contains("looked for adapter_model.safetensors"), "{no_weights}");
    fs::write(dir.path().join("adapter_model.bin"), b"").unwrap();
    assert!(message(r#"{"peft_type": "LORA"}"#).contains("it holds adapter_model.bin"));
}

/// Sharded adapters exist too (`save_pretrained` of very large ones).
#[test]
fn views_and_shards() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(r#"{"peft_type": "LORA", "r": 3, "target_modules": ["q_proj"]}"#);
    let all = tensors(&plan);
    save(dir.path(), &plan, &all);
    let views: Vec<(String, TensorView<'_>)> =
        all.parameters.iter().map(|(n, t)| (format!("base_model.model.{n}"), t.view())).collect();
    let mut writer = FolderWriter::in_place(dir.path()).unwrap().max_shard_size(100);
    writer.tensors("adapter_model", &views).unwrap();
    writer.commit().unwrap();
    assert!(!dir.path().join("adapter_model.safetensors").exists());
    assert!(WeightFolder::open(dir.path()).unwrap().files().count() > 1);
    assert_eq!(AdapterFolder::open(dir.path()).unwrap().load(&plan).unwrap(), all);
}

/// VeRA's matrices as PyTorch draws them: of a seed, the bits that PEFT wrote.
#[test]
fn vera_s_matrices_are_pytorch_s() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/peft/vera");
    let file = WeightFolder::open_stem(&case, "adapter_model").unwrap();
    let config = LoraConfig::read(&case).unwrap();
    let modules = [("q_proj", 32, 32), ("k_proj", 16, 32), ("down_proj", 32, 40)];
    let modules = modules.map(|(name, out, input)| ModuleInfo::new(name, ModuleKind::Linear, out, input));
    let plan = LoraPlan::new(&config, Purpose::Load, "qwen2", &modules, &Registry::new()).unwrap();
    for (part, name) in plan.changes[0].parts[2..].iter().zip(["vera_A", "vera_B"]) {
        assert!((part.name.as_str(), part.trains()) == (name, false));
        let drawn = part.start.values(name, 0, 0..part.shape.iter().product()).unwrap();
        let written = file.read(&format!("base_model.{name}")).unwrap();
        assert_eq!((drawn, &part.shape), (written.to_f32(), &written.shape));
    }
    assert_eq!(plan.trainable_elements(), 32 + 16 + 32 + 3 * 4);
}

/// RandLoRA's bases as PyTorch draws them, in bfloat16 and over their deviation: the bits that PEFT wrote. Ternary ones are in
/// no file: their counts and values.
#[test]
fn rand_lora_s_bases_are_pytorch_s() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/peft/randlora");
    let file = WeightFolder::open_stem(&case, "adapter_model").unwrap();
    let config = LoraConfig::read(&case).unwrap();
    let modules = [("q_proj", 32, 32), ("k_proj", 16, 32), ("up_proj", 40, 32), ("down_proj", 32, 40)];
    let modules = modules.map(|(name, out, input)| ModuleInfo::new(name, ModuleKind::Linear, out, input));
    let plan = LoraPlan::new(&config, Purpose::Load, "qwen2", &modules, &Registry::new()).unwrap();
    for (part, name) in plan.changes[0].parts[2..].iter().zip(["randlora_A", "randlora_B"]) {
        assert!((part.name.as_str(), part.trains()) == (name, false));
        let drawn = part.start.values(name, 0, 0..part.shape.iter().product()).unwrap();
        let written = file.read(&format!("base_model.{name}")).unwrap();
        assert_eq!((drawn, &part.shape), (written.to_f32(), &written.shape));
        assert_eq!(part.start.values(name, 0, 3..17).unwrap(), written.to_f32()[3..17]);
    }
    assert_eq!(plan.parameters().iter().filter(|p| !p.trainable).count(), 2);
}

/// VB-LoRA's logits of which only the chosen ones' weights are kept are read for use, in whatever whole numbers; they do not
/// train, and a number beyond the bank is a difference.
#[test]
fn chosen_vectors_are_read_and_do_not_train() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/peft/vblora_topk");
    let refused = LoraConfig::read(&case).unwrap().check_training().unwrap_err().to_string();
    assert!(refused.contains("save_only_topk_weights"), "{refused}");
    let planned = |vectors: usize| {
        let modules = [ModuleInfo::new("q_proj", ModuleKind::Linear, 8, 4)];
        let json = format!(
            r#"{{"peft_type": "VBLORA", "r": 1, "num_vectors": {vectors}, "vector_length": 4, "topk": 2,
            "save_only_topk_weights": true, "target_modules": ["q_proj"]}}"#
        );
        let config = LoraConfig::from_json(&json).unwrap();
        LoraPlan::new(&config, Purpose::Load, "llama", &modules, &Registry::new()).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| format!("base_model.model.q_proj.vblora_logits_{name}");
    let numbers = |values: &[i32], shape: &[usize]| HostTensor::from_slice(values, shape).unwrap();
    let weights = |values: &[f32], shape: &[usize]| HostTensor::from_slice(values, shape).unwrap();
    let tensors = [
        (of("A_topk_indices"), numbers(&[300, 2], &[1, 1, 2])),
        (of("A_topk_weights"), weights(&[0.75], &[1, 1, 1])),
        (of("B_topk_indices"), numbers(&[0, 1, 5, 4], &[2, 1, 2])),
        (of("B_topk_weights"), weights(&[0.5, 0.9], &[2, 1, 1])),
        ("base_model.vblora_vector_bank".to_owned(), weights(&[0.0; 301 * 4], &[301, 4])),
    ];
    let views: Vec<(String, TensorView<'_>)> = tensors.iter().map(|(n, t)| (n.clone(), t.view())).collect();
    let mut writer = FolderWriter::in_place(dir.path()).unwrap();
    writer.tensors("adapter_model", &views).unwrap();
    writer.file("adapter_config.json", planned(301).config.to_json().as_bytes()).unwrap();
    writer.commit().unwrap();
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let read = folder.load(&planned(301)).unwrap();
    let logits = read.parameters["q_proj.vblora_logits_A"].to_f32();
    let finite: Vec<usize> = (0..301).filter(|&at| logits[at].is_finite()).collect();
    assert_eq!((finite, logits[300], logits[2]), (vec![2, 300], 0.75_f32.ln(), 0.25_f32.ln()));
    let beyond = folder.load(&planned(300)).unwrap_err().to_string();
    assert!(beyond.contains("A_topk_indices"), "{beyond}");
}

/// Sizes of blocks are a module's own by the first pattern that matches, and divide its sides; what matches nothing is said.
#[test]
fn sizes_of_blocks_are_told_by_patterns_and_divide() {
    let modules = [("a.q_proj", 32, 48), ("a.k_proj", 16, 48)];
    let modules = modules.map(|(name, out, input)| ModuleInfo::new(name, ModuleKind::Linear, out, input));
    let plan = |more: &str| {
        let json = format!(r#"{{"target_modules": ["q_proj", "k_proj"], {more}}}"#);
        let config = LoraConfig::from_json(&json).unwrap();
        LoraPlan::new(&config, Purpose::Create, "llama", &modules, &Registry::new())
    };
    let shapes = |more: &str| -> Vec<Vec<usize>> {
        plan(more).unwrap().changes.iter().map(|site| site.parts[0].shape.clone()).collect()
    };
    let c3a = r#""peft_type": "C3A", "block_size": 8"#;
    assert_eq!(shapes(c3a), [[4, 6, 8], [2, 6, 8]]);
    let two = format!(r#"{c3a}, "block_size_pattern": {{"k_.*": 16, "k_proj": 2}}"#);
    assert_eq!(shapes(&two), [[4, 6, 8], [1, 3, 16]]);
    let refused = |more: &str| plan(more).unwrap_err().to_string();
    let dead = refused(&format!(r#"{c3a}, "block_size_pattern": {{"v_proj": 2}}"#));
    assert!(dead.contains("block_size_pattern") && dead.contains("v_proj"), "{dead}");
    let size = refused(r#""peft_type": "C3A", "block_size": 32"#);
    assert!(size.contains("[32, 48] of `a.q_proj`") && size.ends_with("16 would do"), "{size}");
    let boft = |more: &str| format!(r#""peft_type": "BOFT", {more}"#);
    assert_eq!(shapes(&boft(r#""boft_n_butterfly_factor": 2"#)), [[2, 12, 4, 4], [2, 12, 4, 4]]);
    assert_eq!(
        shapes(&boft(r#""boft_block_size": 0, "boft_block_num": 3"#)),
        [[1, 3, 16, 16], [1, 3, 16, 16]]
    );
    assert!(refused(&boft(r#""boft_block_size": 5"#)).contains("[48] of `a.q_proj`"));
    assert!(refused(&boft(r#""boft_block_num": 3"#)).contains("boft_block_size"));
    assert!(refused(&boft(r#""boft_n_butterfly_factor": 4"#)).contains("boft_n_butterfly_factor"));
}

/// Each method has its own word for biases of its modules; the file keeps it.
#[test]
fn biases_of_adapted_modules_have_the_method_s_word() {
    for (peft_type, word) in
        [("BOFT", "boft_only"), ("C3A", "c3a_only"), ("OFT", "oft_only"), ("LORA", "lora_only")]
    {
        let json =
            format!(r#"{{"peft_type": "{peft_type}", "target_modules": ["q_proj"], "bias": "{word}"}}"#);
        let config = LoraConfig::from_json(&json).unwrap();
        assert_eq!(config.bias, burnish_peft::Bias::LoraOnly);
        assert!(config.to_json().contains(&format!("\"bias\": \"{word}\"")), "{word}");
    }
    let refused = LoraConfig::from_json(r#"{"peft_type": "LORA", "bias": "some"}"#).unwrap_err().to_string();
    assert!(refused.contains("bias"), "{refused}");
}

/// What drops blocks only in training may be used, and is not trained further without it.
#[test]
fn an_adapter_that_drops_what_is_not_dropped_here_is_used_and_not_trained() {
    for (peft_type, key) in [
        ("LOHA", "rank_dropout"),
        ("LOKR", "module_dropout"),
        ("OFT", "module_dropout"),
        ("BOFT", "boft_dropout"),
    ] {
        let config = |p: f64| {
            let json =
                format!(r#"{{"peft_type": "{peft_type}", "target_modules": ["q_proj"], "{key}": {p}}}"#);
            LoraConfig::from_json(&json).unwrap()
        };
        config(0.5).check(Purpose::Load).unwrap();
        config(0.0).check_training().unwrap();
        let refused = config(0.5).check_training().unwrap_err();
        assert!(
            matches!(&refused, PeftError::UnsupportedKey { key: named, .. } if named == key),
            "{refused}"
        );
    }
}
