//! The head alone, forward and backward.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{DType, Distribution, Tensor};
use burnish_ops::{AnyTensor, HeadOptions, Linear, head_nll};

use super::{Bench, Measured, median};
use crate::Context;

pub(super) fn benches(quick: bool) -> Vec<Bench> {
    let dims: [usize; 3] = if quick { [64, 1024, 64] } else { [8192, 151_936, 4096] };
    let bench = |trains: bool| -> Bench {
        let [tokens, vocab, hidden] = dims;
        let what = if trains { "head trains" } else { "head frozen" };
        let name = format!("{what}, {tokens} x {vocab} x {hidden}, bf16");
        let named = name.clone();
        (name, Box::new(move |context, _| measure(context, &named, dims, trains)))
    };
    vec![bench(false), bench(true)]
}

fn measure(
    context: &Context,
    name: &str,
    [tokens, vocab, hidden]: [usize; 3],
    trains: bool,
) -> Result<Measured> {
    let device = &context.device;
    let spread = Distribution::Normal(0.0, 0.05);
    let half = |shape: [usize; 2]| {
        AnyTensor::new(Tensor::<2>::random(shape, spread, device)).cast(burn::tensor::FloatDType::BF16)
    };
    let weight = half([vocab, hidden]);
    debug_assert_eq!(weight.rank::<2>()?.dtype(), DType::BF16);
    let states = AnyTensor::new(Tensor::<2>::random([tokens, hidden], spread, device));
    let targets: Arc<Vec<u32>> = Arc::new((0..tokens).map(|i| (i * 7919 % vocab) as u32).collect());
    let seconds = median(device, if context.quick { 2 } else { 5 }, || {
        let states = states.leaf();
        let head = Linear::new(if trains { weight.leaf() } else { weight.clone() });
        let (loss, _) = head_nll(&states, &head, None, &targets, HeadOptions::default(), tokens as f64)?;
        let mut gradients = loss.rank::<1>()?.backward();
        anyhow::ensure!(states.take_gradient(&mut gradients).is_some(), "no gradient of the hidden states");
        Ok(())
    })?;
    let product = 2.0 * tokens as f64 * vocab as f64 * hidden as f64;
    let work = product * if trains { 3.0 } else { 2.0 };
    let bound = "products; their softmax reads and writes 16-bit blocks";
    Ok(Measured::new(context, name, [seconds, tokens as f64, work], bound))
}
