//! Adapters on Burn modules are PEFT's: names, shapes and values in the files, sums in the weights.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_peft::module::{attach, load, merge, save};
use burnish_peft::{
    AdapterFolder, Bias, Factor, InitWeights, LoraConfig, LoraPlan, ModuleInfo, ModuleKind, PeftError,
    Purpose, Targets, init_lora_weights, merge_site,
};
use burnish_weight_files::HostTensor;

#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    q_proj: Linear,
    o_proj: Linear,
}

#[derive(Module, Debug)]
struct Net {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    own: Param<Tensor<2>>,
    lm_head: Linear,
}

const VOCAB: usize = 11;

fn device() -> Device {
    Device::flex().autodiff()
}

/// The same values on every call.
fn net() -> Net {
    let device = device();
    let mut seed = 0;
    let mut values = |n: usize| {
        seed += 1;
        let stream = burnish_core::random::Stream::new(seed, "net");
        (0..n).map(|i| 0.5 * stream.normal(i as u64)).collect::<Vec<f32>>()
    };
    let mut linear = |input, out, bias| {
        let mut linear = LinearConfig::new(input, out).with_bias(bias).init(&device);
        let w = TensorData::new(values(input * out), [input, out]);
        linear.weight = Param::from_tensor(Tensor::from_data(w, &device));
        linear.bias =
            bias.then(|| Param::from_tensor(Tensor::from_data(TensorData::new(values(out), [out]), &device)));
        linear
    };
    let layers = (0..2)
        .map(|_| Layer {
            norm: LayerNormConfig::new(4).init(&device),
            q_proj: linear(4, 6, true),
            o_proj: linear(6, 4, false),
        })
        .collect();
    let lm_head = linear(4, VOCAB, false);
    let own = Param::from_tensor(Tensor::from_data(TensorData::new(values(16), [4, 4]), &device));
    let mut embed_tokens = EmbeddingConfig::new(VOCAB, 4).init(&device);
    let w = TensorData::new(values(4 * VOCAB), [VOCAB, 4]);
    embed_tokens.weight = Param::from_tensor(Tensor::from_data(w, &device));
    Net { embed_tokens, layers, own, lm_head }
}

impl Net {
    fn logits(&self) -> Tensor<3> {
        let ids = Tensor::<2, Int>::from_data([[0, 3, 7], [10, 2, 1]], &device());
        let mut x = self.embed_tokens.forward(ids);
        for layer in &self.layers {
            x = x.clone() + layer.o_proj.forward(layer.q_proj.forward(layer.norm.forward(x)).tanh());
        }
        self.lm_head.forward(x.matmul(self.own.val().unsqueeze()))
    }
}

fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

#[track_caller]
fn assert_near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-5 * w.abs().max(1.0), "{g} is not {w}");
    }
}

/// A step of gradient descent on whatever requires a gradient, so that B is not zero.
fn trained(net: Net) -> Net {
    struct Down(burn::tensor::Gradients);
    impl burn::module::ModuleMapper for Down {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let gradient = if param.is_require_grad() { param.base().grad_remove(&mut self.0) } else { None };
            let Some(gradient) = gradient else { return param };
            param.map(|t| Tensor::from_inner(t.inner() - gradient * 0.1).require_grad())
        }
    }
    let mut net = net;
    for _ in 0..3 {
        let gradients = (net.logits() - 0.4).square().mean().backward();
        net = net.map(&mut Down(gradients));
    }
    net
}

fn config(targets: &[&str]) -> LoraConfig {
    LoraConfig::new(3, 6.0).with_targets(targets.iter().copied())
}

#[test]
fn what_is_saved_is_what_is_loaded_and_merges_to_the_same_outputs() {
    let mut configs = vec![config(&["q_proj", "o_proj", "embed_tokens", "lm_head"]), config(&["all-linear"])];
    configs[1].target_modules = Some(Targets::Pattern("all-linear".into()));
    let mut whole = config(&["q_proj"]);
    whole.modules_to_save = Some(vec!["lm_head".into(), "norm".into()]);
    whole.bias = Bias::LoraOnly;
    whole.use_rslora = true;
    configs.push(whole);
    for config in configs {
        let fresh = attach(net(), &config, 7).unwrap();
        assert_near(&values(&fresh.logits()), &values(&net().logits()));
        let adapted = trained(fresh);
        let moved: f32 =
            values(&adapted.logits()).iter().zip(values(&net().logits())).map(|(a, b)| (a - b).abs()).sum();
        assert!(moved > 0.1, "{moved}: nothing was trained");
        let dir = tempfile::tempdir().unwrap();
        save(&adapted, &config, dir.path()).unwrap();
        let loaded = load(net(), dir.path()).unwrap();
        assert_eq!(values(&loaded.logits()), values(&adapted.logits()));
        let merged = merge(loaded);
        assert!(merged.layers[0].q_proj.weight.adapter().is_none());
        assert_near(&values(&merged.logits()), &values(&adapted.logits()));
        // What was loaded trains on.
        let again = trained(load(net(), dir.path()).unwrap());
        assert_ne!(values(&again.logits()), values(&adapted.logits()));
    }
}

