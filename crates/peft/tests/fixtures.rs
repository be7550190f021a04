//! Adapters that PEFT 0.21.2 wrote: the repository's copies, and every case of the recordings.

use std::fs;
use std::path::{Path, PathBuf};

use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{
    AdapterFolder, Factor, Init, LoraConfig, LoraPlan, ModuleInfo, ModuleKind, PeftError, Purpose, Targets,
    merge_adapter, write_adapter,
};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use proptest::prelude::*;
use serde_json::Value;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The modules and parameters of a Llama, Qwen3 or Qwen3-MoE of this `config.json`.
fn base(config: &Value) -> (Vec<ModuleInfo>, Registry) {
    let n = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("no {key}")) as usize;
    let (hidden, inter, vocab) = (n("hidden_size"), n("intermediate_size"), n("vocab_size"));
    let (q, kv) = (n("num_attention_heads") * n("head_dim"), n("num_key_value_heads") * n("head_dim"));
    let mut modules = vec![ModuleInfo::new("model.embed_tokens", ModuleKind::Embedding, vocab, hidden)];
    let experts = config["num_local_experts"].as_u64().map(|count| count as usize);
    for layer in 0..n("num_hidden_layers") {
        if let Some(count) = experts {
            let (inner, of) = (n("moe_intermediate_size"), format!("model.layers.{layer}.mlp"));
            let stack = |name: &str, out, input| {
                ModuleInfo::new(format!("{of}.experts.{name}"), ModuleKind::Experts(count), out, input)
            };
            let router = format!("{of}.gate.weight");
            modules.extend([
                ModuleInfo::new(router, ModuleKind::Parameter, count, hidden),
                stack("gate_up_proj", 2 * inner, hidden),
                stack("down_proj", hidden, inner),
            ]);
        }
        for (name, out, input) in [
            ("self_attn.q_proj", q, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, q),
            ("mlp.gate_proj", inter, hidden),
            ("mlp.up_proj", inter, hidden),
            ("mlp.down_proj", hidden, inter),
        ]
        .into_iter()
        .filter(|(name, ..)| experts.is_none() || !name.starts_with("mlp"))
        {
            modules.push(ModuleInfo::new(
                format!("model.layers.{layer}.{name}"),
                ModuleKind::Linear,
                out,
                input,
            ));
        }
    }
    modules.push(ModuleInfo::new("lm_head", ModuleKind::Head, vocab, hidden));
    let mut registry = Registry::new();
    for m in &modules {
        let (name, shape) = match m.kind {
            ModuleKind::Experts(count) | ModuleKind::ExpertsTurned(count) => {
                (m.name.clone(), vec![count, m.out, m.input])
            }
            ModuleKind::Parameter => (m.name.clone(), vec![m.out, m.input]),
            _ => (format!("{}.weight", m.name), vec![m.out, m.input]),
        };
        registry.add(Parameter::new(name, &shape, Role::Matrix, Dtype::F32)).unwrap();
    }
    (modules, registry)
}

/// Why a configuration must be refused, read off the file without the code under test.
fn reason(config: &Value) -> Option<String> {
    let kind = config["peft_type"].as_str().unwrap();
    if !["LORA", "IA3", "OFT", "PROMPT_TUNING"].contains(&kind) {
        return Some(format!("peft_type is {kind}, burnish reads LORA, IA3, "));
    }
    ["use_bdlora"]
        .iter()
        .find(|k| !config[**k].is_null() && config[**k] != false)
        .map(|k| format!("adapter_config.json has `{k}: {}`, which changes the arithmetic", config[*k]))
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Loaded,
    Refused,
    ConfigOnly,
}

