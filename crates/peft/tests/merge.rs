use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::{
    AdapterTensors, Factor, LoraConfig, LoraPlan, LoraSite, ModuleInfo, ModuleKind, PeftError, Purpose,
    Targets, merge_adapter, merge_site,
};
use burnish_weight_files::HostTensor;

fn site(kind: ModuleKind, bias: bool) -> LoraSite {
    let mut config = LoraConfig::new(2, 6.0);
    config.target_modules = Some(Targets::List(vec!["m".into()]));
    config.lora_bias = bias;
    let modules = [ModuleInfo::new("m", kind, 5, 3)];
    LoraPlan::new(&config, Purpose::Create, "", &modules, &Default::default()).unwrap().sites[0].clone()
}

fn tensor(shape: &[usize], seed: u64, dtype: Dtype) -> HostTensor {
    let stream = burnish_core::random::Stream::new(seed, "merge");
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n as u64).map(|i| stream.normal(i)).collect();
    HostTensor::from_f32(&values, shape, dtype).unwrap()
}

fn factors(site: &LoraSite) -> [HostTensor; 3] {
    [Factor::A, Factor::B, Factor::BBias].map(|f| tensor(&site.shape(f), 10 + f as u64, Dtype::F32))
}

#[test]
fn the_merged_weight_computes_what_the_adapter_adds() {
    for kind in [ModuleKind::Linear, ModuleKind::Head, ModuleKind::Embedding] {
        let site = site(kind, false);
        let [a, b, bias] = factors(&site);
        let weight = tensor(&[5, 3], 1, Dtype::F32);
        let merged = merge_site(&site, &weight, None, |f| [&a, &b, &bias][f as usize]).unwrap();
        let (w, m, a, b) = (weight.to_f32(), merged.weight.to_f32(), a.to_f32(), b.to_f32());
        for o in 0..5 {
            for i in 0..3 {
                let sum: f32 = (0..2)
                    .map(|k| match kind {
                        ModuleKind::Embedding => b[i * 2 + k] * a[k * 5 + o],
                        _ => b[o * 2 + k] * a[k * 3 + i],
                    })
                    .sum();
                let expected = w[o * 3 + i] + 3.0 * sum;
                assert!((m[o * 3 + i] - expected).abs() < 1e-5, "{kind:?} {o} {i}");
            }
        }
        assert_eq!(merged.bias, None);
    }
}

#[test]
fn biases_merge_scaled_and_need_a_base_bias() {
    let site = site(ModuleKind::Linear, true);
    let [a, b, bias] = factors(&site);
    let get = |f: Factor| [&a, &b, &bias][f as usize];
    let weight = tensor(&[5, 3], 1, Dtype::F32);
    let base = tensor(&[5], 2, Dtype::Bf16);
    let merged = merge_site(&site, &weight, Some(&base), get).unwrap().bias.unwrap();
    assert_eq!(merged.dtype, Dtype::Bf16);
    for ((m, x), d) in merged.to_f32().iter().zip(base.to_f32()).zip(bias.to_f32()) {
        assert!((m - (x + 3.0 * d)).abs() <= 0.005 * m.abs().max(1.0));
    }
    let error = merge_site(&site, &weight, None, get).unwrap_err();
    assert!(error.to_string().starts_with("`m` has lora_bias but its base layer has no bias"), "{error}");
}

/// A tied head and embedding: merging into one of them must not change the other, nor be lost on reload.
#[test]
fn merging_unties() {
    let mut config = LoraConfig::new(2, 6.0);
    config.target_modules = Some(Targets::List(vec!["embed_tokens".into()]));
    let modules = [
        ModuleInfo::new("model.embed_tokens", ModuleKind::Embedding, 5, 3),
        ModuleInfo::new("lm_head", ModuleKind::Head, 5, 3),
    ];
    let mut base = Registry::new();
    base.add(Parameter::new("model.embed_tokens.weight", &[5, 3], Role::Embedding, Dtype::F32)).unwrap();
    let mut head = Parameter::new("lm_head.weight", &[5, 3], Role::Head, Dtype::F32);
    head.alias_of = Some("model.embed_tokens.weight".into());
    base.add(head).unwrap();
    let shared = tensor(&[5, 3], 1, Dtype::F32);
    for (target, other) in [("embed_tokens", "lm_head.weight"), ("lm_head", "model.embed_tokens.weight")] {
        config.target_modules = Some(Targets::List(vec![target.into()]));
        let plan = LoraPlan::new(&config, Purpose::Create, "", &modules, &base).unwrap();
        let mut adapter = AdapterTensors::default();
        for p in plan.parameters() {
            adapter.parameters.insert(p.name.clone(), tensor(&p.shape, 3, Dtype::F32));
        }
        let merged = merge_adapter(&plan, &adapter, |_| Ok::<_, PeftError>(Some(shared.clone()))).unwrap();
        assert_eq!(merged.untied, ["lm_head.weight", "model.embed_tokens.weight"]);
        assert_eq!(merged.tensors.len(), 2);
        assert_eq!(merged.tensors[other], shared);
        assert_ne!(merged.tensors[&plan.sites[0].base_weight()], shared);
        let missing = merge_adapter(&plan, &adapter, |_| Ok::<_, PeftError>(None)).unwrap_err().to_string();
        assert!(missing.contains("is needed to merge and is not there"), "{missing}");
    }
}

