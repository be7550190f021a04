//! Stage 3 inside a module's own forward.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Tensor, TensorData};
use burnish_zero::comm::{Op, local};
use burnish_zero::module::{ModuleError, Wrap};
use burnish_zero::{Policy, Stage};

use super::STAGES;
use super::zoo::{device, linear};

/// Layers, one of them frozen, a parameter of four dimensions, and one whose forward knows of nothing.
#[derive(Module, Debug)]
struct Deep {
    norm: LayerNorm,
    layers: Vec<Linear>,
    frozen: Linear,
    gate: Param<Tensor<4>>,
}

impl Deep {
    fn new() -> Self {
        let mut layers: Vec<Linear> = (0..4).map(|_| linear(6, 6, &device())).collect();
        for (number, layer) in layers.iter_mut().enumerate() {
            let values = (0..36).map(|i| ((i * 5 + number) % 7) as f32 * 0.1 - 0.3).collect::<Vec<_>>();
            let value = Tensor::from_data(TensorData::new(values, [6, 6]), &device());
            layer.weight = layer.weight.clone().map(|_| value.require_grad());
        }
        Self {
            norm: LayerNormConfig::new(6).init(&device()),
            layers,
            frozen: linear(6, 6, &device()).no_grad(),
            gate: Param::from_tensor(Tensor::ones([1, 2, 3, 1], &device())),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        assert_eq!(self.layers[0].weight.dims(), [6, 6], "the shape is there without the values");
        let x = self.layers.iter().fold(self.norm.forward(x), |x, layer| layer.forward(x).tanh());
        self.frozen.forward(x * self.gate.val().reshape([1, 6]))
    }
}

/// Losses of three steps and what evaluation gives, all parameters after them, and the elements gathered in a step.
type Left = (Vec<f64>, Vec<Vec<f32>>, u64);

fn trained(stage: Stage, on_use: bool, ranks: usize) -> Left {
    let policy = Policy { persist_below: 0, ..Policy::new(stage) };
    let all = local::run(ranks, |world| {
        let wrap = Wrap::new(policy.clone());
        let wrap = if on_use { wrap.gather_on_use() } else { wrap };
        let group = world.group();
        let mut model = wrap.over(&group, Deep::new())?;
        let values: Vec<f32> = (0..6 * 6).map(|i| (i % 11) as f32 * 0.2 - 1.0).collect();
        let rows = 6 / ranks;
        let own = values[world.rank() * rows * 6..(world.rank() + 1) * rows * 6].to_vec();
        let x = Tensor::<2>::from_data(TensorData::new(own, [rows, 6]), &device());
        let (mut losses, mut gathered) = (Vec::new(), 0);
        for _ in 0..3 {
            group.clear_traffic();
            let pass = model.micro_batch(true)?;
            let loss = (pass.forward(x.clone()) - 0.5).square().mean();
            let value = f64::from(loss.clone().into_scalar::<f32>());
            pass.backward(loss)?;
            model.step(0.02)?;
            gathered = group.clear_traffic().elements(Op::AllGather);
            losses.push(model.mean(value)?);
        }
        let pass = model.evaluation()?;
        let value = f64::from(pass.forward(x.inner()).square().mean().into_scalar::<f32>());
        losses.push(pass.mean(value)?);
        drop(pass);
        let names: Vec<String> = model.registry().iter().map(|p| p.name.clone()).collect();
        let weights = names.iter().map(|name| Ok(model.read(name)?.to_f32()));
        Ok::<_, ModuleError>((losses, weights.collect::<Result<_, ModuleError>>()?, gathered))
    });
    let mut all: Vec<Left> = all.into_iter().map(|rank| rank.unwrap().unwrap()).collect();
    let first = all.remove(0);
    assert!(all.iter().all(|other| *other == first));
    first
}

#[test]
fn gathering_on_use_is_training_as_before() {
    let (losses, weights, _) = trained(Stage::Zero, false, 1);
    assert!(losses[2] < losses[0], "{losses:?}");
    for stage in STAGES {
        for ranks in [1, 2, 3] {
            let (got, other, gathered) = trained(stage, true, ranks);
            let what = format!("stage {stage}, {ranks} ranks");
            assert!(got.iter().zip(&losses).all(|(a, b)| (a - b).abs() < 1e-5), "{what}: {got:?} {losses:?}");
            for (a, b) in weights.iter().flatten().zip(other.iter().flatten()) {
                assert!((a - b).abs() < 2e-4 * (1.0 + a.abs()), "{what}: {a} {b}");
            }
            if stage == Stage::Three && ranks > 1 {
                // Gathered, let go, and gathered again in backward; but for the last piece, which is still there.
                let (_, _, once) = trained(stage, false, ranks);
                assert!(2 * gathered > 3 * once, "{what}: {gathered} elements, {once} for a whole pass");
            }
        }
    }
}
