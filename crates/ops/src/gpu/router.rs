//! A router's choice by a kernel, where its logits lie: the host hears nothing of it.

use std::sync::Arc;

use burn::tensor::{DType, Int, Tensor};
use burnish_core::RouterRule;

use super::kernels::{choose_experts, choose_experts_backward, count_experts, gather_rows, probability_sums};
use super::to;
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
            Share {
                tokens,
                counts: count_experts(&ids, experts, &logits).expect(KERNEL),
                probabilities: probability_sums(&logits).expect(KERNEL),
            }
        });
    }
    let (rule, balance) = (*rule, balance.map(|(balance, _)| balance.clone()));
    let weights = apply(OP, std::slice::from_ref(logits), |plain, _| {
        let logits = plain[0].clone();
        let backward = move |upstream: AnyTensor| {
            let dweights = AnyTensor::new(to(upstream.rank::<2>().expect(KERNEL), DType::F32));
            let pull = balance.as_ref().and_then(|balance| balance.pull());
            let found = choose_experts_backward(&logits, &ids, &dweights, pull.as_ref(), &rule);
            vec![Some(found.expect(KERNEL))]
        };
        Ok((weights, Box::new(backward)))
    });
    Some(weights.map(|weights| Routing { weights, experts: chosen }))
}

/// The number of each expert of a column of them.
pub(crate) fn rows_of(column: &AnyTensor, ids: &Tensor<1, Int>) -> Option<AnyTensor> {
    let own = gather_rows(column, ids, column.burn_dtype())?;
    Some(AnyTensor::new(own.squeeze_dim::<1>(1)))
}
