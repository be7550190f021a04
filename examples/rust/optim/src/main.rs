//! Muon for the matrices and AdamW for the rest of a Burn module, in Burn's own training step.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};
use burnish_optim::module::OptimizerConfig;
use burnish_optim::{AdamWOptions, MuonOptions, Role, Scale};

#[derive(Module, Debug)]
struct Net {
    up: Linear,
    down: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self { up: LinearConfig::new(8, 64).init(device), down: LinearConfig::new(64, 4).init(device) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(self.up.forward(x).tanh())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(7);
    let (teacher, start) = (Net::new(&device).no_grad(), Net::new(&device));
    let x = Tensor::<2>::random([256, 8], Distribution::Default, &device);
    let y = teacher.forward(x.clone()).detach();
    let loss = |net: &Net| (net.forward(x.clone()) - y.clone()).square().mean();
    let before = loss(&start).into_scalar::<f32>();

    // 10 lines: an optimizer of the module's parameters, and Burn's training step.
    let adamw = OptimizerConfig::adamw(AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() });
    let muon = MuonOptions { scale: Scale::Original, ..MuonOptions::default() };
    let muon = OptimizerConfig::muon(muon, AdamWOptions::default()).role("down.weight", Role::Head);
    for (name, config, rate) in [("adamw", adamw, 0.003), ("muon", muon, 0.02)] {
        let (mut net, mut optimizer) = (start.clone(), config.init(&start)?);
        for _ in 0..150 {
            let gradients = GradientsParams::from_grads(loss(&net).backward(), &net);
            net = optimizer.step(rate, net, gradients);
        }

        let after = loss(&net).into_scalar::<f32>();
        println!("{name}: loss {before:.5} -> {after:.5}\n{}\n", config.assignment(&start)?);
        assert!(after < 0.05 * before, "{name} has not learned: {before} -> {after}");
        // State is Burn's record, in bytes or in a file: a restored optimizer takes the same next step.
        let mut restored = config.init(&start)?.from_bytes(optimizer.into_bytes()?)?;
        let next = |optimizer: &mut ModuleOptimizer| {
            let gradients = GradientsParams::from_grads(loss(&net).backward(), &net);
            optimizer.step(rate, net.clone(), gradients).up.weight.val().into_data()
        };
        assert_eq!(next(&mut restored), next(&mut optimizer));
    }
    Ok(())
}