/// The folder on the same weights in Hugging Face's layout, `[out, in]`.
#[test]
fn the_folder_is_that_of_the_same_model_in_huggingfaces_layout() {
    let config = config(&["q_proj", "embed_tokens"]);
    let adapted = trained(attach(net(), &config, 7).unwrap());
    let dir = tempfile::tempdir().unwrap();
    save(&adapted, &config, dir.path()).unwrap();
    let folder = AdapterFolder::open(dir.path()).unwrap();
    let mut keys: Vec<&str> = folder.keys().collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "base_model.model.embed_tokens.lora_embedding_A",
            "base_model.model.embed_tokens.lora_embedding_B",
            "base_model.model.layers.0.q_proj.lora_A.weight",
            "base_model.model.layers.0.q_proj.lora_B.weight",
            "base_model.model.layers.1.q_proj.lora_A.weight",
            "base_model.model.layers.1.q_proj.lora_B.weight",
        ]
    );
    let modules = [
        ModuleInfo::new("embed_tokens", ModuleKind::Embedding, VOCAB, 4),
        ModuleInfo::new("layers.0.q_proj", ModuleKind::Linear, 6, 4),
        ModuleInfo::new("layers.1.q_proj", ModuleKind::Linear, 6, 4),
    ];
    let mut base = Registry::new();
    for m in &modules {
        let name = format!("{}.weight", m.name);
        base.add(Parameter::new(name, &[m.out, m.input], Role::Matrix, Dtype::F32)).unwrap();
    }
    let plan = LoraPlan::new(&folder.config, Purpose::Load, "", &modules, &base).unwrap();
    let tensors = folder.load(&plan).unwrap();
    let merged = merge(adapted);
    for (site, weight, got, turned) in [
        (
            &plan.sites[0],
            values(&net().embed_tokens.weight.val()),
            values(&merged.embed_tokens.weight.val()),
            false,
        ),
        (
            &plan.sites[1],
            values(&net().layers[0].q_proj.weight.val()),
            values(&merged.layers[0].q_proj.weight.val()),
            true,
        ),
    ] {
        let out_in = |v: &[f32]| -> Vec<f32> {
            if !turned {
                return v.to_vec();
            }
            (0..v.len()).map(|i| v[(i % site.input) * site.out + i / site.input]).collect()
        };
        let weight = HostTensor::from_f32(&out_in(&weight), &[site.out, site.input], Dtype::F32).unwrap();
        let want = merge_site(site, &weight, None, |f| &tensors.parameters[site.name(f)]).unwrap().weight;
        assert_near(&out_in(&got), &want.to_f32());
    }
}

#[test]
fn factors_begin_as_pefts_and_only_they_train() {
    let mut config = config(&["q_proj"]);
    config.init_lora_weights = InitWeights::Named("gaussian".into());
    config.rank_pattern = [("layers.1.q_proj".to_owned(), 2.into())].into_iter().collect();
    let adapted = attach(net(), &config, 7).unwrap();
    let adapters: Vec<_> = adapted.layers.iter().map(|l| l.q_proj.weight.adapter().unwrap()).collect();
    assert_eq!((adapters[0].scale, adapters[1].scale), (2.0, 3.0));
    assert_eq!((adapters[0].a.val().dims(), adapters[0].b.val().dims()), ([4, 3], [3, 6]));
    assert_eq!(adapters[1].a.val().dims(), [4, 2]);
    let modules = [ModuleInfo::new("layers.0.q_proj", ModuleKind::Linear, 6, 4)];
    config.rank_pattern.clear();
    let plan = LoraPlan::new(&config, Purpose::Create, "", &modules, &Registry::new()).unwrap();
    let a = init_lora_weights(&plan.sites[0], Factor::A, &config.init_lora_weights, 7, 0..12).unwrap();
    assert_eq!(values(&adapters[0].a.val().transpose()), a);
    assert!(values(&adapters[0].b.val()).iter().all(|&x| x == 0.0));

    let gradients = adapted.logits().sum().backward();
    let layer = &adapted.layers[0];
    assert!(layer.q_proj.weight.adapter().unwrap().b.val().grad(&gradients).is_some());
    assert!(!layer.q_proj.weight.base().is_require_grad());
    assert!(!layer.norm.gamma.is_require_grad() && !adapted.own.is_require_grad());
    assert!(layer.o_proj.weight.adapter().is_none());
}

