//! A language model's loss without a `[tokens, vocab]` tensor, from a Burn `Linear`, in a loop of one's own.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burnish_losses::{LossOutput, TokenLossOptions, chunked_nll, head_from};

const VOCAB: usize = 50;

#[derive(Module, Debug)]
struct Model {
    embed: Embedding,
    mix: Linear,
    head: Linear,
}

impl Model {
    fn hidden(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.mix.forward(self.embed.forward(ids)).tanh()
    }

    fn loss(&self, ids: &Tensor<2, Int>, labels: &Tensor<2, Int>) -> LossOutput {
        let hidden = self.hidden(ids.clone());
        chunked_nll(hidden, &head_from(&self.head), labels.clone(), &TokenLossOptions::default())
            .expect("shapes fit")
    }
}

fn main() {
    let device = Device::flex().autodiff();
    device.seed(3);
    let mut model = Model {
        embed: EmbeddingConfig::new(VOCAB, 32).init(&device),
        mix: LinearConfig::new(32, 32).init(&device),
        head: LinearConfig::new(32, VOCAB).init(&device),
    };
    // Token `7 i + 3 mod 50` follows `i`; the first of each row has no label.
    let rows: Vec<[i64; 2]> = (0..64).map(|i| [i % 50, (7 * i + 3) % 50]).collect();
    let tensor = |f: &dyn Fn(usize, &[i64; 2]) -> [i64; 2]| {
        let values: Vec<i64> = rows.iter().enumerate().flat_map(|(i, row)| f(i, row)).collect();
        Tensor::<2, Int>::from_data(TensorData::new(values, [64, 2]), &device)
    };
    let ids = tensor(&|_, row| [row[0], row[0]]);
    let labels = tensor(&|_, row| [-100, row[1]]);

    let mut optimizer = AdamConfig::new().init();
    let first = model.loss(&ids, &labels);
    for _ in 0..60 {
        let gradients = GradientsParams::from_grads(model.loss(&ids, &labels).tensor().backward(), &model);
        model = optimizer.step(0.01, model, gradients);
    }
    let last = model.loss(&ids, &labels);

    // The same number as Burn's loss over all logits.
    let logits = model.head.forward(model.hidden(ids)).slice([0..64, 1..2]).reshape([64, VOCAB]);
    let plain = CrossEntropyLossConfig::new()
        .init(&device)
        .forward(logits, labels.slice([0..64, 1..2]).reshape([64]));
    let of = |out: &LossOutput| out.tensor().into_scalar::<f32>();
    println!(
        "loss {:.4} -> {:.4}; over all logits {:.4}",
        of(&first),
        of(&last),
        plain.clone().into_scalar::<f32>()
    );
    assert!((of(&last) - plain.into_scalar::<f32>()).abs() < 1e-5);
    assert!(of(&last) < 0.05 && of(&first) > 3.0, "the model has not learned");
    assert_eq!(last.facts.tally().mean("mean_token_accuracy"), Some(1.0));
}
