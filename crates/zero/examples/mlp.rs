//! A plain Burn MLP, trained on several ranks at every stage of ZeRO.
//!
//! `cargo run --release -p burnish-zero --example mlp -- [ranks]` prints, for each stage, the loss before and after, and
//! the bytes of every rank. The ranks are threads here; with `burnish_zero::comm`'s MPI transport they are processes and
//! the program is the same.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};
use burnish_zero::comm::{Group, local};
use burnish_zero::module::{ModuleError, Pass, Stepped, Wrap};
use burnish_zero::optim::AdamWOptions;
use burnish_zero::{Memory, Policy, Stage};

const WIDTH: usize = 64;
const BLOCKS: usize = 4;
/// Samples of a step, over all ranks.
const BATCH: usize = 64;
const STEPS: usize = 60;

/// A residual block.
#[derive(Module, Debug)]
pub(crate) struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let h = activation::gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(h)
    }
}

/// The model, as it is without burnish.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    inward: Linear,
    blocks: Vec<Block>,
    outward: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            inward: LinearConfig::new(2, WIDTH).init(device),
            blocks: (0..BLOCKS).map(|_| Block::new(device)).collect(),
            outward: LinearConfig::new(WIDTH, 1).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.blocks.iter().fold(self.inward.forward(x), |x, block| block.forward(x));
        self.outward.forward(x)
    }
}

/// The same forward where blocks are sharded: each is gathered while it runs.
fn forward_sharded(pass: &Pass<'_, Mlp>, x: Tensor<2>) -> Result<Tensor<2>, ModuleError> {
    let mut x = pass.inward.forward(x);
    for block in &pass.blocks {
        x = pass.block(block, x, Block::forward)?;
    }
    Ok(pass.outward.forward(x))
}

/// Points of a plane, and a function of them.
fn samples(step: usize, of: std::ops::Range<usize>, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let at = |i: usize| {
        let n = (step * BATCH + i) as f32;
        ((n * 0.754_877_7).fract() * 2.0 - 1.0, (n * 0.569_840_3).fract() * 2.0 - 1.0)
    };
    let count = of.len();
    let points: Vec<f32> = of.clone().flat_map(|i| <[f32; 2]>::from(at(i))).collect();
    let values: Vec<f32> = of.map(|i| (3.0 * at(i).0).sin() * (2.0 * at(i).1).cos()).collect();
    let tensor = |values, columns| Tensor::from_data(TensorData::new(values, [count, columns]), device);
    (tensor(points, 2), tensor(values, 1))
}

/// What a training left.
#[derive(Debug)]
pub(crate) struct Trained {
    /// The mean loss over ranks, by step.
    pub(crate) losses: Vec<f64>,
    /// This rank's bytes, by the plan.
    pub(crate) memory: Memory,
    /// A weight, whole.
    #[allow(dead_code, reason = "the tests compare it")]
    pub(crate) weight: Vec<f32>,
}

/// The program of one rank.
fn train(group: &Group, stage: Stage) -> Result<Trained, ModuleError> {
    let device = Device::flex().autodiff();
    let policy = Policy { persist_below: WIDTH, ..Policy::new(stage) };
    let mut wrap =
        Wrap::new(policy).clip(1.0).adamw(AdamWOptions { weight_decay: 0.01, ..Default::default() });
    if stage == Stage::Three {
        wrap = wrap.block("blocks.*");
    }
    let mut model = wrap.over(group, Mlp::new(&device))?;

    let share = BATCH / group.size();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (x, y) = samples(step, share * group.rank()..share * (group.rank() + 1), &device);
        let pass = model.micro_batch(true)?;
        let predicted = if stage == Stage::Three { forward_sharded(&pass, x)? } else { pass.forward(x) };
        let loss = MseLoss::new().forward(predicted, y, Reduction::Mean);
        losses.push(pass.mean(f64::from(loss.clone().into_scalar::<f32>()))?);
        pass.backward(loss)?;
        if let Stepped::Skipped { norm } = model.step(3e-3)? {
            println!("step {step} was skipped: gradient norm {norm}");
        }
    }
    let slots = model.optimizer().schema();
    let memory = model.plan().memory(group.rank(), 1, &|_| slots.clone());
    Ok(Trained { losses, memory, weight: model.read("blocks.1.up.weight")?.to_f32() })
}

/// The program on every rank.
pub(crate) fn run(ranks: usize, stage: Stage) -> Vec<Trained> {
    // Rank 0 alone draws initial values, so this is enough.
    Device::flex().seed(7);
    let all = local::run(ranks, |world| {
        train(&world.group(), stage).inspect_err(|error| world.fail(&error.to_string()))
    });
    all.into_iter().map(|rank| rank.expect("a rank stopped").expect("a rank failed")).collect()
}

#[allow(dead_code, reason = "the tests run the parts")]
fn main() {
    let ranks = std::env::args().nth(1).map_or(Ok(2), |n| n.parse()).expect("a number of ranks");
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        let trained = run(ranks, stage);
        let (first, last) = (trained[0].losses[0], trained[0].losses[STEPS - 1]);
        println!("stage {stage} over {ranks} ranks: loss {first:.6} -> {last:.6}");
        for (rank, Trained { memory, .. }) in trained.iter().enumerate() {
            println!(
                "  rank {rank}: {} bytes of weights, {} of gradients, {} of optimizer state",
                memory.weights, memory.gradients, memory.optimizer
            );
        }
    }
}