/// An adapter of MiCA keeps its B, as in PEFT.
#[test]
fn mica_trains_a_alone() {
    let mut config = config(&["q_proj"]);
    let dir = tempfile::tempdir().unwrap();
    let first = trained(attach(net(), &config, 7).unwrap());
    config.init_lora_weights = InitWeights::Named("mica".into());
    save(&first, &config, dir.path()).unwrap();
    let loaded = load(net(), dir.path()).unwrap();
    assert_eq!(values(&loaded.logits()), values(&first.logits()));
    let again = trained(loaded);
    let factors = |net: &Net| {
        let own = net.layers[0].q_proj.weight.adapter().unwrap();
        (values(&own.a.val()), values(&own.b.val()))
    };
    let ((a, b), (a_again, b_again)) = (factors(&first), factors(&again));
    assert_ne!(a, a_again);
    assert_eq!(b, b_again);
}

/// A bf16 base has bf16 factors, as the sum has one dtype; files are f32.
#[test]
fn a_bf16_base() {
    struct Narrow;
    impl burn::module::ModuleMapper for Narrow {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|t| t.detach().cast(FloatDType::BF16))
        }
    }
    let base = || net().map(&mut Narrow);
    let config = config(&["q_proj"]);
    let adapted = attach(base(), &config, 7).unwrap();
    let adapter = adapted.layers[0].q_proj.weight.adapter().unwrap();
    assert_eq!(adapter.a.val().dtype(), DType::BF16);
    assert_eq!(adapted.layers[0].q_proj.weight.val().dtype(), DType::BF16);
    let dir = tempfile::tempdir().unwrap();
    save(&adapted, &config, dir.path()).unwrap();
    let loaded = load(base(), dir.path()).unwrap();
    let again = loaded.layers[0].q_proj.weight.adapter().unwrap();
    assert_eq!(values(&again.a.val()), values(&adapter.a.val()));
}

#[test]
fn what_a_weights_adapter_cannot_do_is_refused_by_name() {
    let with = |change: &dyn Fn(&mut LoraConfig)| {
        let mut config = config(&["q_proj"]);
        change(&mut config);
        attach(net(), &config, 1).map(drop).unwrap_err().to_string()
    };
    for (change, key) in [
        (&(|c: &mut LoraConfig| c.use_dora = true) as &dyn Fn(&mut LoraConfig), "use_dora"),
        (&|c| c.lora_bias = true, "lora_bias"),
        (&|c| *c = c.clone().with_dropout(0.1), "lora_dropout"),
        (&|c| c.init_lora_weights = InitWeights::Named("pissa".into()), "init_lora_weights"),
    ] {
        let error = with(change);
        assert!(error.contains(&format!("`{key}: ")), "{key}: {error}");
    }
    let error = with(&|c| c.target_modules = Some(Targets::List(vec!["q_prj".into()])));
    assert!(error.contains("q_prj") && error.contains("nearest: q_proj"), "{error}");
    let twice = attach(attach(net(), &config(&["q_proj"]), 1).unwrap(), &config(&["o_proj"]), 1).unwrap_err();
    assert!(
        matches!(&twice, PeftError::Adapted { path } if path == "layers.0.q_proj.weight.lora.a"),
        "{twice}"
    );
    // Saved under another configuration: all differences are listed.
    let dir = tempfile::tempdir().unwrap();
    let adapted = attach(net(), &config(&["q_proj"]), 1).unwrap();
    let error =
        save(&adapted, &LoraConfig::new(2, 4.0).with_targets(["q_proj", "o_proj"]), dir.path()).unwrap_err();
    let PeftError::Mismatch { differences, .. } = &error else { panic!("{error}") };
    assert_eq!((differences.missing.len(), differences.shapes.len()), (4, 4), "{error}");
}