fn check(folder: &Path, base_config: &Value) -> Outcome {
    let path = folder.join("adapter_config.json");
    let text = fs::read_to_string(&path).unwrap();
    let shown = folder.display();
    let (modules, registry) =
        if reason(&json(&path)).is_none() { base(base_config) } else { Default::default() };
    if let Some(reason) = reason(&json(&path)) {
        let config = LoraConfig::read(folder);
        // What can be parsed is kept losslessly even if it cannot be used.
        if let Ok(config) = &config {
            assert_eq!(config.to_json(), text, "{shown}");
        }
        let refused = config.and_then(|c| c.check(Purpose::Load)).unwrap_err().to_string();
        assert!(refused.starts_with(&reason), "{shown}: {refused}");
        return Outcome::Refused;
    }
    let config = LoraConfig::read(folder).unwrap();
    assert_eq!(config.to_json(), text, "{shown}");
    let plan = LoraPlan::new(&config, Purpose::Load, "llama", &modules, &registry).unwrap();
    assert_eq!(plan.report.dead().count(), 0);
    if !folder.join("adapter_model.safetensors").exists() {
        return Outcome::ConfigOnly;
    }
    let opened = AdapterFolder::open(folder).unwrap();
    let tensors = opened.load(&plan).unwrap();
    assert_eq!(tensors.parameters.len() + tensors.base_weights.len(), opened.keys().count(), "{shown}");

    // Written back, the tensor file is PEFT's up to the order of header entries: same keys, dtypes, bytes.
    let out = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::in_place(out.path()).unwrap();
    let read = |n: &str| -> Result<Option<HostTensor>, PeftError> {
        Ok(tensors.parameters.get(n).or_else(|| tensors.base_weights.get(n)).cloned())
    };
    write_adapter(&mut writer, &plan, read).unwrap();
    writer.commit().unwrap();
    assert_eq!(fs::read_to_string(out.path().join("adapter_config.json")).unwrap(), text, "{shown}");
    let (theirs, ours) = (WeightFolder::open(folder).unwrap(), WeightFolder::open(out.path()).unwrap());
    assert_eq!(ours.names().collect::<Vec<_>>(), theirs.names().collect::<Vec<_>>(), "{shown}");
    assert_eq!(ours.metadata(), theirs.metadata());
    for name in theirs.names() {
        assert_eq!(ours.read(name).unwrap(), theirs.read(name).unwrap(), "{shown} {name}");
    }
    Outcome::Loaded
}

#[test]
fn own_copies() {
    let root = own();
    let (mut loaded, mut refused, mut bare) = (0, 0, 0);
    for entry in fs::read_dir(&root).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("adapter_config.json").exists() {
            assert!(folder.join("config.json").exists(), "{}", folder.display());
            continue;
        }
        let name = match folder.file_name().and_then(|name| name.to_str()).unwrap() {
            "tiny_ad" => "tiny-llama",
            "out4_moe_both" => "tiny-qwen3-moe",
            _ => "tiny-llama-1l",
        };
        match check(&folder, &json(&root.join(name).join("config.json"))) {
            Outcome::Loaded => loaded += 1,
            Outcome::Refused => refused += 1,
            Outcome::ConfigOnly => bare += 1,
        }
    }
    // Of virtual tokens the configuration alone is here.
    assert_eq!((loaded, refused, bare), (12, 0, 1));
}

#[test]
fn all_recordings() {
    let Some(root) = recordings::given("peft-fixtures") else { return };
    let mut told = recordings::Replay::of(root.display().to_string());
    for entry in fs::read_dir(&root).unwrap() {
        let folder = entry.unwrap().path();
        if folder.is_file() || folder.join("model.safetensors").exists() {
            continue;
        }
        for folder in [folder.clone(), folder.join("nonzero")] {
            let name = folder.strip_prefix(&root).unwrap().display().to_string();
            if !folder.join("adapter_config.json").exists() {
                told.refused(name, "no adapter_config.json: an unknown kind of case");
                continue;
            }
            let base = fs::read(folder.join("expected_logits.json")).ok().and_then(|bytes| {
                let expected: Value = serde_json::from_slice(&bytes).ok()?;
                Some(root.join(expected["base_model"].as_str()?).join("config.json"))
            });
            let Some(base) = base.filter(|base| base.is_file()) else {
                told.refused(name, "its base is not there");
                continue;
            };
            match check(&folder, &json(&base)) {
                Outcome::Loaded => told.replayed(),
                Outcome::Refused => {
                    told.refused(name, reason(&json(&folder.join("adapter_config.json"))).unwrap())
                }
                Outcome::ConfigOnly => told.refused(name, "it has no tensors"),
            }
        }
    }
    told.finish();
}

