use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{
    Factor, InitWeights, LoraConfig, LoraPlan, LoraSite, ModuleInfo, ModuleKind, PeftError, Purpose, Targets,
    decompose, init_lora_weights,
};

fn site(kind: ModuleKind, init: InitWeights, bias: bool) -> (LoraSite, InitWeights) {
    let mut config = LoraConfig::new(16, 16.0);
    config.target_modules = Some(Targets::List(vec!["m".into()]));
    config.lora_bias = bias;
    config.init_lora_weights = init;
    let modules = [ModuleInfo::new("m", kind, 300, 400)];
    let plan = LoraPlan::new(&config, Purpose::Create, "", &modules, &Default::default()).unwrap();
    (plan.sites[0].clone(), config.init_lora_weights)
}

struct Moments {
    mean: f64,
    std: f64,
    max: f64,
}

fn moments(site: &(LoraSite, InitWeights), factor: Factor) -> Moments {
    let n: usize = site.0.shape(factor).iter().product();
    let values = init_lora_weights(&site.0, factor, &site.1, 7, 0..n).unwrap();
    assert_eq!(values.len(), n);
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
    let var = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
    Moments { mean, std: var.sqrt(), max: values.iter().fold(0.0, |m: f64, &x| m.max(f64::from(x).abs())) }
}

fn uniform(m: &Moments, bound: f64) {
    assert!(m.max <= bound && m.max > 0.99 * bound, "{} {bound}", m.max);
    assert!((m.std / (bound / 3.0_f64.sqrt()) - 1.0).abs() < 0.03, "{}", m.std);
    assert!(m.mean.abs() < 0.05 * bound);
}

fn normal(m: &Moments, std: f64) {
    assert!((m.std / std - 1.0).abs() < 0.03, "{} {std}", m.std);
    assert!(m.mean.abs() < 0.05 * std && m.max > 3.0 * std);
}

#[test]
fn linear() {
    for kind in [ModuleKind::Linear, ModuleKind::Head] {
        let s = site(kind, InitWeights::Flag(true), true);
        uniform(&moments(&s, Factor::A), 1.0 / 20.0);
        assert_eq!(moments(&s, Factor::B).max, 0.0);
        assert_eq!(moments(&s, Factor::BBias).max, 0.0);

        let s = site(kind, InitWeights::Named("gaussian".into()), false);
        normal(&moments(&s, Factor::A), 1.0 / 16.0);
        assert_eq!(moments(&s, Factor::B).max, 0.0);

        let s = site(kind, InitWeights::Flag(false), true);
        uniform(&moments(&s, Factor::A), 1.0 / 20.0);
        uniform(&moments(&s, Factor::B), 1.0 / 4.0);
        let bias = moments(&s, Factor::BBias);
        assert!(bias.max <= 0.25 && bias.max > 0.24);
    }
}

#[test]
fn embedding() {
    for init in [InitWeights::Flag(true), InitWeights::Named("Gaussian".into())] {
        let s = site(ModuleKind::Embedding, init, false);
        assert_eq!(s.0.shape(Factor::A), [16, 300]);
        assert_eq!(s.0.shape(Factor::B), [400, 16]);
        assert_eq!(moments(&s, Factor::A).max, 0.0);
        normal(&moments(&s, Factor::B), 1.0);
    }
    let s = site(ModuleKind::Embedding, InitWeights::Flag(false), false);
    normal(&moments(&s, Factor::A), 1.0);
    normal(&moments(&s, Factor::B), 1.0);
}

#[test]
fn a_slice_is_what_the_whole_has_there_and_seeds_and_names_matter() {
    let s = site(ModuleKind::Linear, InitWeights::Flag(true), false);
    let whole = init_lora_weights(&s.0, Factor::A, &s.1, 3, 0..6400).unwrap();
    assert_eq!(whole[1234..1300], init_lora_weights(&s.0, Factor::A, &s.1, 3, 1234..1300).unwrap());
    assert_ne!(whole, init_lora_weights(&s.0, Factor::A, &s.1, 4, 0..6400).unwrap());
    let mut other = s.0.clone();
    other.a_name = "n.lora_A.weight".into();
    assert_ne!(whole, init_lora_weights(&other, Factor::A, &s.1, 3, 0..6400).unwrap());
}

fn planned(
    kind: ModuleKind,
    rank: usize,
    init: &str,
    edit: impl FnOnce(&mut LoraConfig),
) -> Result<LoraPlan, PeftError> {
    let mut config = LoraConfig::new(rank, 10.0);
    config.target_modules = Some(Targets::List(vec!["m".into()]));
    config.init_lora_weights = InitWeights::Named(init.into());
    edit(&mut config);
    LoraPlan::new(&config, Purpose::Create, "", &[ModuleInfo::new("m", kind, 40, 30)], &Registry::new())
}

