//! A residual network whose layers two ranks share, with LoRA on them, trained by Burn's own optimizer: the losses are
//! those of one rank.

use std::sync::Mutex;

use anyhow::{Result, ensure};
use burn::module::{Lora, Module};
use burn::nn::{Initializer, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burnish_tp::{Linear, Style, Tp, TpPlan, comm::local, parallelize};

#[derive(Module, Debug)]
struct Block {
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Block>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs, value| {
            let config = LinearConfig::new(inputs, outputs);
            config.with_initializer(Initializer::Constant { value }).init(device).into()
        };
        let layer = |_| Block { up: linear(8, 24, 0.1), down: linear(24, 8, -0.05) };
        Self { layers: (0..3).map(layer).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, l| x.clone() + l.down.forward(l.up.forward(x).tanh()))
    }
}

/// Held while a rank draws its random values.
static DRAWING: Mutex<()> = Mutex::new(());

/// The losses of 30 steps on `ranks` threads.
fn train(ranks: usize) -> Result<Vec<f32>> {
    let plan = TpPlan::new().with("layers.*.up", Style::Colwise).with("layers.*.down", Style::Rowwise);
    let losses = local::run(ranks, |world| {
        let (tp, device) = (Tp::new(&world.group()), Device::flex().autodiff());
        let x =
            Tensor::<1>::from_floats([0.5, -0.2, 0.1, 0.9, -0.7, 0.3, 0.0, 0.4], &device).unsqueeze::<2>();
        let lora = {
            // Burn's generator is one for all threads, and parameters draw when they are first read.
            let _drawing = DRAWING.lock();
            device.seed(1);
            let lora = Net::new(&device).apply_lora(Lora::new(4, 8.0));
            lora.forward(x.clone());
            lora
        };
        let mut net = parallelize(lora, &plan, &tp)?; // values of rank 0, this rank's part of them
        let mut optimizer = SgdConfig::new().init();
        let mut losses = Vec::new();
        for _ in 0..30 {
            let loss = (net.forward(x.clone()) - 1.0).square().mean();
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(0.05, net, gradients); // every gradient is complete
        }
        tp.check()?; // the first error of any collective
        Ok::<_, anyhow::Error>(losses)
    });
    let mut losses: Vec<Vec<f32>> = losses.into_iter().map(|rank| rank?).collect::<Result<_>>()?;
    ensure!(losses.iter().all(|rank| *rank == losses[0]), "ranks disagree: {losses:?}");
    Ok(losses.remove(0))
}

fn main() -> Result<()> {
    let (one, two) = (train(1)?, train(2)?);
    println!("loss {:.4} -> {:.4} on one rank, {:.4} on two", one[0], one[29], two[29]);
    ensure!(one[29] < 0.5 * one[0], "it does not learn: {one:?}");
    ensure!(
        one.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-4),
        "two ranks are not one: {one:?} {two:?}"
    );
    Ok(())
}