#[test]
fn not_finite_is_refused() {
    let site = site(ModuleKind::Linear, false);
    let [a, mut b, bias] = factors(&site);
    let big = HostTensor::from_f32(&[60_000.0; 15], &[5, 3], Dtype::F16).unwrap();
    let ones = HostTensor::from_f32(&[100.0; 6], &[2, 3], Dtype::F32).unwrap();
    let ten = HostTensor::from_f32(&[10.0; 10], &[5, 2], Dtype::F32).unwrap();
    // 60000 + 3 * 2000 fits f32, not f16.
    let over = merge_site(&site, &big, None, |f| [&ones, &ten, &bias][f as usize]).unwrap_err();
    assert!(matches!(over, PeftError::NotFinite { .. }), "{over}");
    b.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let weight = tensor(&[5, 3], 1, Dtype::Bf16);
    let nan = merge_site(&site, &weight, None, |f| [&a, &b, &bias][f as usize]).unwrap_err();
    assert!(nan.to_string().contains("merging `m` gives values that are not finite"), "{nan}");
}

#[test]
fn a_bf16_base_is_rounded_once_and_shapes_are_checked() {
    let site = site(ModuleKind::Linear, false);
    let [a, b, bias] = factors(&site);
    let weight = tensor(&[5, 3], 1, Dtype::Bf16);
    let get = |f: Factor| [&a, &b, &bias][f as usize];
    let low = merge_site(&site, &weight, None, get).unwrap().weight;
    let high = merge_site(&site, &weight.cast(Dtype::F32), None, get).unwrap().weight;
    assert_eq!(low, high.cast(Dtype::Bf16));
    let wrong = merge_site(&site, &tensor(&[3, 5], 1, Dtype::F32), None, get).unwrap_err();
    assert_eq!(wrong.to_string(), "`m.weight` has shape [3, 5], expected [5, 3]");
}

/// With a magnitude, rows (of an embedding columns) of `W + s B A` get that norm.
#[test]
fn magnitudes_are_the_norms_of_the_merged_weight() {
    for kind in [ModuleKind::Linear, ModuleKind::Head, ModuleKind::Embedding] {
        let mut config = LoraConfig::new(2, 6.0);
        config.target_modules = Some(Targets::List(vec!["m".into()]));
        config.use_dora = true;
        let plan = LoraPlan::new(
            &config,
            Purpose::Create,
            "",
            &[ModuleInfo::new("m", kind, 5, 3)],
            &Default::default(),
        )
        .unwrap();
        let dora = &plan.sites[0];
        assert_eq!(plan.parameters().last().unwrap().name, "m.lora_magnitude_vector");
        let plain = site(kind, false);
        let [a, b, _] = factors(&plain);
        let shape = dora.shape(Factor::Magnitude);
        assert_eq!(shape, [if kind == ModuleKind::Embedding { 3 } else { 5 }]);
        let m = tensor(&shape, 30, Dtype::F32);
        let get = |f: Factor| match f {
            Factor::A => &a,
            Factor::B => &b,
            _ => &m,
        };
        let weight = tensor(&[5, 3], 1, Dtype::F32);
        let (got, sum) = (
            merge_site(dora, &weight, None, get).unwrap().weight.to_f32(),
            merge_site(&plain, &weight, None, get).unwrap().weight.to_f32(),
        );
        let m = m.to_f32();
        for (line, m) in m.iter().enumerate() {
            let elements: Vec<usize> = match kind {
                ModuleKind::Embedding => (0..5).map(|v| v * 3 + line).collect(),
                _ => (0..3).map(|i| line * 3 + i).collect(),
            };
            let norm = elements.iter().map(|&i| sum[i] * sum[i]).sum::<f32>().sqrt();
            for i in elements {
                assert!((got[i] - m / norm * sum[i]).abs() < 1e-5, "{kind:?} {line}");
            }
        }
        let wrong = tensor(&[4], 1, Dtype::F32);
        let error = merge_site(dora, &weight, None, |f| if f == Factor::Magnitude { &wrong } else { get(f) });
        let said = format!("`m.lora_magnitude_vector` has shape [4], expected {shape:?}");
        assert_eq!(error.unwrap_err().to_string(), said);
    }
    let mut both = LoraConfig::new(2, 6.0);
    (both.use_dora, both.lora_bias) = (true, true);
    assert_eq!(both.validate().unwrap_err().to_string(), "`lora_bias` cannot be used with `use_dora`");
}