/// Adapters of other methods, and ones that are tied: refused by the reason that the file gives, not failed on.
#[test]
fn kinds_that_are_not_computed_are_refused_by_name() {
    let config: Value = json(&own().join("out_default/adapter_config.json"));
    for (key, value, why) in [
        ("peft_type", serde_json::json!("POLY"), "peft_type is POLY"),
        (
            "use_bdlora",
            serde_json::json!({"nblocks": 2}),
            "adapter_config.json has `use_bdlora: {\"nblocks\":2}`",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config.clone();
        config[key] = value;
        // As PEFT writes it, so that it is kept to the letter.
        let text = serde_json::to_string_pretty(&config).unwrap();
        fs::write(folder.path().join("adapter_config.json"), text).unwrap();
        assert_eq!(check(folder.path(), &Value::Null), Outcome::Refused);
        assert!(reason(&config).unwrap().starts_with(why));
    }
}

/// Merged weights equal PEFT's `merge_and_unload` in fp32; what it cannot merge is refused.
#[test]
fn merged_weights_are_peft_s() {
    let recorded = json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/merged.json"));
    let root = own();
    let (modules, registry) = base(&json(&root.join("tiny-llama-1l/config.json")));
    let weights = WeightFolder::open(root.join("tiny-llama-1l")).unwrap();
    for (case, expected) in recorded.as_object().unwrap() {
        let folder = root.join(case).join("nonzero");
        assert_eq!(check(&folder, &json(&root.join("tiny-llama-1l/config.json"))), Outcome::Loaded);
        let adapter = AdapterFolder::open(&folder).unwrap();
        let plan = LoraPlan::new(&adapter.config, Purpose::Load, "llama", &modules, &registry).unwrap();
        let tensors = adapter.load(&plan).unwrap();
        let read = |name: &str| -> Result<Option<HostTensor>, PeftError> {
            Ok(if weights.contains(name) { Some(weights.read(name)?) } else { None })
        };
        let merged = merge_adapter(&plan, &tensors, read);
        if expected.is_string() {
            assert!(matches!(merged, Err(PeftError::NoBaseBias { .. })), "{case}: {merged:?}");
            continue;
        }
        let merged = merged.unwrap();
        assert_eq!(merged.untied, [""; 0]);
        let names: Vec<&String> = expected.as_object().unwrap().keys().collect();
        assert_eq!(merged.tensors.keys().collect::<Vec<_>>(), names, "{case}");
        for (name, tensor) in &merged.tensors {
            let values = tensor.to_f32();
            let record = &expected[name];
            let sum: f64 = values.iter().map(|&x| f64::from(x)).sum();
            let abs: f64 = values.iter().map(|&x| f64::from(x).abs()).sum();
            assert!((sum - record["sum"].as_f64().unwrap()).abs() < 1e-6 * abs, "{case} {name}");
            assert!((abs - record["abs_sum"].as_f64().unwrap()).abs() < 1e-6 * abs, "{case} {name}");
            for (at, value) in
                record["at"].as_array().unwrap().iter().zip(record["values"].as_array().unwrap())
            {
                let ours = f64::from(values[at.as_u64().unwrap() as usize]);
                assert!((ours - value.as_f64().unwrap()).abs() < 1e-6, "{case} {name} {at}: {ours} {value}");
            }
        }
    }
}

#[test]
fn every_unsupported_key_is_refused_by_name() {
    let check = |key: &str, value: Value, use_: Purpose| {
        let mut config = LoraConfig::new(8, 8.0);
        if key == "init_lora_weights" {
            config.init_lora_weights = serde_json::from_value(value).unwrap();
        } else {
            config.rest.insert(key.into(), value);
        }
        config.check(use_).map_err(|e| e.to_string())
    };
    for (key, value) in [
        ("use_qalora", Value::Bool(true)),
        ("use_bdlora", serde_json::json!({"nblocks": 2})),
        ("arrow_config", serde_json::json!({"top_k": 3})),
        ("kasa_config", serde_json::json!({"beta": 1})),
        ("monteclora_config", serde_json::json!({"x": 1})),
        ("velora_config", serde_json::json!({"scale": 1})),
        ("megatron_config", serde_json::json!({"x": 1})),
        ("use_tomorrows_method", Value::Bool(true)),
        ("tomorrow_config", serde_json::json!({"x": 1})),
    ] {
        for use_ in [Purpose::Create, Purpose::Load] {
            let error = check(key, value.clone(), use_).unwrap_err();
            assert!(error.contains(&format!("`{key}: {value}`")), "{error}");
        }
        for off in [Value::Null, Value::Bool(false), serde_json::json!([]), serde_json::json!({})] {
            check(key, off, Purpose::Create).unwrap();
        }
    }
    check("new_note", "text".into(), Purpose::Load).unwrap();
    // PEFT sets it by the kind of layer, whatever is said.
    check("fan_in_fan_out", Value::Bool(true), Purpose::Load).unwrap();
    check("eva_config", serde_json::json!({"rho": 2.0}), Purpose::Load).unwrap();
    for name in ["pissa", "pissa_niter_4", "olora", "corda", "lora_ga"] {
        assert!(check("init_lora_weights", name.into(), Purpose::Load).unwrap_err().contains("changed base"));
    }
    let quantised = check("init_lora_weights", "loftq".into(), Purpose::Load).unwrap_err();
    assert!(quantised.contains("write loftq_bits and loftq_iter there"), "{quantised}");
    for name in ["new", "Corda", "pissa_niter_", "pissa_4", "Olora"] {
        assert!(
            check("init_lora_weights", name.into(), Purpose::Create)
                .unwrap_err()
                .contains("use true, false, ")
        );
    }
    check("init_lora_weights", "eva".into(), Purpose::Load).unwrap();
    for name in [
        "gaussian",
        "orthogonal",
        "olora",
        "pissa",
        "pissa_niter_16",
        "loftq",
        "mica",
        "eva",
        "corda",
        "lora_ga",
    ] {
        check("init_lora_weights", name.into(), Purpose::Create).unwrap();
    }
    check("init_lora_weights", "orthogonal".into(), Purpose::Load).unwrap();
}

/// A configuration that says no rank has its method's.
#[test]
fn absent_ranks_are_peft_s() {
    for (kind, rank) in [("LORA", 8), ("LOHA", 8), ("VERA", 256), ("RANDLORA", 32), ("VBLORA", 4)] {
        let of =
            |more: &str| LoraConfig::from_json(&format!(r#"{{"peft_type": "{kind}"{more}}}"#)).unwrap().r;
        assert_eq!((of(""), of(r#", "r": 5"#)), (rank, 5), "{kind}");
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no other numbers", |x| x.is_finite()).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Keys and values that burnish does not know survive, and writing is a fixed point.
    #[test]
    fn unknown_keys_survive(rest in prop::collection::btree_map("x[a-z_]{1,8}", value(), 0..6), r in 1_usize..100, alpha in 0.1_f64..1e6) {
        let mut config = LoraConfig::new(r, alpha);
        config.rest.extend(rest.clone());
        let text = config.to_json();
        let again = LoraConfig::from_json(&text).unwrap();
        prop_assert_eq!(again.to_json(), text);
        prop_assert_eq!((again.r, again.alpha()), (r, alpha));
        for (key, value) in rest {
            prop_assert_eq!(&again.rest[&key], &value);
        }
    }
}

#[test]
fn values_are_checked() {
    let message = |edit: &dyn Fn(&mut LoraConfig)| {
        let mut config = LoraConfig::new(8, 8.0);
        edit(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert_eq!(message(&|c| c.r = 0), "`r` is 0; expected a positive rank");
    let dropout = message(&|c| *c = c.clone().with_dropout(1.0));
    assert_eq!(dropout, "`lora_dropout` is 1.0; expected a probability in [0, 1)");
    let rank = message(&|c| drop(c.rank_pattern.insert("q".into(), 0.into())));
    assert_eq!(rank, "`rank_pattern` is {q: 0}; expected positive ranks");
    let alpha = message(&|c| drop(c.alpha_pattern.insert("q".into(), "x".into())));
    assert!(alpha.contains("`alpha_pattern`") && alpha.contains("expected numbers"));
}

#[test]
fn a_fresh_configuration_is_what_peft_would_write() {
    let theirs = fs::read_to_string(own().join("out_default/adapter_config.json")).unwrap();
    let mut ours = LoraConfig::new(8, 8.0);
    ours.task_type = Some("CAUSAL_LM".into());
    ours.target_modules = serde_json::from_value(
        json(&own().join("out_default/adapter_config.json"))["target_modules"].clone(),
    )
    .unwrap();
    assert_eq!(ours.to_json(), theirs);
}

/// Former names of experts' layers become parameters, as PEFT wrote it for `all-linear` and for the three names.
#[test]
fn former_names_of_experts_are_read_as_peft_reads_them() {
    let (modules, registry) = base(&json(&own().join("tiny-qwen3-moe/config.json")));
    let plan = |targets: Targets, change: fn(&mut LoraConfig)| {
        let mut config = LoraConfig::new(3, 8.0);
        config.target_modules = Some(targets);
        change(&mut config);
        LoraPlan::new(&config, Purpose::Create, "qwen3_moe", &modules, &registry)
    };
    let names = |names: &[&str]| Targets::List(names.iter().map(|&n| n.to_owned()).collect());
    let whole = plan(Targets::Pattern("all-linear".into()), |_| ()).unwrap();
    assert_eq!(whole.config.target_modules, Some(names(&["k_proj", "o_proj", "q_proj", "v_proj"])));
    let parameters = whole.config.target_parameters.clone().unwrap();
    assert_eq!(parameters, ["down_proj", "gate.weight", "gate_up_proj"]);
    for (patterns, doubled) in [(&whole.config.rank_pattern, 6), (&whole.config.alpha_pattern, 16)] {
        assert_eq!(
            serde_json::to_value(patterns).unwrap(),
            serde_json::json!({r".*\.gate_up_proj": doubled})
        );
    }
    let site = |module: &str| whole.site(module).unwrap();
    let gate_up = site("model.layers.0.mlp.experts.gate_up_proj");
    assert_eq!((gate_up.rank, gate_up.scale), (6, 16.0 / 6.0));
    assert_eq!(gate_up.a_name, "model.layers.0.mlp.experts.base_layer.lora_A.weight");
    assert_eq!((gate_up.shape(Factor::A), gate_up.shape(Factor::B)), (vec![24, 32], vec![32, 24]));
    let down = site("model.layers.0.mlp.experts.down_proj");
    assert_eq!(down.b_name, "model.layers.0.mlp.experts.lora_B.weight");
    assert_eq!(site("model.layers.0.mlp.gate.weight").a_name, "model.layers.0.mlp.gate.lora_A.weight");
    // One alone stands outermost.
    let alone = plan(names(&["gate_proj", "up_proj"]), |_| ()).unwrap();
    assert_eq!(alone.sites[0].a_name, "model.layers.0.mlp.experts.lora_A.weight");

    let error = |targets, change| plan(targets, change).unwrap_err().to_string();
    let down = || names(&["down_proj"]);
    assert!(error(names(&["gate_proj"]), |_| ()).contains("name both"));
    assert!(error(Targets::Pattern(".*_proj".into()), |_| ()).contains("target_parameters"));
    assert!(error(down(), |c| *c = c.clone().with_dropout(0.1)).contains("lora_dropout"));
    assert!(error(down(), |c| c.use_dora = true).contains("use_dora"));
    assert!(error(down(), |c| c.init_lora_weights = Init::Olora.into()).contains("init_lora_weights"));
    let none = error(down(), |c| c.target_parameters = Some(vec!["experts.w1".into()]));
    assert!(none.contains("target_parameters") && none.contains("experts.w1"), "{none}");
    // Attention alone needs none of it.
    let plain = plan(Targets::Pattern(r".*\.q_proj".into()), |c| c.use_dora = true).unwrap();
    assert_eq!(plain.sites.len(), 1);
}
