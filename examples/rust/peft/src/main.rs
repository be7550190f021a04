//! LoRA on a Burn module: attach, train, save in PEFT's format, load, merge.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use burnish_optim::AdamWOptions;
use burnish_optim::module::OptimizerConfig;
use burnish_peft::module::{attach, load, merge, save};
use burnish_peft::{AdapterFolder, LoraConfig};

#[derive(Module, Debug)]
struct Mlp {
    up_proj: Linear,
    down_proj: Linear,
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Mlp>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |input, out| LinearConfig::new(input, out).init(device);
        Self { layers: (0..2).map(|_| Mlp { up_proj: linear(8, 24), down_proj: linear(24, 8) }).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, mlp| x.clone() + mlp.down_proj.forward(mlp.up_proj.forward(x).tanh()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(5);
    let base = Net::new(&device);
    let x = Tensor::<2>::random([128, 8], Distribution::Default, &device);
    let y = base.forward(x.clone()).flip([1]).detach();
    let loss = |net: &Net| (net.forward(x.clone()) - y.clone()).square().mean();
    let before = loss(&base).into_scalar::<f32>();
    let folder = tempfile::tempdir()?;

    // 12 lines: attach, train, save, load, merge.
    let config = LoraConfig::new(4, 16.0).with_targets(["up_proj", "down_proj"]);
    let mut net = attach(base.clone(), &config, 42)?;
    let mut optimizer = OptimizerConfig::adamw(AdamWOptions::default()).init(&net)?;
    for _ in 0..200 {
        let gradients = GradientsParams::from_grads(loss(&net).backward(), &net);
        net = optimizer.step(0.01, net, gradients);
    }
    save(&net, &config, folder.path())?;
    let loaded = load(base.clone(), folder.path())?;
    let merged = merge(loaded.clone());

    let after = loss(&net).into_scalar::<f32>();
    println!("loss {before:.4} -> {after:.4}");
    assert!(after < 0.5 * before, "the adapter has not learned: {before} -> {after}");
    for other in [&loaded, &merged] {
        assert_eq!(loss(other).into_scalar::<f32>(), after);
    }
    // Nothing of the base has moved.
    let weight = |net: &Net| net.layers[0].up_proj.weight.base().into_data();
    assert_eq!(weight(&net), weight(&base));
    // The folder is PEFT's.
    let keys: Vec<String> = AdapterFolder::open(folder.path())?.keys().map(str::to_owned).collect();
    assert_eq!(keys.len(), 8);
    assert!(keys.contains(&"base_model.model.layers.0.up_proj.lora_A.weight".to_owned()), "{keys:?}");
    Ok(())
}
