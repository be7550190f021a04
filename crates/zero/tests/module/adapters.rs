//! Modules that Burn's `apply_lora` made.

use burn::module::{Lora, Module, ModuleMapper, Param};
use burn::nn::Linear;
use burn::tensor::{Tensor, TensorData};
use burnish_core::random::Stream;
use burnish_zero::comm::local;
use burnish_zero::module::{ModuleError, Wrap};
use burnish_zero::{Policy, Stage};

use super::STAGES;
use super::zoo::{DRAWING, device, linear};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    head: Linear,
}

struct Formula(Vec<String>);

impl ModuleMapper for Formula {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let stream = Stream::new(7, &self.0.join("."));
        param.map(|value| {
            let values: Vec<f32> =
                (0..value.shape().num_elements()).map(|i| 0.3 * stream.normal(i as u64)).collect();
            let new = Tensor::<D>::from_data(TensorData::new(values, value.shape()), &value.device());
            new.set_require_grad(value.is_require_grad())
        })
    }
}

fn net() -> Net {
    let layers = (0..2).map(|_| linear(5, 5, &device())).collect();
    let net = Net { layers, head: linear(5, 3, &device()) };
    net.apply_lora(Lora::new(2, 4.0)).map(&mut Formula(Vec::new()))
}

/// Losses and the factors after three steps; what is frozen is as it was.
fn trained(stage: Stage, blocks: bool, ranks: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let policy = Policy { persist_below: 0, ..Policy::new(stage) };
    let all = local::run(ranks, |world| {
        let wrap = Wrap::new(policy.clone());
        let wrap = if blocks { wrap.block("layers.*") } else { wrap };
        let mut model = wrap.over(&world.group(), net())?;
        let trained: Vec<String> =
            model.registry().iter().filter(|p| p.trainable).map(|p| p.name.clone()).collect();
        assert_eq!(trained.len(), 6, "{trained:?}");
        assert!(trained.iter().all(|name| name.contains(".weight.lora.")), "{trained:?}");
        let frozen = model.read("layers.0.weight")?.to_f32();
        let mut losses = Vec::new();
        for _ in 0..3 {
            // Every rank takes its share of four rows, one rank all of them.
            let rows = 4 / ranks;
            let values = (0..4 * 5).map(|i| (i % 7) as f32 * 0.2 - 0.5).collect::<Vec<_>>();
            let own = values[world.rank() * rows * 5..(world.rank() + 1) * rows * 5].to_vec();
            let mut x = Tensor::<2>::from_data(TensorData::new(own, [rows, 5]), &device());
            let pass = model.micro_batch(true)?;
            for layer in &pass.layers {
                x = match blocks {
                    true => pass.block(layer, x, |l: &Linear, x| l.forward(x).tanh())?,
                    false => layer.forward(x).tanh(),
                };
            }
            let loss = pass.head.forward(x).powi_scalar(2).mean();
            losses.push(pass.mean(loss.clone().into_scalar::<f32>().into())?);
            pass.backward(loss)?;
            model.step(0.05)?;
        }
        assert_eq!(model.read("layers.0.weight")?.to_f32(), frozen);
        let whole = model.module()?;
        assert!(whole.layers[1].weight.adapter().is_some());
        let factors = trained.iter().map(|name| Ok(model.read(name)?.to_f32()));
        Ok::<_, ModuleError>((losses, factors.collect::<Result<_, ModuleError>>()?))
    });
    let mut all: Vec<_> = all.into_iter().map(|rank| rank.unwrap().unwrap()).collect();
    let first = all.remove(0);
    assert!(all.iter().all(|other| *other == first));
    first
}

#[test]
fn adapters_train_at_every_stage_as_on_one_rank() {
    let _drawing = DRAWING.lock();
    let (losses, factors) = trained(Stage::Zero, false, 1);
    assert!(losses[2] < losses[0], "{losses:?}");
    for stage in STAGES {
        for (blocks, ranks) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
            let (got, other) = trained(stage, blocks, ranks);
            let what = format!("stage {stage}, blocks {blocks}, {ranks} ranks");
            assert!(got.iter().zip(&losses).all(|(a, b)| (a - b).abs() < 1e-5), "{what}: {got:?} {losses:?}");
            for (a, b) in factors.iter().flatten().zip(other.iter().flatten()) {
                assert!((a - b).abs() < 1e-4, "{what}: {a} {b}");
            }
        }
    }
}
