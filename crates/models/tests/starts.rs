//! Adapters that start from rows of the data (EVA, CorDA, LoRA-GA), against PEFT's.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use burnish_core::{Compute, Dtype};
use burnish_models::{
    Decoder, ForwardContext, ModelError, ModelFolder, ModelPlan, RowStart, RowsToStart, TokenRow, Tokens,
    Tuning,
};
use burnish_ops::{AnyTensor, Coefficient, TokenStats, head_loss, select_rows};
use burnish_peft::{AdapterFolder, Decomposition, InitWeights, LoraConfig, Targets};
use burnish_weight_files::{FolderWriter, WeightFolder};
use serde_json::Value;

use crate::recordings::{close, device, fixtures, ids, json, logits};

fn rows() -> Vec<TokenRow> {
    let recorded = json(&fixtures().join("starts/rows.json"));
    let row = |row: &Value| TokenRow {
        texts: vec![ids(&row["ids"])],
        labels: Some(row["labels"].as_array().unwrap().iter().map(|l| l.as_i64().unwrap() as i32).collect()),
    };
    recorded.as_array().unwrap().iter().map(row).collect()
}

fn folder() -> ModelFolder {
    ModelFolder::open(fixtures().join("qwen2")).unwrap()
}

fn config(name: &str, change: impl FnOnce(&mut Value)) -> LoraConfig {
    let mut config = json(&fixtures().join(format!("starts/{name}.json")))["config"].clone();
    config["peft_type"] = "LORA".into();
    change(&mut config);
    LoraConfig::from_json(&config.to_string()).unwrap()
}

fn start(config: &LoraConfig, rows: &[TokenRow], batch: usize) -> Result<RowStart, ModelError> {
    start_over(&folder(), config, rows, batch).map(Option::unwrap)
}

fn start_over(
    folder: &ModelFolder,
    config: &LoraConfig,
    rows: &[TokenRow],
    batch: usize,
) -> Result<Option<RowStart>, ModelError> {
    let batches: Vec<Vec<TokenRow>> = rows.chunks(batch).map(<[_]>::to_vec).collect();
    let given = RowsToStart {
        batches: &batches,
        trained: Dtype::F32,
        compute: Compute::Fp32,
        widened: false,
        quantization: None,
        seed: 5,
        writes: true,
    };
    let loss = |decoder: &Decoder, pass: &ForwardContext, at: usize| mean_nll(decoder, pass, &batches[at]);
    RowStart::of(folder, config, &given, &loss, &device())
}

/// The mean loss of a batch's tokens that are learned.
fn mean_nll(
    decoder: &Decoder,
    pass: &ForwardContext,
    batch: &[TokenRow],
) -> Result<Option<AnyTensor>, ModelError> {
    let texts: Vec<&Vec<u32>> = batch.iter().flat_map(|row| &row.texts).collect();
    let tokens = Tokens::from_sequences(&texts);
    let labels: Vec<i32> = batch.iter().flat_map(|row| row.labels.clone().unwrap()).collect();
    let before = |d: &Range<usize>| d.start..d.end - 1;
    let learned = |at: &usize| labels[at + 1] >= 0;
    let rows: Vec<usize> = tokens.documents.iter().flat_map(before).filter(learned).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let targets: Vec<u32> = rows.iter().map(|&at| tokens.ids[at + 1]).collect();
    let row_ids: Vec<u64> = rows.iter().map(|&at| tokens.rows[at]).collect();
    let by = rows.len() as f32;
    let hidden = select_rows(&decoder.hidden(&tokens, pass)?, &Arc::new(rows))?;
    let hidden = decoder.final_norm(&hidden, pass)?;
    let head = decoder.head(pass, &Arc::new(row_ids))?;
    let coefficient: Coefficient = Arc::new(move |_, _| -1.0 / by);
    let (options, shard) = (decoder.head_options(1.0), decoder.vocab_shard());
    let value = |s: &TokenStats| -s.log_prob.iter().sum::<f32>() / by;
    Ok(Some(head_loss(&hidden, &head, shard, &Arc::new(targets), options, &coefficient, value)?.0))
}

/// Vectors `got` and `want` of a matrix' rows (or columns) up to their signs.
fn same_up_to_signs(name: &str, got: &[f32], want: &[f32], vectors: usize, columns: bool, tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{name}");
    let largest = want.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
    let length = want.len() / vectors;
    for at in 0..vectors {
        let pick = |of: &[f32]| -> Vec<f32> {
            (0..length).map(|i| if columns { of[i * vectors + at] } else { of[at * length + i] }).collect()
        };
        let (got, mut want) = (pick(got), pick(want));
        if got.iter().zip(&want).map(|(a, b)| a * b).sum::<f32>() < 0.0 {
            want.iter_mut().for_each(|x| *x = -*x);
        }
        close(&format!("{name}, vector {at}"), &got, &want, tolerance * largest.max(1e-3));
    }
}

