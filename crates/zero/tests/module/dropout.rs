//! Dropout in blocks: backward drops what forward dropped.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Distribution, Tensor};
use burnish_zero::comm::local;
use burnish_zero::module::{ModuleError, Reduce, Stepped, Wrap};
use burnish_zero::{Policy, Stage};

use super::zoo::{DRAWING, device};

#[derive(Module, Debug)]
struct Dropping {
    layers: Vec<(Param<Tensor<1>>, Dropout)>,
}

fn dropping() -> Dropping {
    let layer = |_| (Param::from_tensor(Tensor::ones([1], &device())), DropoutConfig::new(0.5).init());
    Dropping { layers: (0..2).map(layer).collect() }
}

type Layer = (Param<Tensor<1>>, Dropout);

/// With one weight that multiplies what is dropped out, the gradient is the loss divided by it: if and only if the same
/// elements are dropped in both passes.
fn passes(seed: u64, stage: Stage, ranks: usize) -> Vec<Vec<f32>> {
    let policy = Policy { persist_below: 0, ..Policy::new(stage) };
    let all = local::run(ranks, |world| {
        let wrap = Wrap::new(policy.clone()).block("layers.*").reduce(Reduce::Sum).seed(seed);
        let mut model = wrap.over(&world.group(), dropping())?;
        let mut losses = Vec::new();
        for _ in 0..3 {
            let pass = model.micro_batch(true)?;
            let x = Tensor::<1>::ones([64], &device());
            let run = |layer: &Layer, x: Tensor<1>| layer.1.forward(x * layer.0.val());
            let mut parts = Vec::new();
            for layer in &pass.layers {
                parts.push(pass.block(layer, x.clone(), run)?.sum());
            }
            let loss = parts.remove(0) + parts.remove(0).mul_scalar(3.0);
            losses.push(loss.clone().into_scalar::<f32>());
            pass.backward(loss)?;
            // Both weights are 1 before each step: the sum of the gradients is the loss.
            let Stepped::Applied(applied) = model.step(0.0)? else { panic!("gradients are finite") };
            losses.push(applied.grad_norm as f32);
        }
        Ok::<_, ModuleError>(losses)
    });
    all.into_iter().map(|rank| rank.unwrap().unwrap()).collect()
}

#[test]
fn backward_drops_what_forward_dropped() {
    let _drawing = DRAWING.lock();
    for stage in [Stage::One, Stage::Three] {
        for (seed, ranks) in [(1, 1), (2, 1), (3, 2)] {
            let all = passes(seed, stage, ranks);
            for pass in 0..3 {
                // Each block keeps about half of 64 elements, doubled; a loss is a + 3 b, the norm sqrt(a^2 + (3 b)^2)
                // of the sums over ranks.
                let loss: f32 = all.iter().map(|rank| rank[2 * pass]).sum();
                let norm = all[0][2 * pass + 1];
                let (sum, product) = (loss, (loss * loss - norm * norm) / 2.0);
                let root = (sum * sum / 4.0 - product).max(0.0).sqrt();
                let (low, high) = (sum / 2.0 - root, sum / 2.0 + root);
                let whole = |x: f32| (x / 2.0 - (x / 2.0).round()).abs() < 0.02;
                assert!(whole(low) && whole(high / 3.0), "stage {stage}, {ranks}: {low} + {high}");
                let kept = low / (128.0 * ranks as f32);
                assert!((0.2..0.8).contains(&kept), "{kept} of a block is kept");
            }
            // Passes draw differently, runs of one seed alike.
            assert_ne!(all[0][0..2], all[0][2..4]);
            assert_eq!(all, passes(seed, stage, ranks));
        }
    }
}

/// What is drawn elsewhere between forward and backward is an error, not another gradient: here by the block itself,
/// which is no function of its inputs.
#[test]
fn draws_that_do_not_repeat_are_told() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static AGAIN: AtomicBool = AtomicBool::new(false);
    let _drawing = DRAWING.lock();
    let mut model = Wrap::stage(Stage::Two)
        .block("layers.*")
        .over(&burnish_zero::comm::Group::alone(), dropping())
        .unwrap();
    let pass = model.micro_batch(true).unwrap();
    let run = |layer: &Layer, x: Tensor<1>| {
        if AGAIN.swap(true, Ordering::Relaxed) {
            let _ = Tensor::<1>::random([3], Distribution::Default, &x.device());
        }
        layer.1.forward(x * layer.0.val())
    };
    let loss = pass.block(&pass.layers[0], Tensor::<1>::ones([8], &device()), run).unwrap().sum();
    let error = pass.backward(loss).unwrap_err().to_string();
    assert!(error.starts_with("block `layers.0` drew other random numbers in backward"), "{error}");
}
