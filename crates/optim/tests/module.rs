//! Muon and AdamW as Burn's optimizers: on a Burn module they are what they are on a registry.

use burn::module::{Module, Param, ParamGroup};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_optim::GradientsParams;
use burnish_core::{Dtype, OptionFault, Orientation, Parameter, Registry, Role};
use burnish_optim::module::OptimizerConfig;
use burnish_optim::{
    AdamWOptions, LearningRates, LocalMatrices, MomentumDtype, MuonOptions, OptimError, Optimizer,
    OptimizerKind, Scale, Variant,
};

use crate::store::{Store, normal, step_with, tensor};

#[derive(Module, Debug)]
struct Net {
    embed: Embedding,
    norm: RmsNorm,
    up: Linear,
    mix: Param<Tensor<2>>,
    head: Linear,
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn leaf<const D: usize>(name: &str, shape: [usize; D]) -> Param<Tensor<D>> {
    let values = normal(name, shape.iter().product());
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), &device()))
}

fn linear(name: &str, input: usize, out: usize) -> Linear {
    let mut linear = LinearConfig::new(input, out).init(&device());
    linear.weight = leaf(name, [input, out]);
    linear.bias = Some(leaf(&format!("{name}.bias"), [out]));
    linear
}

fn net() -> Net {
    let mut embed = EmbeddingConfig::new(5, 4).init(&device());
    embed.weight = leaf("embed", [5, 4]);
    let norm = RmsNormConfig::new(4).init(&device());
    Net { embed, norm, up: linear("up", 4, 9), mix: leaf("mix", [9, 3]), head: linear("head", 3, 5) }
}

impl Net {
    fn loss(&self, k: usize) -> Tensor<1> {
        let ids = Tensor::<2, Int>::from_data([[k as i64 % 5, 1, 2]], &device());
        let x = self.norm.forward(self.embed.forward(ids));
        let x = self.up.forward(x).tanh().matmul(self.mix.val().unsqueeze());
        (self.head.forward(x) - 0.3).square().sum()
    }
}

fn all_options() -> Vec<MuonOptions> {
    let mut all = Vec::new();
    for scale in [Scale::MatchRmsAdamw, Scale::Original, Scale::Spectral] {
        for variant in [Variant::Muon, Variant::NorMuon, Variant::AdaMuon] {
            all.push(MuonOptions { scale, variant, weight_decay: 0.1, ..MuonOptions::default() });
        }
    }
    all
}

fn config(muon: MuonOptions) -> OptimizerConfig {
    let adam = AdamWOptions { weight_decay: 0.05, ..AdamWOptions::default() };
    OptimizerConfig::muon(muon, adam).orientation("mix", Orientation::InOut).role("head.weight", Role::Head)
}

/// The parameters of [`Net`] as the model code of this workspace would register them: `[out, in]`.
fn upright() -> Registry {
    let mut registry = Registry::new();
    for (name, shape, role) in [
        ("embed.weight", &[5, 4][..], Role::Embedding),
        ("norm.gamma", &[4], Role::Norm),
        ("up.weight", &[9, 4], Role::Matrix),
        ("up.bias", &[9], Role::Bias),
        ("mix", &[3, 9], Role::Matrix),
        ("head.weight", &[3, 5], Role::Head),
        ("head.bias", &[5], Role::Bias),
    ] {
        let mut parameter = Parameter::new(name, shape, role, Dtype::F32);
        parameter.trainable = true;
        registry.add(parameter).unwrap();
    }
    registry
}

fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    (0..values.len()).map(|i| values[(i % rows) * columns + i / rows]).collect()
}

/// Values in the registry's order, matrices `[out, in]`.
fn values(net: &Net) -> Vec<Vec<f32>> {
    let of = |t: TensorData| t.iter::<f32>().collect::<Vec<_>>();
    vec![
        of(net.embed.weight.val().into_data()),
        of(net.norm.gamma.val().into_data()),
        turned(&of(net.up.weight.val().into_data()), 9),
        of(net.up.bias.as_ref().unwrap().val().into_data()),
        turned(&of(net.mix.val().into_data()), 3),
        of(net.head.weight.val().into_data()),
        of(net.head.bias.as_ref().unwrap().val().into_data()),
    ]
}

fn gradients(net: &Net, k: usize) -> (GradientsParams, Vec<Vec<f32>>) {
    let found = GradientsParams::from_grads(net.loss(k).backward(), net);
    let two =
        |p: &Param<Tensor<2>>| found.get::<2>(p.id).unwrap().into_data().iter::<f32>().collect::<Vec<_>>();
    let one =
        |p: &Param<Tensor<1>>| found.get::<1>(p.id).unwrap().into_data().iter::<f32>().collect::<Vec<_>>();
    let all = vec![
        two(&net.embed.weight),
        one(&net.norm.gamma),
        turned(&two(&net.up.weight), 9),
        one(net.up.bias.as_ref().unwrap()),
        turned(&two(&net.mix), 3),
        two(&net.head.weight),
        one(net.head.bias.as_ref().unwrap()),
    ];
    (found, all)
}