/// `B A` is nothing but rounding, while neither factor is; the deviations are those of products of normals.
#[test]
fn orthogonal() {
    let plan = planned(ModuleKind::Linear, 8, "orthogonal", |_| ()).unwrap();
    let site = &plan.sites[0];
    let init = &plan.config.init_lora_weights;
    let a = init_lora_weights(site, Factor::A, init, 3, 0..240).unwrap();
    let b = init_lora_weights(site, Factor::B, init, 3, 0..320).unwrap();
    for o in 0..40 {
        for i in 0..30 {
            let sum: f64 = (0..8).map(|k| f64::from(b[o * 8 + k]) * f64::from(a[k * 30 + i])).sum();
            assert!(sum.abs() < 1e-7, "{o} {i}: {sum}");
        }
    }
    // A row of Q has norm 1 and r/2 of them are mixed: a variance of 1/2 over 100.
    for values in [&a, &b] {
        let std = (values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        assert!((std / (0.5_f64.sqrt() / 10.0) - 1.0).abs() < 0.1, "{std}");
    }
    assert_eq!(a[17..93], init_lora_weights(site, Factor::A, init, 3, 17..93).unwrap());
    assert_eq!(b[5..6], init_lora_weights(site, Factor::B, init, 3, 5..6).unwrap());
    assert_ne!(a, init_lora_weights(site, Factor::A, init, 4, 0..240).unwrap());
    let odd = planned(ModuleKind::Linear, 7, "orthogonal", |_| ()).unwrap_err().to_string();
    assert_eq!(odd, "`init_lora_weights: orthogonal` on `m` with rank 7; expected an even rank");
    // Embeddings start as with `true`, as in PEFT.
    let table = planned(ModuleKind::Embedding, 7, "orthogonal", |_| ()).unwrap();
    assert!(
        init_lora_weights(&table.sites[0], Factor::A, init, 3, 0..280).unwrap().iter().all(|&x| x == 0.0)
    );
}

/// `s B A` and what the base keeps, in fp32, against PEFT's.
#[test]
fn pissa_and_olora_are_peft_s() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let recorded: serde_json::Value =
        serde_json::from_slice(&std::fs::read(here.join("inits.json")).unwrap()).unwrap();
    let weights = burnish_weight_files::WeightFolder::open(here.join("fixtures/tiny-llama-1l")).unwrap();
    for (name, modules) in recorded.as_object().unwrap() {
        let (init, rslora) = name.split_once(", rslora ").unwrap();
        for (module, record) in modules.as_object().unwrap() {
            let weight = weights.read(&format!("{module}.weight")).unwrap();
            let [out, input] = weight.shape[..] else { panic!() };
            let mut config = LoraConfig::new(4, 10.0);
            config.target_modules = Some(Targets::List(vec![module.clone()]));
            config.use_rslora = rslora == "True";
            config.init_lora_weights = InitWeights::Named(init.into());
            let modules = [ModuleInfo::new(module, ModuleKind::Linear, out, input)];
            let plan = LoraPlan::new(&config, Purpose::Create, "", &modules, &Registry::new()).unwrap();
            let (site, init) = (&plan.sites[0], &plan.config.init_lora_weights);
            assert!((site.scale - record["scale"].as_f64().unwrap()).abs() < 1e-12);
            let mut rest = weight.to_f32();
            let found = decompose(site, init, &rest, 5).unwrap();
            found.take_from(site, 0..out, &mut rest);
            let delta: Vec<f32> = weight.to_f32().iter().zip(&rest).map(|(w, r)| w - r).collect();
            for (what, got) in [("delta", &delta), ("rest", &rest)] {
                let at = record[what]["at"].as_array().unwrap();
                for (at, want) in at.iter().zip(record[what]["values"].as_array().unwrap()) {
                    let got = f64::from(got[at.as_u64().unwrap() as usize]);
                    let want = want.as_f64().unwrap();
                    assert!((got - want).abs() < 1e-5, "{name} {module} {what} {at}: {got} {want}");
                }
                let abs: f64 = got.iter().map(|x| f64::from(x.abs())).sum();
                assert!(
                    (abs / record[what]["abs_sum"].as_f64().unwrap() - 1.0).abs() < 1e-5,
                    "{name} {module} {what}"
                );
            }
            // Rows alone come out as in the whole, and all of it can be given back.
            let mut some = weight.to_f32()[3 * input..9 * input].to_vec();
            found.take_from(site, 3..9, &mut some);
            assert_eq!(some, rest[3 * input..9 * input]);
            found.give_back(site, 0..out, &mut rest);
            assert!(rest.iter().zip(weight.to_f32()).all(|(a, b)| (a - b).abs() < 1e-6));
            // The seed matters to nothing but the start of an iteration.
            let other = decompose(site, init, &weight.to_f32(), 6).unwrap();
            assert!(found.a.iter().zip(&other.a).all(|(a, b)| (a - b).abs() < 1e-6), "{name} {module}");
        }
    }
}

