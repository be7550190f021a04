//! A Burn module with dropout at every ZeRO stage, updated by Muon, stopped on two ranks and taken up on three.

use std::path::Path;

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burnish_zero::comm::{World, local};
use burnish_zero::module::{Pass, Wrap};
use burnish_zero::optim::MuonOptions;
use burnish_zero::{Policy, Stage};

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Layer>,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |outputs| LinearConfig::new(16, outputs).init(device);
        let layer = |_| Layer { linear: linear(16), dropout: DropoutConfig::new(0.1).init() };
        Self { layers: (0..3).map(layer).collect(), head: linear(1) }
    }
}

/// The mean square of an error, over this rank's rows.
fn loss(pass: &Pass<'_, Net>, rank: usize, device: &Device) -> Result<Tensor<1>> {
    let rows: Vec<f32> = (0..4 * 16).map(|i| ((i * 7 + rank * 13) % 11) as f32 / 11.0 - 0.5).collect();
    let x = Tensor::<1>::from_floats(rows.as_slice(), device).reshape([4, 16]);
    let target = x.clone().sum_dim(1);
    let mut h = x;
    for layer in &pass.layers {
        h = pass
            .block(layer, h, |layer, x| x.clone() + layer.dropout.forward(layer.linear.forward(x).tanh()))?;
    }
    Ok((pass.head.forward(h) - target).square().mean())
}

/// Steps up to `last` on this rank, from the newest checkpoint in `dir` on; the loss of all ranks without dropout, at the
/// beginning and at the end.
fn train(world: &World, stage: Stage, dir: &Path, last: u64) -> Result<[f64; 2]> {
    let device = Device::flex().autodiff();
    let policy = Policy { persist_below: 0, ..Policy::new(stage) };
    let wrap = Wrap::new(policy).block("layers.*").muon(MuonOptions::default()).clip(1.0);
    let mut model = wrap.over(&world.group(), Net::new(&device))?;
    let first = model.resume(dir)?.unwrap_or(0);
    let mut losses = [0.0; 2];
    for step in first..last {
        let pass = model.micro_batch(true)?;
        let loss = loss(&pass, world.rank(), &device)?;
        pass.backward(loss)?;
        model.step(0.03)?;
        if step == first || step + 1 == last {
            let pass = model.evaluation()?;
            let value = loss_of(&pass, world.rank())?;
            losses[usize::from(step != first)] = pass.mean(value)?;
        }
    }
    model.save(dir, last)?;
    Ok(losses)
}

fn loss_of(pass: &Pass<'_, Net>, rank: usize) -> Result<f64> {
    Ok(f64::from(loss(pass, rank, &Device::flex())?.into_scalar::<f32>()))
}

fn main() -> Result<()> {
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        let dir = tempfile::tempdir()?;
        let run = |ranks, last| -> Result<[f64; 2]> {
            let all = local::run(ranks, |world| {
                train(&world, stage, dir.path(), last).inspect_err(|error| world.fail(&error.to_string()))
            });
            all.into_iter().map(|rank| rank?).next_back().expect("a rank at least")
        };
        let ([begun, stopped], [_, ended]) = (run(2, 20)?, run(3, 60)?);
        println!(
            "stage {stage}: loss {begun:.4}, {stopped:.4} after 20 steps on 2 ranks, {ended:.4} after 60 on 3"
        );
        ensure!(stopped < begun && ended < 0.5 * begun, "it does not learn");
    }
    Ok(())
}