#[test]
fn a_burn_module_gets_the_updates_of_the_same_weights_out_in() {
    for muon in all_options() {
        let mut net = net();
        let mut optimizer = config(muon).init(&net).unwrap();
        let registry = upright();
        let adam = AdamWOptions { weight_decay: 0.05, ..AdamWOptions::default() };
        let mut reference = Optimizer::muon(&registry, &registry, muon, adam, &|_| true).unwrap();
        let store = Store::new(values(&net).iter().zip(registry.iter()).map(|(v, p)| tensor(v, &p.shape)));
        for k in 0..4 {
            let (found, lists) = gradients(&net, k);
            net = optimizer.step(0.01, net, found);
            let lists = lists.iter().zip(registry.iter()).map(|(g, p)| tensor(g, &p.shape)).enumerate();
            let mut here = LocalMatrices::new(&registry);
            step_with(&mut reference, &store, lists.collect(), None, LearningRates::both(0.01), &mut here)
                .unwrap();
            for (i, value) in values(&net).into_iter().enumerate() {
                assert_eq!(value, store.f32(i), "{}, step {k}, {muon:?}", registry.at(i).name);
            }
        }
    }
}

#[test]
fn parameters_declare_what_they_are() {
    let config = config(MuonOptions::default());
    let assignment = config.assignment(&net()).unwrap();
    let kinds: Vec<_> = assignment.iter().map(|a| (a.parameter.as_str(), a.role, a.kind)).collect();
    let adam = OptimizerKind::AdamW;
    assert_eq!(
        kinds,
        [
            ("embed.weight", Role::Embedding, adam),
            ("norm.gamma", Role::Norm, adam),
            ("up.weight", Role::Matrix, OptimizerKind::Muon),
            ("up.bias", Role::Bias, adam),
            ("mix", Role::Matrix, OptimizerKind::Muon),
            ("head.weight", Role::Head, adam),
            ("head.bias", Role::Bias, adam),
        ]
    );
    let matrices: ParamGroup = config.matrices(&net()).unwrap();
    let net = net();
    assert!(
        matrices.matches(&net.up.weight.id, Some("up.weight")) && matrices.matches(&net.mix.id, Some("mix"))
    );
    assert!(!matrices.matches(&net.head.weight.id, Some("head.weight")));
}

#[test]
fn what_is_not_declared_or_does_not_match_is_refused() {
    let undeclared = OptimizerConfig::muon(MuonOptions::default(), AdamWOptions::default());
    let error = undeclared.init(&net()).err().unwrap();
    assert!(matches!(&error, OptimError::Orientation { parameter, .. } if parameter == "mix"), "{error}");
    let error = undeclared.clone().role("haed", Role::Head).init(&net()).err().unwrap();
    assert!(matches!(&error, OptimError::Unmatched { pattern, .. } if pattern == "haed"), "{error}");
    let error = OptimizerConfig::muon(
        MuonOptions { momentum: 1.5, ..MuonOptions::default() },
        AdamWOptions::default(),
    )
    .role("mix", Role::Embedding)
    .init(&net());
    assert!(matches!(
        error.err().unwrap(),
        OptimError::Option(OptionFault::Range { option: "muon_momentum", .. })
    ));
    let frozen = net().no_grad();
    assert!(matches!(undeclared.init(&frozen).err().unwrap(), OptimError::NothingForMuon { trained: 0, .. }));
    assert!(OptimizerConfig::adamw(AdamWOptions::default()).init(&net()).is_ok());
}

/// Burn's records: bytes and back, and the run goes on with the same bits.
#[test]
fn a_saved_optimizer_goes_on_as_if_it_had_never_stopped() {
    let mut all = all_options();
    all.push(MuonOptions {
        momentum_dtype: MomentumDtype::Bf16Stochastic,
        seed: 5,
        ..MuonOptions::default()
    });
    for muon in all {
        let mut net = net();
        let mut optimizer = config(muon).init(&net).unwrap();
        for k in 0..2 {
            let (found, _) = gradients(&net, k);
            net = optimizer.step(0.01, net, found);
        }
        let bytes = optimizer.into_bytes().unwrap();
        let mut restored = config(muon).init(&net).unwrap().from_bytes(bytes).unwrap();
        let (mut go_on, mut resumed) = (net.clone(), net);
        for k in 2..4 {
            let (found, _) = gradients(&go_on, k);
            go_on = optimizer.step(0.01, go_on, found);
            let (found, _) = gradients(&resumed, k);
            resumed = restored.step(0.01, resumed, found);
        }
        assert_eq!(values(&resumed), values(&go_on), "{muon:?}");
    }
}

