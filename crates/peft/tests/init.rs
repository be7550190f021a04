use burnish_peft::{
    Factor, InitWeights, LoraConfig, LoraSite, ModuleInfo, ModuleKind, Plan, Targets, Use, fresh,
};

fn site(kind: ModuleKind, init: InitWeights, bias: bool) -> (LoraSite, InitWeights) {
    let mut config = LoraConfig::new(16, 16.0);
    config.target_modules = Some(Targets::List(vec!["m".into()]));
    config.lora_bias = bias;
    config.init_lora_weights = init;
    let modules = [ModuleInfo::new("m", kind, 300, 400)];
    let plan = Plan::new(&config, Use::Create, "", &modules, &Default::default()).unwrap();
    (plan.sites[0].clone(), config.init_lora_weights)
}

struct Moments {
    mean: f64,
    std: f64,
    max: f64,
}

fn moments(site: &(LoraSite, InitWeights), factor: Factor) -> Moments {
    let n: usize = site.0.shape(factor).iter().product();
    let values = fresh(&site.0, factor, &site.1, 7, 0..n);
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
    let whole = fresh(&s.0, Factor::A, &s.1, 3, 0..6400);
    assert_eq!(whole[1234..1300], fresh(&s.0, Factor::A, &s.1, 3, 1234..1300));
    assert_ne!(whole, fresh(&s.0, Factor::A, &s.1, 4, 0..6400));
    let mut other = s.0.clone();
    other.a_name = "n.lora_A.weight".into();
    assert_ne!(whole, fresh(&other, Factor::A, &s.1, 3, 0..6400));
}
