//! Weighted sums of adapters, with what PEFT 0.21.2 gets wrong: rsLoRA's scale applied twice, factors added instead of
//! changes.

use burnish_core::random::Stream;
use burnish_core::{Choice, Dtype, Registry};
use burnish_peft::{
    AdapterFolder, AdapterTensors, Combination, CombinationType, Factor, FactorSum, FactorSums, LoraConfig,
    LoraPlan, LoraSite, MajoritySign, ModuleInfo, ModuleKind, PeftError, Purpose, Weighted,
    add_weighted_adapter, write_adapter,
};
use burnish_weight_files::{FolderWriter, HostTensor};

/// An adapter with random factors.
fn adapter(config: &str, seed: u64) -> (LoraPlan, AdapterTensors) {
    let (modules, base) = crate::llama();
    let config = LoraConfig::from_json(&format!(r#"{{"peft_type": "LORA", {config}}}"#)).unwrap();
    let plan = LoraPlan::new(&config, Purpose::Create, "llama", &modules, &base).unwrap();
    let mut tensors = AdapterTensors::default();
    for p in plan.parameters() {
        let stream = Stream::new(seed, &p.name);
        let values: Vec<f32> = (0..p.elements() as u64).map(|i| stream.normal(i)).collect();
        tensors
            .parameters
            .insert(p.name.clone(), HostTensor::from_f32(&values, &p.shape, Dtype::F32).unwrap());
    }
    (plan, tensors)
}

/// What a site adds to its weight (of an embedding: transposed), times `weight`.
fn delta(site: &LoraSite, tensors: &AdapterTensors, weight: f64) -> Vec<f64> {
    let value = |f| tensors.parameters[site.name(f)].to_f32();
    let (a, b) = (value(Factor::A), value(Factor::B));
    product(&a, &b, site.rank, weight * site.scale)
}

/// `s B A` of `A [r, in]`, `B [out, r]`.
fn product(a: &[f32], b: &[f32], r: usize, s: f64) -> Vec<f64> {
    let columns = a.len() / r;
    let element = |o: usize, i: usize| -> f64 {
        (0..r).map(|k| f64::from(b[o * r + k]) * f64::from(a[k * columns + i])).sum()
    };
    (0..b.len() / r).flat_map(|o| (0..columns).map(move |i| s * element(o, i))).collect()
}

fn sum(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// `|got - want| / |want|`.
fn error(got: &[f64], want: &[f64]) -> f64 {
    norm(&got.iter().zip(want).map(|(g, w)| g - w).collect::<Vec<_>>()) / norm(want)
}

const PARTS: [f64; 2] = [0.7, -1.3];

/// The sum of the parts' changes to a module.
fn wanted(parts: &[(LoraPlan, AdapterTensors); 2], module: &str) -> Vec<f64> {
    let of = |i: usize| parts[i].0.site(module).map(|s| delta(s, &parts[i].1, PARTS[i]));
    match (of(0), of(1)) {
        (Some(x), Some(y)) => sum(&x, &y),
        (x, y) => x.or(y).unwrap(),
    }
}

fn combined(parts: &[(LoraPlan, AdapterTensors); 2], how: Combination) -> (LoraPlan, AdapterTensors) {
    let all = [0, 1].map(|i| Weighted { plan: &parts[i].0, tensors: &parts[i].1, weight: PARTS[i] });
    add_weighted_adapter(&all, how).unwrap()
}

/// The configuration and the file, read by who knows nothing of how they came about.
fn reloaded((plan, tensors): &(LoraPlan, AdapterTensors)) -> (LoraPlan, AdapterTensors) {
    let out = tempfile::tempdir().unwrap();
    let mut writer = FolderWriter::in_place(out.path()).unwrap();
    let read = |n: &str| -> Result<Option<HostTensor>, PeftError> { Ok(tensors.parameters.get(n).cloned()) };
    write_adapter(&mut writer, plan, read).unwrap();
    writer.commit().unwrap();
    let folder = AdapterFolder::open(out.path()).unwrap();
    let (modules, base) = crate::llama();
    let plan = LoraPlan::new(&folder.config, Purpose::Load, "llama", &modules, &base).unwrap();
    let tensors = folder.load(&plan).unwrap();
    (plan, tensors)
}

/// The scales of rsLoRA are in the sum, and are not applied to it again (it was `sqrt(r)` too large).
#[test]
fn sums_of_rslora_adapters_have_their_scale_once() {
    let plain = r#""r": 4, "lora_alpha": 6, "use_rslora": true, "target_modules": ["q_proj", "down_proj", "embed_tokens"]"#;
    let other = r#""r": 2, "lora_alpha": 5, "use_rslora": true, "target_modules": ["q_proj", "lm_head", "embed_tokens"]"#;
    let parts = [adapter(plain, 1), adapter(other, 2)];
    for how in [Combination::Cat, Combination::Linear, Combination::Svd { rank: 6 }] {
        let made = combined(&parts, how);
        assert!(!made.0.config.use_rslora);
        assert_eq!(made.0.sites.len(), 2 + 2 + 1 + 1);
        let (plan, tensors) = reloaded(&made);
        assert_eq!(tensors, made.1, "{how:?}");
        for site in &plan.sites {
            let both = parts.iter().all(|(plan, _)| plan.site(&site.module).is_some());
            let rank = match how {
                Combination::Cat if both => 6,
                Combination::Linear if both => 4,
                Combination::Svd { .. } if both => 6,
                _ => parts.iter().find_map(|(plan, _)| plan.site(&site.module)).unwrap().rank,
            };
            assert_eq!((site.rank, site.scale), (rank, 1.0), "{how:?} {}", site.module);
            let error = error(&delta(site, &tensors, 1.0), &wanted(&parts, &site.module));
            let exact = how != Combination::Linear || !both;
            assert!(if exact { error < 1e-6 } else { error < 0.6 }, "{how:?} {}: {error}", site.module);
        }
    }
}

/// One adapter with weight 1 is itself, of every kind that has sums (PEFT: not with rsLoRA or biases of B).
#[test]
fn one_adapter_of_weight_one_is_itself() {
    for more in
        ["", r#", "use_rslora": true"#, r#", "lora_bias": true"#, r#", "alpha_pattern": {"q_proj": 9}"#]
    {
        let (plan, tensors) = adapter(
            &format!(r#""r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj", "lm_head"]{more}"#),
            1,
        );
        for how in [Combination::Cat, Combination::Linear, Combination::Svd { rank: 3 }] {
            let made = add_weighted_adapter(&[Weighted { plan: &plan, tensors: &tensors, weight: 1.0 }], how)
                .unwrap();
            let (sum, values) = reloaded(&made);
            for (site, own) in sum.sites.iter().zip(&plan.sites) {
                let error = error(&delta(site, &values, 1.0), &delta(own, &tensors, 1.0));
                assert!(error < 1e-6, "{more} {how:?}: {error}");
                assert_eq!(site.has_bias, own.has_bias);
                if own.has_bias {
                    let scaled = |s: &LoraSite, t: &AdapterTensors| -> Vec<f64> {
                        let bias = t.parameters[s.name(Factor::BBias)].to_f32();
                        bias.iter().map(|&b| s.scale * f64::from(b)).collect()
                    };
                    let (got, want) = (scaled(site, &values), scaled(own, &tensors));
                    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6));
                }
            }
        }
    }
}

/// `linear` is the sum of the changes where that has the parts' rank, and the nearest to it otherwise (adding the
/// factors is off by 101 %).
#[test]
fn linear_sums_changes_not_factors() {
    let config = r#""r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]"#;
    let mut parts = [adapter(config, 1), adapter(config, 2)];
    let made = combined(&parts, Combination::Linear);
    let all = combined(&parts, Combination::Cat);
    for site in &made.0.sites {
        let want = wanted(&parts, &site.module);
        let got = delta(site, &made.1, 1.0);
        // What PEFT computes: `A = sum sign sqrt|w s| A_i`, `B = sum sqrt|w s| B_i`.
        let factor = |f: Factor, sign: bool| -> Vec<f32> {
            let of = |i: usize| {
                let (plan, tensors) = &parts[i];
                let own = plan.site(&site.module).unwrap();
                let root = (PARTS[i] * own.scale).abs().sqrt() as f32;
                let root = if sign { root * PARTS[i].signum() as f32 } else { root };
                tensors.parameters[own.name(f)]
                    .to_f32()
                    .into_iter()
                    .map(move |x| root * x)
                    .collect::<Vec<_>>()
            };
            of(0).iter().zip(of(1)).map(|(x, y)| x + y).collect()
        };
        let theirs = product(&factor(Factor::A, true), &factor(Factor::B, false), 3, 1.0);
        let (ours, theirs) = (error(&got, &want), error(&theirs, &want));
        assert!(ours < 0.5 && theirs > 0.6 && theirs > 1.5 * ours, "{}: {ours} {theirs}", site.module);
        // Nearest: what is left is orthogonal to what was taken, and every singular value left is below those taken.
        let left: Vec<f64> = want.iter().zip(&got).map(|(w, g)| w - g).collect();
        let dot: f64 = left.iter().zip(&got).map(|(l, g)| l * g).sum();
        assert!(dot.abs() < 1e-5 * norm(&want).powi(2), "{dot}");
        let whole = all.0.site(&site.module).unwrap();
        assert_eq!((site.rank, whole.rank), (3, 6));
        let columns = whole.shape(Factor::A)[1];
        let largest = largest_singular_value(&left, columns);
        let smallest = smallest_column_product(site, &made.1);
        assert!(largest <= smallest * (1.0 + 1e-5), "{largest} {smallest}");
    }
    // Parts that share their A: the sum has their rank.
    let names: Vec<String> = parts[0].0.sites.iter().map(|s| s.a_name.clone()).collect();
    for name in names {
        let shared = parts[0].1.parameters[&name].clone();
        parts[1].1.parameters.insert(name, shared);
    }
    let (plan, tensors) = combined(&parts, Combination::Linear);
    for site in &plan.sites {
        assert_eq!(site.rank, 3);
        assert!(error(&delta(site, &tensors, 1.0), &wanted(&parts, &site.module)) < 1e-6, "{}", site.module);
    }
}

/// By power iteration on `M^T M`.
fn largest_singular_value(m: &[f64], columns: usize) -> f64 {
    let mut x: Vec<f64> = (0..columns).map(|i| 1.0 + (i as f64 * 0.7).sin()).collect();
    let mut value = 0.0;
    for _ in 0..500 {
        let y: Vec<f64> =
            m.chunks_exact(columns).map(|row| row.iter().zip(&x).map(|(a, b)| a * b).sum()).collect();
        let mut next = vec![0.0; columns];
        for (row, y) in m.chunks_exact(columns).zip(&y) {
            next.iter_mut().zip(row).for_each(|(n, a)| *n += a * y);
        }
        value = norm(&next).sqrt() / norm(&x).sqrt();
        let length = norm(&next);
        x = next.iter().map(|n| n / length).collect();
    }
    value
}

/// Of orthogonal factors the products of the lengths of a column of B and a row of A are the singular values.
fn smallest_column_product(site: &LoraSite, tensors: &AdapterTensors) -> f64 {
    let value = |f| tensors.parameters[site.name(f)].to_f32();
    let (a, b) = (value(Factor::A), value(Factor::B));
    let length = |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    (0..site.rank)
        .map(|k| {
            let row = a.len() / site.rank;
            length(&mut a[k * row..(k + 1) * row].iter().copied())
                * length(&mut b.iter().copied().skip(k).step_by(site.rank))
        })
        .fold(f64::INFINITY, f64::min)
}

#[test]
fn a_rank_beyond_the_module_is_the_sum_itself() {
    let config = r#""r": 4, "lora_alpha": 6, "target_modules": ["v_proj"]"#;
    let parts = [adapter(config, 1), adapter(config, 2)];
    let (plan, tensors) = combined(&parts, Combination::Svd { rank: 100 });
    for site in &plan.sites {
        assert_eq!(site.rank, 4, "[4, 8] has no more");
        assert!(error(&delta(site, &tensors, 1.0), &wanted(&parts, &site.module)) < 1e-6);
    }
}

#[test]
fn what_has_no_sum_is_refused_by_name() {
    let plain = adapter(r#""target_modules": ["q_proj"]"#, 1);
    let refused = |more: &str| {
        let other = adapter(&format!(r#""target_modules": ["q_proj"], {more}"#), 2);
        let parts = [&plain, &other].map(|(plan, tensors)| Weighted { plan, tensors, weight: 1.0 });
        add_weighted_adapter(&parts, Combination::Cat).unwrap_err().to_string()
    };
    assert!(refused(r#""use_dora": true"#).starts_with("`use_dora` cannot be used in a weighted sum"));
    assert!(
        refused(r#""modules_to_save": ["lm_head"]"#)
            .starts_with("`modules_to_save` cannot be used with base")
    );
    assert!(refused(r#""bias": "all""#).starts_with("`bias` cannot be used with base"));
    assert!(
        refused(r#""r": 4, "init_lora_weights": "olora""#).starts_with("`init_lora_weights` cannot be used")
    );
    let part = |weight| Weighted { plan: &plain.0, tensors: &plain.1, weight };
    let said = |parts: &[Weighted<'_>], how| add_weighted_adapter(parts, how).unwrap_err().to_string();
    assert_eq!(said(&[], Combination::Cat), "`adapters` is none; expected at least one");
    assert_eq!(said(&[part(f64::NAN)], Combination::Cat), "`weight` is NaN; expected a finite number");
    assert_eq!(said(&[part(1.0)], Combination::Svd { rank: 0 }), "`rank` is 0; expected at least 1");
    // Another base.
    let mut config = LoraConfig::new(8, 8.0);
    config.target_modules = Some(burnish_peft::Targets::List(vec!["q_proj".into()]));
    let name = "model.layers.0.self_attn.q_proj";
    let modules = [burnish_peft::ModuleInfo::new(name, ModuleKind::Linear, 9, 8)];
    let plan = LoraPlan::new(&config, Purpose::Create, "", &modules, &Registry::new()).unwrap();
    let other = Weighted { plan: &plan, tensors: &plain.1, weight: 1.0 };
    assert_eq!(
        said(&[part(1.0), other], Combination::Cat),
        format!("`{name}.weight` has shape [9, 8], expected [8, 8]")
    );
}

/// Every combination that PEFT records without chance: the factors themselves, of cat and svd the change.
#[test]
fn combinations_are_peft_s() {
    let recorded: serde_json::Value = serde_json::from_str(include_str!("weighted.json")).unwrap();
    let floats = |v: &serde_json::Value| -> Vec<f32> {
        v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    };
    let module = [ModuleInfo::new("proj", ModuleKind::Linear, 4, 5)];
    let parts: Vec<(LoraPlan, AdapterTensors)> = recorded["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| {
            let config = LoraConfig::new(2, part["alpha"].as_f64().unwrap()).with_targets(["proj"]);
            let plan = LoraPlan::new(&config, Purpose::Load, "", &module, &Registry::new()).unwrap();
            let mut tensors = AdapterTensors::default();
            for (name, key, shape) in [("A", "a", [2, 5]), ("B", "b", [4, 2])] {
                let tensor = HostTensor::from_f32(&floats(&part[key]), &shape, Dtype::F32).unwrap();
                tensors.parameters.insert(format!("proj.lora_{name}.weight"), tensor);
            }
            (plan, tensors)
        })
        .collect();
    let weights = floats(&recorded["weights"]);
    let weighted: Vec<Weighted<'_>> = parts
        .iter()
        .zip(&weights)
        .map(|((plan, tensors), &weight)| Weighted { plan, tensors, weight: f64::from(weight) })
        .collect();
    let cases = recorded["sums"].as_array().unwrap();
    assert_eq!(cases.len(), 13);
    for case in cases {
        let word = |key: &str| case[key].as_str().unwrap();
        let sums = |what| FactorSums {
            what,
            density: case["density"].as_f64().unwrap(),
            majority: MajoritySign::from_word(word("majority_sign_method")).unwrap(),
            seed: 0,
        };
        let kind = CombinationType::from_word(word("combination_type")).unwrap();
        let how = match (kind, kind.sum()) {
            (CombinationType::Cat, _) => Combination::Cat,
            (_, None) => Combination::Svd { rank: 2 },
            (_, Some(what)) if kind.has_rank() => Combination::Changes { sums: sums(what), rank: 2 },
            (_, Some(what)) => Combination::Factors(sums(what)),
        };
        let (plan, tensors) = add_weighted_adapter(&weighted, how).unwrap();
        let site = &plan.sites[0];
        assert!((site.scale - case["scale"].as_f64().unwrap()).abs() < 1e-12);
        let wanted: Vec<f64> = floats(&case["change"]).iter().map(|&x| f64::from(x)).collect();
        let off = error(&delta(site, &tensors, 1.0), &wanted);
        assert!(off < 1e-6, "{how:?}: {off}");
        if matches!(how, Combination::Factors(_)) {
            for (factor, key) in [(Factor::A, "a"), (Factor::B, "b")] {
                let got = tensors.parameters[site.name(factor)].to_f32();
                let near = got.iter().zip(floats(&case[key])).all(|(g, w)| (g - w).abs() < 1e-6);
                assert!(near, "{how:?}: {got:?}");
            }
        }
    }
}

/// Chance keeps as many as it is told and makes up for the rest; ranks have to be one.
#[test]
fn sums_of_factors_by_chance() {
    let one = adapter(r#""r": 4, "target_modules": ["q_proj"]"#, 1);
    let sums = |density| {
        let what = FactorSum::DareLinear;
        Combination::Factors(FactorSums { what, density, majority: MajoritySign::Total, seed: 3 })
    };
    let part = |(plan, tensors): &'static (LoraPlan, AdapterTensors)| Weighted { plan, tensors, weight: 1.0 };
    let one = Box::leak(Box::new(one));
    let (plan, tensors) = add_weighted_adapter(&[part(one)], sums(0.5)).unwrap();
    let (got, all) = (&tensors.parameters[&plan.sites[0].a_name], &one.1.parameters[&plan.sites[0].a_name]);
    let kept = got.to_f32().iter().filter(|x| **x != 0.0).count() as f64 / all.to_f32().len() as f64;
    assert!((kept - 0.5).abs() < 0.15, "{kept}");
    let root = (one.0.sites[0].scale as f32).sqrt();
    let same =
        got.to_f32().iter().zip(all.to_f32()).all(|(g, w)| *g == 0.0 || (g - 2.0 * root * w).abs() < 1e-5);
    assert!(same);
    let other = Box::leak(Box::new(adapter(r#""r": 2, "target_modules": ["q_proj"]"#, 2)));
    let error = add_weighted_adapter(&[part(one), part(other)], sums(0.5)).unwrap_err().to_string();
    assert!(error.contains("adapters of several ranks"), "{error}");
    let error = add_weighted_adapter(&[part(one)], sums(1.5)).unwrap_err().to_string();
    assert!(error.contains("`density` is 1.5"), "{error}");
}
