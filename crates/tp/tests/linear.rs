//! Modules of Burn's, divided: they train as on one rank, with adapters and without.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Lora, Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{self, Initializer, LayerNorm, LayerNormConfig, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor, TensorData};
use burnish_comm::local;
use burnish_core::random::Stream;
use burnish_tp::{Linear, Style, Tp, TpError, TpPlan, gather, parallelize};

fn device() -> Device {
    Device::flex().autodiff()
}

/// A layer that draws nothing: Burn's generator is one for all threads of the process.
fn layer(inputs: usize, outputs: usize, bias: bool) -> nn::Linear {
    let config = LinearConfig::new(inputs, outputs).with_bias(bias);
    config.with_initializer(Initializer::Constant { value: 0.25 }).init(&device())
}

/// One layer of each style, with and without bias, of sizes that ranks do not divide.
#[derive(Module, Debug)]
struct Net {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    wide: Linear,
    back: Linear,
}

impl Net {
    fn new(adapters: bool, dtype: FloatDType) -> Self {
        let net = Self {
            norm: LayerNormConfig::new(5).init(&device()),
            up: layer(5, 7, true).into(),
            down: layer(7, 5, true).into(),
            wide: layer(5, 8, false).into(),
            back: layer(8, 5, false).into(),
        };
        let net = if adapters { net.apply_lora(Lora::new(2, 3.0)) } else { net };
        net.map(&mut Formula { path: Vec::new(), dtype, factor: 1.0 })
    }

    /// `[batch, tokens, features]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let h = self.norm.forward(x.clone());
        let h = x + self.down.forward(self.up.forward(h).tanh());
        h.clone() + self.back.forward(self.wide.forward(h).tanh())
    }
}

fn plan() -> TpPlan {
    TpPlan::new()
        .with("up", Style::Colwise)
        .with("down", Style::Rowwise)
        .with("wide", Style::ColwiseGather)
        .with("back", Style::RowwiseSplitInput)
}

/// Values that are functions of path and position.
struct Formula {
    path: Vec<String>,
    dtype: FloatDType,
    factor: f32,
}

impl ModuleMapper for Formula {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let stream = Stream::new(3, &self.path.join("."));
        param.map(|value| {
            let elements = value.shape().num_elements() as u64;
            let values: Vec<f32> = (0..elements).map(|i| self.factor * 0.4 * stream.normal(i)).collect();
            let new = Tensor::<D>::from_data(TensorData::new(values, value.shape()), &value.device());
            new.cast(self.dtype).detach().set_require_grad(value.is_require_grad())
        })
    }
}

struct Sgd<'a>(&'a Gradients);

impl ModuleMapper for Sgd<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|w| match w.grad(self.0) {
            Some(gradient) => (w.inner() - gradient * 0.1).autodiff().require_grad(),
            None => w,
        })
    }
}

#[derive(Default)]
struct Values {
    path: Vec<String>,
    values: BTreeMap<String, Vec<f32>>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.base().into_data().convert::<f32>().try_into_vec::<f32>().unwrap();
        self.values.insert(self.path.join("."), values);
    }
}

/// Losses of four steps, and the parameters after them.
fn trained(mut net: Net, dtype: FloatDType) -> (Vec<f32>, Net) {
    let stream = Stream::new(9, "x");
    let values: Vec<f32> = (0..30).map(|i| stream.normal(i)).collect();
    let x = Tensor::<3>::from_data(TensorData::new(values, [2, 3, 5]), &device()).cast(dtype);
    let mut losses = Vec::new();
    for _ in 0..4 {
        let loss = net.forward(x.clone()).cast(FloatDType::F32).powi_scalar(2).mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = loss.backward();
        net = net.map(&mut Sgd(&gradients));
    }
    (losses, net)
}

fn values(net: &Net) -> BTreeMap<String, Vec<f32>> {
    let mut values = Values::default();
    net.visit(&mut values);
    values.values
}