fn check(name: &str, start: &RowStart, tolerance: f32) {
    let recorded = WeightFolder::open_stem(fixtures().join("starts"), name).unwrap();
    assert_eq!(2 * start.factors.len(), recorded.names().count(), "{name}");
    for (module, made) in &start.factors {
        let read = |part: &str| recorded.read(&format!("{module}.{part}")).unwrap();
        let (a, b) = (read("a"), read("b"));
        let rank = a.shape[0];
        let of = |part: &str| format!("{name}: {module}.{part}");
        same_up_to_signs(&of("a"), &made.a, &a.to_f32(), rank, false, tolerance);
        same_up_to_signs(&of("b"), &made.b, &b.to_f32(), rank, true, tolerance);
    }
}

/// Ranks, alphas and vectors of EVA.
#[test]
fn eva_is_peft_s() {
    for name in ["eva", "eva_fixed", "eva_scaled"] {
        let expected = json(&fixtures().join(format!("starts/{name}.json")));
        let config = config(name, |_| {});
        let start = start(&config, &rows(), 2).unwrap();
        assert_eq!(Value::Object(start.config.rank_pattern.clone()), expected["rank_pattern"], "{name}");
        let alphas = start.config.alpha_pattern.iter().map(|(k, v)| (k.clone(), v.as_f64().unwrap()));
        let want = expected["alpha_pattern"].as_object().unwrap();
        let want = want.iter().map(|(k, v)| (k.clone(), v.as_f64().unwrap()));
        assert_eq!(alphas.collect::<BTreeMap<_, _>>(), want.collect(), "{name}");
        let Some(Targets::List(mut targets)) = start.config.target_modules.clone() else { panic!("{name}") };
        targets.sort();
        let want: Vec<&str> =
            expected["target_modules"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(targets, want, "{name}");
        check(name, &start, 3e-4);

        // Its adapter starts as the base, and its file is PEFT's.
        let (folder, rows) = (folder(), rows());
        let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&start.config), Dtype::F32, 5).unwrap();
        let (model, _) = planned.starting_from(&start.factors).resident(&device()).unwrap();
        let base = burnish_models::load(folder.path(), &device()).unwrap();
        let text = &rows[0].texts;
        assert_eq!(logits(&model.decoder, text), logits(&base.decoder, text), "{name}");
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let written = AdapterFolder::open(out.path()).unwrap();
        assert_eq!(written.config.init_lora_weights, InitWeights::Named("eva".into()));
        assert_eq!(written.config.rank_pattern, start.config.rank_pattern);
        Arc::new(ModelPlan::new(&folder, &Tuning::Adapter(&written), Dtype::F32, 0).unwrap());
    }
}

/// Vectors that are whitened are divided once, also of layers that read the same.
#[test]
fn whitened_vectors_are_divided_by_roots() {
    let plain = start(&config("eva", |_| {}), &rows(), 2).unwrap();
    let white = config("eva", |config| config["eva_config"]["whiten"] = true.into());
    let white = start(&white, &rows(), 2).unwrap();
    for (module, made) in &plain.factors {
        let other = &white.factors[module].a;
        for (plain, white) in made.a.chunks_exact(32).zip(other.chunks_exact(32)) {
            let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
            let by = norm(plain) / norm(white);
            assert!(by > 0.0 && (norm(plain) - 1.0).abs() < 1e-5, "{module}");
            let back: Vec<f32> = white.iter().map(|x| x * by).collect();
            close(module, &back, plain, 1e-5);
        }
    }
    let of = |module: &str| &white.factors[&format!("model.layers.0.self_attn.{module}")].a[..32];
    assert_eq!(of("q_proj"), of("k_proj"));
}

fn product(made: &Decomposition, rank: usize) -> Vec<f32> {
    let width = made.a.len() / rank;
    let element = |o: usize, i: usize| (0..rank).map(|r| made.b[o * rank + r] * made.a[r * width + i]).sum();
    (0..made.b.len() / rank)
        .flat_map(|o| (0..width).map(move |i| (o, i)))
        .map(|(o, i)| element(o, i))
        .collect()
}

