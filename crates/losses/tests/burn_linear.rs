//! The loss of Burn's tensors and of a Burn `Linear` is Burn's own over all logits, with the same gradients.

use burn::module::{Lora, Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burnish_losses::{HeadOptions, TokenLossOptions, chunked_nll, head_from};

use crate::problem::{assert_same, tensor};

const BATCH: usize = 3;
const TOKENS: usize = 5;
const HIDDEN: usize = 6;
const VOCAB: usize = 11;

fn device() -> Device {
    Device::flex().autodiff()
}

fn leaf<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_inner(tensor(name, &shape, 0.7).rank::<D>().unwrap()).require_grad()
}

fn linear() -> Linear {
    let mut linear = LinearConfig::new(HIDDEN, VOCAB).init(&device());
    linear.weight = Param::from_tensor(leaf("weight", [HIDDEN, VOCAB]));
    linear.bias = Some(Param::from_tensor(leaf("bias", [VOCAB])));
    linear
}

/// Every third position has none.
fn labels() -> Tensor<2, Int> {
    let ids: Vec<i64> =
        (0..BATCH * TOKENS).map(|i| if i % 3 == 2 { -100 } else { (i * 4 % VOCAB) as i64 }).collect();
    Tensor::from_data(TensorData::new(ids, [BATCH, TOKENS]), &device())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn burns_tensors_and_linears() {
    for lora in [false, true] {
        let linear = if lora { linear().apply_lora(Lora::new(2, 4.0)) } else { linear() };
        let hidden = leaf("hidden", [BATCH, TOKENS, HIDDEN]);
        let out =
            chunked_nll(hidden.clone(), &head_from(&linear), labels(), &TokenLossOptions::default()).unwrap();
        let got = out.tensor().backward();

        let again = leaf("hidden", [BATCH, TOKENS, HIDDEN]);
        let rows: Vec<i64> = (0..(BATCH * TOKENS) as i64).filter(|i| i % 3 != 2).collect();
        let count = rows.len();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &device());
        let logits = linear.forward(again.clone()).reshape([BATCH * TOKENS, VOCAB]).select(0, rows.clone());
        let targets = labels().reshape([BATCH * TOKENS]).select(0, rows);
        let plain = CrossEntropyLossConfig::new().init(&device()).forward(logits, targets);
        let want = plain.backward();

        assert_same(&values(out.tensor()), &values(plain), 1e-6, "loss");
        assert_same(&values(hidden.grad(&got).unwrap()), &values(again.grad(&want).unwrap()), 1e-5, "hidden");
        let factors: Vec<Tensor<2>> = match linear.weight.adapter() {
            Some(adapter) => vec![adapter.b.val()],
            None => vec![linear.weight.val()],
        };
        for weight in factors {
            assert_same(
                &values(weight.grad(&got).unwrap()),
                &values(weight.grad(&want).unwrap()),
                1e-5,
                "weight",
            );
        }
        if !lora {
            let bias = linear.bias.as_ref().unwrap().val();
            assert_same(&values(bias.grad(&got).unwrap()), &values(bias.grad(&want).unwrap()), 1e-5, "bias");
        }
    }
}

/// Parts of a step add up to the whole, and options reach the head.
#[test]
fn parts_and_options() {
    let linear = linear();
    let hidden = leaf("hidden", [BATCH, TOKENS, HIDDEN]);
    let all = labels().into_data().iter::<i64>().filter(|&id| id >= 0).count() as f64;
    let head = HeadOptions { temperature: 0.5, softcap: Some(3.0), ..HeadOptions::default() };
    let options = TokenLossOptions { head, denominator: Some(all), ..TokenLossOptions::default() };
    let of = |rows: std::ops::Range<usize>| {
        let (hidden, labels) = (hidden.clone().slice([rows.clone()]), labels().slice([rows]));
        chunked_nll(hidden, &head_from(&linear), labels, &options).unwrap().loss.to_f32()[0]
    };
    let whole = of(0..BATCH);
    assert!((of(0..1) + of(1..BATCH) - whole).abs() < 1e-6);
    let mean = TokenLossOptions { denominator: None, ..options };
    let same = chunked_nll(hidden.clone(), &head_from(&linear), labels(), &mean).unwrap();
    assert_eq!(same.loss.to_f32()[0], whole);
    let plain = chunked_nll(hidden, &head_from(&linear), labels(), &TokenLossOptions::default()).unwrap();
    assert!((plain.loss.to_f32()[0] - whole).abs() > 1e-3);
}