/// Narrow parameters step in f32 masters: a rate below bf16's resolution is not lost.
#[test]
fn bf16_parameters_have_masters() {
    for muon in [Some(MuonOptions::default()), None] {
        let start = Tensor::<2>::ones([4, 6], &device()).cast(FloatDType::BF16);
        let mut linear = LinearConfig::new(4, 6).with_bias(false).init(&device());
        linear.weight = Param::from_tensor(start.detach().require_grad());
        let config = match muon {
            Some(muon) => OptimizerConfig::muon(muon, AdamWOptions::default()),
            None => OptimizerConfig::adamw(AdamWOptions::default()),
        };
        let mut optimizer = config.init(&linear).unwrap();
        for _ in 0..150 {
            let loss = linear.weight.val().cast(FloatDType::F32).sum();
            let found = GradientsParams::from_grads(loss.backward(), &linear);
            linear = optimizer.step(1e-3, linear, found);
        }
        let value = linear.weight.val();
        assert_eq!(value.dtype(), DType::BF16);
        let all: Vec<f32> = value.into_data().iter::<f32>().collect();
        assert!(all.iter().all(|&w| w < 1.0), "{all:?}");
    }
}

/// A gradient that is not finite leaves its parameter and its state as they were.
#[test]
fn gradients_that_are_not_finite_change_nothing() {
    let mut net = net();
    let mut optimizer = config(MuonOptions::default()).init(&net).unwrap();
    let (found, _) = gradients(&net, 0);
    net = optimizer.step(0.01, net, found);
    let before = (values(&net), optimizer.to_record().into_bytes().unwrap().to_vec());
    let mut spoilt = GradientsParams::new();
    spoilt.register(net.up.weight.id, Tensor::<2>::full([4, 9], f32::NAN, &Device::flex()));
    spoilt.register(net.norm.gamma.id, Tensor::<1>::full([4], f32::INFINITY, &Device::flex()));
    net = optimizer.step(0.01, net, spoilt);
    assert_eq!(values(&net), before.0);
}

/// Kernels of convolutions have four dimensions and are AdamW's.
#[test]
fn any_number_of_dimensions() {
    #[derive(Module, Debug)]
    struct Four {
        conv: burn::nn::conv::Conv2d,
        scale: Param<Tensor<4>>,
    }
    let mut conv = burn::nn::conv::Conv2dConfig::new([1, 2], [3, 3]).init(&device());
    (conv.weight, conv.bias) = (leaf("weight", [2, 1, 3, 3]), Some(leaf("bias", [2])));
    let mut four = Four { conv, scale: leaf("scale", [1, 2, 1, 1]) };
    let mut optimizer = OptimizerConfig::adamw(AdamWOptions::default()).init(&four).unwrap();
    let x = leaf("x", [1, 1, 3, 3]).val();
    let loss = |four: &Four| (four.conv.forward(x.clone()) * four.scale.val() - 1.0).square().sum();
    let before = loss(&four).into_scalar::<f32>();
    for _ in 0..50 {
        let found = GradientsParams::from_grads(loss(&four).backward(), &four);
        four = optimizer.step(0.05, four, found);
    }
    assert!(loss(&four).into_scalar::<f32>() < 0.01 * before);
    assert_eq!(four.scale.dims(), [1, 2, 1, 1]);
}

/// Factors of Burn's LoRA are `[in, rank]` and `[rank, out]`, and Muon takes them where it is told to.
#[test]
fn factors_of_burns_lora() {
    use burn::module::Lora;
    let model = linear("lora", 4, 6).apply_lora(Lora::new(2, 4.0));
    let muon = MuonOptions { adapters: true, ..MuonOptions::default() };
    let config = OptimizerConfig::muon(muon, AdamWOptions::default());
    let assignment = config.assignment(&model).unwrap();
    let names: Vec<_> = assignment.iter().map(|a| (a.parameter.as_str(), a.kind)).collect();
    assert_eq!(names, [("weight.lora.a", OptimizerKind::Muon), ("weight.lora.b", OptimizerKind::Muon)]);
    let x = leaf("x", [3, 4]).val();
    let mut model = model;
    let mut optimizer = config.init(&model).unwrap();
    let before = model.forward(x.clone()).square().mean().into_scalar::<f32>();
    for _ in 0..30 {
        let found = GradientsParams::from_grads(model.forward(x.clone()).square().mean().backward(), &model);
        model = optimizer.step(0.05, model, found);
    }
    assert!(model.forward(x).square().mean().into_scalar::<f32>() < 0.5 * before);
}