/// Factors of CorDA and LoRA-GA, whose base keeps the rest: it starts as the model, and the file is of the original base.
#[test]
fn bases_keep_the_rest() {
    for name in ["corda_ipm", "corda_kpm", "lora_ga", "lora_ga_svd", "lora_ga_gd", "lora_ga_unit"] {
        let config = config(name, |_| {});
        let (folder, rows) = (folder(), rows());
        let start = start(&config, &rows, 2).unwrap();
        // PEFT's largest singular value of the weight is a randomised one.
        check(name, &start, if name == "lora_ga_svd" { 2e-3 } else { 3e-4 });
        if name.starts_with("corda") {
            // No sign is left in it.
            let recorded = WeightFolder::open_stem(fixtures().join("starts"), name).unwrap();
            for (module, made) in &start.factors {
                let read = |part: &str| recorded.read(&format!("{module}.{part}")).unwrap().to_f32();
                let want = product(&Decomposition { a: read("a"), b: read("b") }, 4);
                let largest = want.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
                close(&format!("{name}: {module}"), &product(made, 4), &want, 1e-4 * largest.max(1.0));
            }
        }
        let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&start.config), Dtype::F32, 5).unwrap();
        let (model, _) = planned.starting_from(&start.factors).resident(&device()).unwrap();
        let base = burnish_models::load(folder.path(), &device()).unwrap();
        let weight = "model.layers.0.self_attn.q_proj.weight";
        let of = |model: &burnish_models::Model| {
            model.host(model.parameters.registry().index_of(weight).unwrap()).to_f32()
        };
        assert_ne!(of(&model), of(&base), "{name}");
        let text = &rows[0].texts;
        let wanted = logits(&base.decoder, text);
        close(name, &logits(&model.decoder, text), &wanted, 1e-3);
        let out = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::in_place(out.path()).unwrap();
        model.write_adapter(&mut writer).unwrap();
        writer.commit().unwrap();
        let written = AdapterFolder::open(out.path()).unwrap();
        assert_eq!(written.config.init_lora_weights, InitWeights::Flag(true));
        assert_eq!(written.config.r, 2 * config.r);
        let again = ModelPlan::new(&folder, &Tuning::Adapter(&written), Dtype::F32, 0).unwrap();
        close(name, &logits(&again.resident(&device()).unwrap().0.decoder, text), &wanted, 1e-3);
        // What it started from is in the file.
        let plan = model.plan.as_ref().unwrap();
        let initial = plan.initial_part(&written.load(&plan.exported()).unwrap()).unwrap();
        for (module, made) in &start.factors {
            assert_eq!(&initial[module], made.as_ref(), "{name}: {module}");
        }
    }
}

/// The files that PEFT keeps of CorDA, as safetensors, start an adapter without rows as they did there; ours are read again to
/// the bit.
#[test]
fn corda_s_files_are_peft_s() {
    let folder = fixtures().join("starts");
    let with = |key: &str, path: &Path| {
        config("corda_ipm", |c| c["corda_config"][key] = path.display().to_string().into())
    };
    let cache = folder.join("corda_cache.safetensors");
    let kept = start(&with("cache_file", &cache), &[], 2).unwrap();
    assert_eq!(kept.read.as_deref(), Some(&*cache));
    check("corda_ipm", &kept, 1e-6);
    let covariance = folder.join("corda_covariance.safetensors");
    let kept = start(&with("covariance_file", &covariance), &[], 2).unwrap();
    assert_eq!(kept.read.as_deref(), Some(&*covariance));
    check("corda_ipm", &kept, 3e-4);
    let own = tempfile::tempdir().unwrap();
    let [ours, cov] = ["deep/er/cache.safetensors", "cov.safetensors"].map(|name| own.path().join(name));
    let both = config("corda_ipm", |c| {
        c["corda_config"]["cache_file"] = ours.display().to_string().into();
        c["corda_config"]["covariance_file"] = cov.display().to_string().into();
    });
    let first = start(&both, &rows(), 2).unwrap();
    assert_eq!(first.read, None);
    let plain = start(&config("corda_ipm", |_| {}), &rows(), 2).unwrap();
    assert_eq!(first.factors, plain.factors);
    for (own, peft) in [(&ours, &cache), (&cov, &covariance)] {
        let [own, peft] = [own, peft].map(|path| WeightFolder::open(path).unwrap());
        assert_eq!(own.names().collect::<Vec<_>>(), peft.names().collect::<Vec<_>>());
        for name in own.names() {
            let [own, peft] = [&own, &peft].map(|file| file.read(name).unwrap());
            assert_eq!(own.shape, peft.shape, "{name}");
            if own.shape.len() == 2 && own.shape[0] == own.shape[1] {
                let largest = peft.to_f32().iter().fold(0.0_f32, |top, x| top.max(x.abs()));
                close(name, &own.to_f32(), &peft.to_f32(), 1e-5 * largest);
            }
        }
    }
    // Of either, without rows.
    assert_eq!(start(&with("covariance_file", &cov), &[], 2).unwrap().factors, first.factors);
    assert_eq!(start(&with("cache_file", &ours), &[], 2).unwrap().factors, first.factors);
    // Of another rank, and of other modules.
    let said = start(
        &config("corda_ipm", |c| {
            c["corda_config"]["cache_file"] = cache.display().to_string().into();
            c["r"] = 3.into();
        }),
        &rows(),
        2,
    );
    assert!(said.err().unwrap().to_string().contains("eigens.S_WC"));
    let more = config("corda_ipm", |c| {
        c["corda_config"]["covariance_file"] = covariance.display().to_string().into();
        c["target_modules"] = serde_json::json!(["k_proj"]);
    });
    assert!(start(&more, &rows(), 2).err().unwrap().to_string().contains("self_attn.k_proj"));
}