#[test]
fn many_iterations_of_pissa_approach_the_exact_one() {
    let weight: Vec<f32> = (0..1200).map(|i| ((i * i % 97) as f32 - 48.0) / 97.0).collect();
    let product = |init: &str| {
        let plan = planned(ModuleKind::Linear, 4, init, |_| ()).unwrap();
        let mut rest = weight.clone();
        decompose(&plan.sites[0], &plan.config.init_lora_weights, &weight, 1).unwrap().take_from(
            &plan.sites[0],
            0..40,
            &mut rest,
        );
        rest.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()
    };
    let (exact, few, many) = (product("pissa"), product("pissa_niter_0"), product("pissa_niter_50"));
    assert!(exact <= many * (1.0 + 1e-6) && many < few && many < exact * 1.001, "{exact} {many} {few}");
}

#[test]
fn what_inits_from_the_base_ask_for() {
    let error = |kind, rank, init: &str| planned(kind, rank, init, |_| ()).unwrap_err().to_string();
    assert_eq!(
        error(ModuleKind::Linear, 31, "pissa"),
        "`init_lora_weights: pissa` on `m` with rank 31; expected at most 30, the smaller dimension of its weight"
    );
    let plan = planned(ModuleKind::Linear, 4, "olora", |_| ()).unwrap();
    let (site, init) = (&plan.sites[0], &plan.config.init_lora_weights);
    let needs = init_lora_weights(site, Factor::A, init, 1, 0..4).unwrap_err().to_string();
    assert!(needs.starts_with("`m.lora_A.weight` starts from the base weight"), "{needs}");
    assert!(decompose(site, &InitWeights::Flag(true), &[0.0; 1200], 1).is_none());
    // A tied head cannot keep a rest of its own.
    let mut base = Registry::new();
    base.add(Parameter::new("e.weight", &[40, 30], Role::Embedding, Dtype::F32)).unwrap();
    let mut tied = Parameter::new("m.weight", &[40, 30], Role::Head, Dtype::F32);
    tied.alias_of = Some("e.weight".into());
    base.add(tied).unwrap();
    let modules = [ModuleInfo::new("m", ModuleKind::Head, 40, 30)];
    let tied = LoraPlan::new(&plan.config, Purpose::Create, "", &modules, &base).unwrap_err().to_string();
    assert!(tied.contains("`init_lora_weights` cannot be used") && tied.contains("tied"), "{tied}");
}

/// The file's configuration is that of an adapter for the original base with the same scales.
#[test]
fn the_exported_plan_keeps_every_scale() {
    for rslora in [false, true] {
        let edit = |c: &mut LoraConfig| {
            c.use_rslora = rslora;
            c.rank_pattern = serde_json::from_str(r#"{"m": 6}"#).unwrap();
            c.alpha_pattern = serde_json::from_str(r#"{"m": 5}"#).unwrap();
        };
        let plan = planned(ModuleKind::Linear, 4, "pissa", edit).unwrap();
        let exported = plan.exported();
        assert_eq!((exported.config.r, exported.sites[0].rank), (8, 12));
        assert_eq!(exported.config.init_lora_weights, InitWeights::Flag(true));
        // Planned anew from the file, it is the same.
        let text = exported.config.to_json();
        let config = LoraConfig::from_json(&text).unwrap();
        let modules = [ModuleInfo::new("m", ModuleKind::Linear, 40, 30)];
        let again = LoraPlan::new(&config, Purpose::Load, "", &modules, &Registry::new()).unwrap();
        assert!((again.sites[0].scale - plan.sites[0].scale).abs() < 1e-15, "{rslora}");
        assert_eq!(again.sites[0].rank, 12);
        assert_eq!(text.contains("\"lora_alpha\": 20,"), !rslora, "{text}");
    }
    let plain = planned(ModuleKind::Linear, 4, "gaussian", |_| ()).unwrap();
    assert_eq!(plain.exported().config, plain.config);
}