fn check(adapters: bool, dtype: FloatDType, tolerance: f32) {
    let (losses, alone) = trained(Net::new(adapters, dtype), dtype);
    assert!(losses[3] < losses[0], "{losses:?}");
    let (alone, before) = (values(&alone), values(&Net::new(adapters, dtype)));
    // B, and what an adapter leaves alone, is as it was without adapters.
    let moved = alone.iter().filter(|(path, values)| before[*path] != **values).count();
    assert_eq!(moved, if adapters { 8 } else { alone.len() });
    let near = |a: f32, b: f32| (a - b).abs() <= tolerance * (1.0 + b.abs());
    for ranks in 1..=4 {
        let all = local::run(ranks, |world| {
            let tp = Tp::new(&world.group());
            // Other values on other ranks: those of rank 0 count.
            let factor = world.rank() as f32 + 1.0;
            let net = Net::new(adapters, dtype);
            let net = net.map(&mut Formula { path: Vec::new(), dtype, factor });
            let net = parallelize(net, &plan(), &tp)?;
            let outputs = 7 / ranks + usize::from(world.rank() < 7 % ranks);
            assert_eq!(net.up.weight.dims(), [5, outputs]);
            assert_eq!(net.down.weight.dims(), [outputs, 5]);
            if let Some(adapter) = net.up.weight.adapter() {
                assert_eq!((adapter.a.dims(), adapter.b.dims()), ([5, 2], [2, outputs]));
            }
            if let Some(adapter) = net.down.weight.adapter() {
                assert_eq!((adapter.a.dims(), adapter.b.dims()), ([outputs, 2], [2, 5]));
            }
            let (losses, net) = trained(net, dtype);
            tp.check()?;
            Ok::<_, TpError>((losses, values(&gather(net, &tp)?)))
        });
        for rank in all {
            let (got, weights) = rank.unwrap().unwrap();
            assert!(got.iter().zip(&losses).all(|(&a, &b)| near(a, b)), "{ranks}: {got:?} {losses:?}");
            assert_eq!(weights.keys().collect::<Vec<_>>(), alone.keys().collect::<Vec<_>>());
            for (path, values) in &weights {
                let same = values.iter().zip(&alone[path]).all(|(&a, &b)| near(a, b));
                assert!(same, "{ranks} ranks, {path}: {values:?} {:?}", alone[path]);
            }
        }
    }
}

#[test]
fn a_divided_module_trains_as_on_one_rank() {
    check(false, FloatDType::F32, 1e-5);
}

#[test]
fn adapters_of_a_divided_module_train_as_on_one_rank() {
    check(true, FloatDType::F32, 1e-5);
}

#[test]
fn a_narrow_module_trains_as_on_one_rank() {
    check(true, FloatDType::BF16, 0.02);
}

/// Two layers made one by one, as in a block of one's own.
#[test]
fn layers_are_divided_one_by_one() {
    let ranks = local::run(2, |world| {
        let tp = Tp::new(&world.group());
        let (up, down) = (Linear::colwise(layer(3, 5, true), &tp)?, Linear::rowwise(layer(5, 3, true), &tp)?);
        assert_eq!((up.style(), down.style()), (Some(Style::Colwise), Some(Style::Rowwise)));
        let out = down.forward(up.forward(Tensor::<2>::ones([1, 3], &device())));
        tp.check()?;
        Ok::<_, TpError>(out.into_data().try_into_vec::<f32>().unwrap())
    });
    for rank in ranks {
        assert_eq!(rank.unwrap().unwrap(), [1.5; 3]); // (3 + 1) / 4 five times, and the bias, each / 4
    }
}

#[derive(Module, Debug)]
struct Mixed {
    ours: Linear,
    burns: nn::Linear,
}

#[test]
fn what_cannot_be_divided_is_told() {
    let ranks = local::run(3, |world| {
        let tp = Tp::new(&world.group());
        let mixed = || Mixed { ours: layer(2, 9, true).into(), burns: layer(9, 2, true) };
        let refused = |plan: TpPlan| parallelize(mixed(), &plan, &tp).unwrap_err().to_string();
        let burns = refused(TpPlan::new().with("burns", Style::Rowwise));
        assert!(
            burns.starts_with("`burns.weight` is to be `rowwise`, but it is not of a `burnish_tp"),
            "{burns}"
        );
        let nobody = refused(TpPlan::new().with("up", Style::Rowwise));
        assert!(nobody.contains("`up` matches no parameter"), "{nobody}");
        let narrow = refused(TpPlan::new().with("ours", Style::Rowwise));
        assert!(narrow.contains("`ours`: 2 features cannot be divided over 3 ranks"), "{narrow}");
        let style = refused(TpPlan::new().with("ours", Style::EmbeddingRowwise));
        assert!(style.contains("`ours`: got style `embedding_rowwise`, expected colwise"), "{style}");
        let plan = TpPlan::new().with("ours", Style::Colwise).with("burns", Style::Replicated);
        let once = parallelize(mixed(), &plan, &tp)?;
        let twice = parallelize(once.clone(), &plan, &tp).unwrap_err().to_string();
        assert!(twice.starts_with("linear layer `ours` is divided already"), "{twice}");
        let late = once.apply_lora(Lora::new(1, 1.0));
        let late = catch_unwind(AssertUnwindSafe(|| late.ours.forward(Tensor::<2>::ones([1, 2], &device()))));
        let said = late.unwrap_err().downcast_ref::<String>().unwrap().clone();
        assert!(said.contains("`ours` got an adapter after it was divided"), "{said}");
        let wide = Linear::from(layer(4, 4, false)).map(&mut Double);
        let wide = parallelize(wide, &TpPlan::new(), &tp).unwrap_err().to_string();
        assert!(wide.starts_with("parameter `weight` is F64, expected F32, BF16 or F16"), "{wide}");
        Ok::<_, TpError>(())
    });
    ranks.into_iter().for_each(|rank| rank.unwrap().unwrap());
}

struct Double;

impl ModuleMapper for Double {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|w| Tensor::from_data(w.to_data(), (&w.device(), DType::F64)))
    }
}