/// Layers of other families are heard, packed ones and those of latents, convolutions and state spaces too; what runs beside is
/// refused by name.
#[test]
fn families_start_or_say_why_not() {
    let mut begun = Vec::new();
    for family in [
        "gpt2",
        "gpt-neox",
        "phi3",
        "falcon",
        "gemma2",
        "olmo2",
        "deepseek-v2",
        "bamba",
        "lfm2",
        "qwen3-next",
        "mixtral",
        "gemma3n",
        "qwen2-moe",
    ] {
        let folder = ModelFolder::open(fixtures().join(family)).unwrap();
        for init in ["corda", "lora_ga"] {
            let config = format!(
                r#"{{"peft_type": "LORA", "r": 1, "target_modules": "all-linear", "init_lora_weights": "{init}"}}"#
            );
            let config = LoraConfig::from_json(&config).unwrap();
            let rows: Vec<TokenRow> = (1..4)
                .map(|at| {
                    let text: Vec<u32> = (0..12).map(|i| (i * at + 3) % 30).collect();
                    TokenRow { labels: Some(text.iter().map(|&id| id as i32).collect()), texts: vec![text] }
                })
                .collect();
            match start_over(&folder, &config, &rows, 2) {
                Ok(start) => {
                    let start = start.unwrap();
                    let planned =
                        ModelPlan::new(&folder, &Tuning::NewAdapter(&start.config), Dtype::F32, 5).unwrap();
                    let (model, _) = planned.starting_from(&start.factors).resident(&device()).unwrap();
                    let base = burnish_models::load(folder.path(), &device()).unwrap();
                    let wanted = logits(&base.decoder, &rows[0].texts);
                    let largest = wanted.iter().fold(1.0_f32, |top, x| top.max(x.abs()));
                    close(family, &logits(&model.decoder, &rows[0].texts), &wanted, 2e-3 * largest);
                    begun.push(format!("{family} {init}"));
                }
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains("out of") && said.contains("target"), "{family} {init}: {said}");
                }
            }
        }
    }
    assert!(begun.len() >= 12, "{begun:?}");
}

#[test]
fn what_rows_cannot_start_is_refused() {
    let said = |name: &str, change: &dyn Fn(&mut Value), rows: &[TokenRow]| {
        start(&config(name, change), rows, 2).err().unwrap().to_string()
    };
    let all = rows();
    let plain = |_: &mut Value| {};
    for (name, change, rows, part) in [
        (
            "eva",
            &(|c: &mut Value| c["eva_config"]["rho"] = 0.5.into()) as &dyn Fn(&mut Value),
            &all[..],
            "rho",
        ),
        ("eva", &|c: &mut Value| c["eva_config"]["rho"] = 9.0.into(), &all, "32 vectors"),
        ("eva", &|c: &mut Value| c["eva_config"]["other"] = 1.into(), &all, "eva_config.other"),
        ("eva", &|c: &mut Value| c["target_modules"] = serde_json::json!(["lm_head"]), &all, "head"),
        ("eva", &|c: &mut Value| c["r"] = 16.into(), &[], "without rows"),
        ("corda_ipm", &|c: &mut Value| c["corda_config"]["cache_file"] = "a.pt".into(), &all, "cache_file"),
        (
            "corda_ipm",
            &|c: &mut Value| c["corda_config"]["covariance_file"] = "a.bin".into(),
            &all,
            "safetensors.torch.save_file(torch.load(FILE), NAME)",
        ),
        ("corda_ipm", &plain, &[], "look at the data"),
        ("lora_ga", &|c: &mut Value| c["r"] = 9.into(), &all, "half of the smaller"),
        ("lora_ga", &plain, &[], "nothing is learned"),
    ] {
        let said = said(name, change, rows);
        assert!(said.contains(part), "{name}: {said}");
    }
    let short = TokenRow { texts: vec![vec![1, 2, 3]], labels: Some(vec![1, 2, 3]) };
    assert!(said("eva", &plain, &[short]).contains("per_device_train_batch_size"));
    let config = config("eva", |_| {});
    let folder = folder();
    let planned = ModelPlan::new(&folder, &Tuning::NewAdapter(&config), Dtype::F32, 5).unwrap();
    assert!(planned.resident(&device()).err().unwrap().to_string().contains("without rows"));
}
