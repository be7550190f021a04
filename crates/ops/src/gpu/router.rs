//! A router's choice by a kernel, where its logits lie: the host hears nothing of it.

use std::sync::Arc;

use burn::tensor::{DType, Int, Tensor, TensorData};
use burnish_core::RouterRule;

use super::kernels::{choose_experts, choose_experts_backward, count_experts, gather_rows, probability_sums};
use super::{over_rows, to};
use crate::router::{OP, RouterBalance, Share, TokenExperts};
use crate::{AnyTensor, OpsError, Routing, apply};

const KERNEL: &str = "invariant: a kernel chose there before";

/// See [`crate::route`]; `None` where no kernel chooses.
pub(crate) fn route(
    logits: &AnyTensor,
    bias: Option<&AnyTensor>,
    rule: &RouterRule,
    balance: Option<(&Arc<RouterBalance>, usize)>,
) -> Option<Result<Routing, OpsError>> {
    let [tokens, experts] = crate::check::matrix(logits).ok()?;
    let bias = bias.map(|bias| bias.plain().rank::<1>()).transpose().ok()?;
    let bias = bias.map(|bias| AnyTensor::new(to(bias, DType::F32)));
    let (ids, weights) = choose_experts(&logits.plain(), bias.as_ref(), rule)?;
    let chosen = TokenExperts::on_device(ids.clone(), experts);
    if let Some((balance, layer)) = balance {
        balance.note(layer, || {
            let logits = logits.plain();
            // The loss is of the choice without a correction, as Transformers has it.
            let plain = || Some(choose_experts(&logits, None, rule)?.0);
            let ids = if bias.is_some() { plain().expect(KERNEL) } else { ids.clone() };
            match balance.texts() {
                Some(texts) => share_by_texts(&logits, &ids, texts),
                None => Share {
                    tokens: tokens as f64,
                    counts: count_experts(&ids, experts, &logits).expect(KERNEL),
                    probabilities: probability_sums(&logits).expect(KERNEL),
                },
            }
        });
    }
    let (rule, balance) = (*rule, balance.map(|(balance, _)| balance.clone()));
    let weights = apply(OP, std::slice::from_ref(logits), |plain, _| {
        let logits = plain[0].clone();
        let backward = move |upstream: AnyTensor| {
            let dweights = AnyTensor::new(to(upstream.rank::<2>().expect(KERNEL), DType::F32));
            let pull = balance.as_ref().and_then(|balance| balance.pull());
            let gradient = |dweights: Option<&AnyTensor>, pull: Option<&AnyTensor>| {
                choose_experts_backward(&logits, &ids, dweights, pull, &rule).expect(KERNEL)
            };
            let texts = balance.as_ref().and_then(|balance| balance.texts());
            let Some((texts, pull)) = texts.zip(pull.as_ref()) else {
                return vec![Some(gradient(Some(&dweights), pull.as_ref()))];
            };
            let pulled = gradient(None, Some(pull)).rank::<2>().expect(KERNEL);
            let texts = column(texts, &logits).cast(pulled.dtype());
            let own = gradient(Some(&dweights), None).rank::<2>().expect(KERNEL);
            vec![Some(AnyTensor::new(own + pulled * texts))]
        };
        Ok((weights, Box::new(backward)))
    });
    Some(weights.map(|weights| Routing { weights, experts: chosen }))
}

/// A number of each token, `[tokens, 1]` in f32, on the device of `beside`.
fn column(numbers: &[f32], beside: &AnyTensor) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), [numbers.len(), 1]), &beside.device())
}

/// A layer's share where tokens count as often as texts have them; sums have a fixed order.
fn share_by_texts(logits: &AnyTensor, ids: &Tensor<1, Int>, texts: &[f32]) -> Share {
    let wide = to(logits.rank::<2>().expect(KERNEL), DType::F32);
    let [tokens, experts] = wide.dims();
    let times = column(texts, logits);
    let of = |rows: Tensor<2>| AnyTensor::new(over_rows(rows * times.clone()));
    let each = ids.dims()[0] / tokens;
    let ids = ids.clone().reshape([tokens, each]);
    let numbers =
        Tensor::<1, Int>::arange(0..experts as i64, &wide.device()).cast(ids.dtype()).unsqueeze::<2>();
    let chosen = (0..each)
        .map(|at| {
            ids.clone()
                .narrow(1, at, 1)
                .expand([tokens, experts])
                .equal(numbers.clone().expand([tokens, experts]))
                .float()
        })
        .reduce(|sum, one| sum + one);
    Share {
        tokens: texts.iter().copied().map(f64::from).sum(),
        counts: of(chosen.expect(KERNEL)),
        probabilities: of(burn::tensor::activation::softmax(wide, 1)),
    }
}

/// The number of each expert of a column of them.
pub(crate) fn rows_of(column: &AnyTensor, ids: &Tensor<1, Int>) -> Option<AnyTensor> {
    let own = gather_rows(column, ids, column.burn_dtype())?;
    Some(AnyTensor::new(own.squeeze_dim::<1>(1)))
}
