use std::collections::BTreeMap;

use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{
    LoraConfig, LoraPlan, ModuleInfo, ModuleKind, PeftError, Purpose, Targets, match_modules, write_adapter,
};
use burnish_weight_files::{FolderWriter, HostTensor, WeightFolder};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::llama;

#[derive(Deserialize)]
struct Table {
    models: BTreeMap<String, Model>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Model {
    modules: Vec<(String, String, usize, usize)>,
    parameters: BTreeMap<String, Vec<usize>>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    config: Map<String, Value>,
    error: Option<String>,
    sites: Option<BTreeMap<String, (usize, f64, f64)>>,
    shapes: Option<BTreeMap<String, Vec<usize>>>,
}

impl Model {
    fn build(&self) -> (Vec<ModuleInfo>, Registry) {
        let kind = |k: &str| match k {
            "embedding" => ModuleKind::Embedding,
            "head" => ModuleKind::Head,
            "linear" => ModuleKind::Linear,
            other => panic!("unknown kind of module {other}"),
        };
        let modules = self.modules.iter().map(|(n, k, out, input)| ModuleInfo::new(n, kind(k), *out, *input));
        let mut base = Registry::new();
        for (name, shape) in &self.parameters {
            base.add(Parameter::new(name, shape, Role::Matrix, Dtype::F32)).unwrap();
        }
        (modules.collect(), base)
    }
}

/// Every key and shape that the plan puts on disk, without PEFT's prefix.
fn on_disk(plan: &LoraPlan) -> BTreeMap<String, Vec<usize>> {
    let dir = tempfile::tempdir().unwrap();
    let mut shapes: BTreeMap<String, Vec<usize>> =
        plan.parameters().into_iter().map(|p| (p.name, p.shape)).collect();
    shapes.extend(plan.base_parameters().map(|(n, s)| (n.to_owned(), s.to_vec())));
    let mut writer = FolderWriter::in_place(dir.path()).unwrap();
    let read = |name: &str| Ok::<_, PeftError>(shapes.get(name).map(|s| HostTensor::zeros(Dtype::F32, s)));
    write_adapter(&mut writer, plan, read).unwrap();
    writer.commit().unwrap();
    let folder = WeightFolder::open(dir.path()).unwrap();
    let key = |n: &str| n.strip_prefix("base_model.model.").unwrap().to_owned();
    folder.names().map(|n| (key(n), folder.info(n).unwrap().shape)).collect()
}

#[test]
fn same_modules_ranks_and_scales_as_peft() {
    let table: Table = serde_json::from_str(include_str!("matching.json")).unwrap();
    assert!(table.cases.len() >= 70);
    let mut order_refused = 0;
    for case in &table.cases {
        let about = format!("{} {:?}", case.model, case.config);
        let (modules, base) = table.models[&case.model].build();
        let mut object = case.config.clone();
        object.insert("peft_type".into(), "LORA".into());
        let config = LoraConfig::from_json(&Value::Object(object).to_string()).unwrap();
        let planned = LoraPlan::new(&config, Purpose::Load, &case.model, &modules, &base);
        let (plan, sites) = match (planned, &case.sites) {
            (Err(_), None) => continue,
            // The one deliberate difference: PEFT's own file would reload with other ranks.
            (Err(PeftError::PatternOrder { .. }), Some(_)) => {
                order_refused += 1;
                continue;
            }
            (Ok(plan), Some(sites)) => (plan, sites),
            (Ok(_), None) => panic!("{about}: PEFT refuses with {:?}", case.error),
            (Err(e), Some(_)) => panic!("{about}: {e}"),
        };
        let ours: BTreeMap<String, (usize, f64, f64)> =
            plan.sites.iter().map(|s| (s.module.clone(), (s.rank, s.alpha, s.scale))).collect();
        assert_eq!(&ours, sites, "{about}");
        let mut keys = on_disk(&plan);
        if sites.len() > 8 {
            keys.retain(|k, _| !k.contains(".lora_"));
        }
        // PEFT saves the biases of wrapped modules three times when all biases train.
        let mut theirs = case.shapes.clone().unwrap();
        theirs.retain(|k, _| !k.contains(".modules_to_save.") && !k.contains(".original_module."));
        assert_eq!(keys, theirs, "{about}");

        // What PEFT lets pass silently is refused when an adapter is made.
        let dead = plan.report.dead().count();
        match LoraPlan::new(&config, Purpose::Create, &case.model, &modules, &base) {
            Ok(_) => assert_eq!(dead, 0, "{about}"),
            Err(PeftError::DeadPatterns(d)) => assert_eq!(d.len(), dead, "{about}"),
            Err(e) => panic!("{about}: {e}"),
        }
    }
    assert_eq!(order_refused, 1);
}

fn config(json: &str) -> LoraConfig {
    let mut object: Map<String, Value> = serde_json::from_str(json).unwrap();
    object.insert("peft_type".into(), "LORA".into());
    LoraConfig::from_json(&Value::Object(object).to_string()).unwrap()
}

fn plan(json: &str) -> Result<LoraPlan, PeftError> {
    let (modules, base) = llama();
    LoraPlan::new(&config(json), Purpose::Create, "llama", &modules, &base)
}

#[test]
fn dead_patterns_name_the_nearest() {
    for (json, expected) in [
        (
            r#"{"target_modules": ["q_prj"]}"#,
            "`target_modules` entry `q_prj` matches no module; nearest: q_proj",
        ),
        (
            r#"{"target_modules": ["q_proj", "gate"]}"#,
            "`target_modules` entry `gate` matches no module; nearest: gate_proj",
        ),
        (
            r#"{"target_modules": "q_proj"}"#,
            "`target_modules` entry `q_proj` matches no module; nearest: q_proj",
        ),
        (
            r#"{"target_modules": ["q_proj"], "exclude_modules": ["layers.7.q_proj"]}"#,
            "`exclude_modules` entry `layers.7.q_proj`",
        ),
        (r#"{"target_modules": ["q_proj"], "rank_pattern": {"v_proj": 4}}"#, "`rank_pattern` entry `v_proj`"),
        (
            r#"{"target_modules": ["q_proj"], "alpha_pattern": {"v_proj": 4}}"#,
            "`alpha_pattern` entry `v_proj`",
        ),
        (
            r#"{"target_modules": ["q_proj"], "modules_to_save": ["head_lm"]}"#,
            "`modules_to_save` entry `head_lm` matches no module",
        ),
    ] {
        let error = plan(json).unwrap_err().to_string();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let both = plan(r#"{"target_modules": ["foo_proj", "bar_proj"]}"#).unwrap_err().to_string();
    assert!(both.contains("`foo_proj`") && both.contains("`bar_proj`"), "{both}");
}

#[test]
fn other_refusals() {
    let (modules, base) = llama();
    let unknown =
        LoraPlan::new(&config("{}"), Purpose::Create, "phi3", &modules, &base).unwrap_err().to_string();
    assert!(unknown.contains("no default known for model_type `phi3`"), "{unknown}");
    let all_excluded = plan(r#"{"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}"#).unwrap_err();
    assert!(matches!(all_excluded, PeftError::NothingLeft { candidates: 2 }), "{all_excluded}");
    let regex = plan(r#"{"target_modules": "(q_proj"}"#).unwrap_err().to_string();
    assert!(regex.contains("`target_modules` pattern `(q_proj` is not a regular expression"), "{regex}");
    let order = plan(
        r#"{"target_modules": ["q_proj"], "rank_pattern": {"q_proj": 4, "layers.0.self_attn.q_proj": 2}}"#,
    );
    let order = order.unwrap_err().to_string();
    assert!(order.contains("`q_proj` and `layers.0.self_attn.q_proj` both match"), "{order}");
    let bias = plan(r#"{"target_modules": ["embed_tokens"], "lora_bias": true}"#).unwrap_err().to_string();
    assert!(bias.contains("`lora_bias` cannot be used on an embedding"), "{bias}");
}

#[test]
fn the_report_counts_every_pattern() {
    let plan = plan(
        r#"{"target_modules": ["q_proj", "layers.0.mlp.up_proj"], "exclude_modules": ["1.self_attn.q_proj"],
        "modules_to_save": ["norm"], "rank_pattern": {"up_proj": 2}}"#,
    )
    .unwrap();
    let counts: Vec<(&str, &str, usize)> =
        plan.report.patterns.iter().map(|p| (p.key, p.pattern.as_str(), p.modules.len())).collect();
    assert_eq!(
        counts,
        [
            ("target_modules", "layers.0.mlp.up_proj", 1),
            ("target_modules", "q_proj", 2),
            ("exclude_modules", "1.self_attn.q_proj", 1),
            ("rank_pattern", "up_proj", 1),
            ("modules_to_save", "norm", 1),
        ]
    );
    assert_eq!(plan.report.excluded, ["model.layers.1.self_attn.q_proj"]);
    assert_eq!(plan.saved, ["model.norm.weight"]);
    assert_eq!(plan.site("model.layers.0.mlp.up_proj").unwrap().rank, 2);
    assert_eq!(plan.trainable_elements(), (8 * 8 + 8 * 8) + (2 * 8 + 12 * 2) + 8);
}

#[test]
fn all_linear_is_saved_as_the_names_it_stands_for() {
    let plan = plan(r#"{"target_modules": "all-linear"}"#).unwrap();
    let Some(Targets::List(names)) = &plan.config.target_modules else { panic!("names expected") };
    assert_eq!(names.len(), 14);
    assert!(!names.iter().any(|n| n == "lm_head" || n == "model.embed_tokens"));
    let (modules, base) = llama();
    let again = LoraPlan::new(&plan.config, Purpose::Create, "llama", &modules, &base).unwrap();
    assert_eq!(again.sites, plan.sites);
}

fn segment() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["layers", "attn", "q_proj", "k_q_proj", "proj", "0", "1", "12", "mlp"])
        .prop_map(str::to_owned)
}

fn module_name() -> impl Strategy<Value = String> {
    prop::collection::vec(segment(), 1..6).prop_map(|s| s.join("."))
}

proptest! {
    /// A list entry and the regular expression that says the same agree; excluding is set difference; the order of
    /// the list does not matter.
    #[test]
    fn laws_of_matching(
        names in prop::collection::btree_set(module_name(), 1..20),
        targets in prop::collection::btree_set(module_name(), 1..4),
        excluded in prop::collection::btree_set(module_name(), 0..3),
    ) {
        let modules: Vec<ModuleInfo> =
            names.iter().map(|n| ModuleInfo::new(n, ModuleKind::Linear, 4, 4)).collect();
        let matched = |target: Targets, exclude: Option<Targets>| {
            let mut config = LoraConfig::new(2, 2.0);
            config.target_modules = Some(target);
            config.exclude_modules = exclude;
            match match_modules(&config, &modules, Purpose::Load) {
                Ok(report) => Ok(report.matched),
                Err(PeftError::DeadPatterns(_) | PeftError::NothingLeft { .. }) => Ok(Vec::new()),
                Err(other) => Err(TestCaseError::fail(other.to_string())),
            }
        };
        let list: Vec<String> = targets.iter().cloned().collect();
        let reversed: Vec<String> = targets.iter().rev().cloned().collect();
        let escaped: Vec<String> = list.iter().map(|t| t.replace('.', r"\.")).collect();
        let all = matched(Targets::List(list.clone()), None)?;
        prop_assert_eq!(&all, &matched(Targets::List(reversed), None)?);
        prop_assert_eq!(&all, &matched(Targets::Pattern(format!(r"(?:.*\.)?(?:{})", escaped.join("|"))), None)?);
        let exclude: Vec<String> = excluded.into_iter().collect();
        let gone = if exclude.is_empty() { Vec::new() } else { matched(Targets::List(exclude.clone()), None)? };
        let left: Vec<String> = all.iter().filter(|n| !gone.contains(n)).cloned().collect();
        prop_assert_eq!(left, matched(Targets::List(list), Some(Targets::List(exclude)))?);
        for name in &all {
            let by_suffix = targets.iter().any(|t| name == t || name.ends_with(&format!(".{t}")));
            prop_assert!(by_suffix);
        }
    }
}
