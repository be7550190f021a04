//! A router's choice.

use burn::tensor::{Int, Tensor};
use burnish_core::RouterRule;
use burnish_gpu_kernels as kernels;

use crate::AnyTensor;
use crate::cube::{On, buffer, integers};

/// The experts of each token, `[tokens * per_token]`, and their weights, `[tokens, per_token]` in f32, from logits
/// `[tokens, experts]`; `bias` is f32.
pub(in crate::gpu) fn choose_experts(
    logits: &AnyTensor,
    bias: Option<&AnyTensor>,
    rule: &RouterRule,
) -> Option<(Tensor<1, Int>, AnyTensor)> {
    let on = On::device_of(logits)?;
    let [tokens, experts] = logits.shape()[..] else { return None };
    if tokens == 0 || !kernels::chooses_experts(on.client(), experts, rule) {
        return None;
    }
    let bias = match bias {
        Some(bias) => Some(buffer(bias)?),
        None => None,
    };
    let found = kernels::choose_experts(on.client(), &buffer(logits)?, bias.as_ref(), experts, rule);
    Some((on.integers(found.experts), on.floats(found.weights, &[tokens, rule.per_token])))
}

/// The gradient of the logits, in their dtype, of the weights' in f32 and, at every token, that of each expert's probability.
pub(in crate::gpu) fn choose_experts_backward(
    logits: &AnyTensor,
    chosen: &Tensor<1, Int>,
    dweights: Option<&AnyTensor>,
    pull: Option<&AnyTensor>,
    rule: &RouterRule,
) -> Option<AnyTensor> {
    let (on, of_logits) = (On::device_of(logits)?, buffer(logits)?);
    let given = |tensor: Option<&AnyTensor>| match tensor {
        Some(tensor) => Some(Some(buffer(tensor)?)),
        None => Some(None),
    };
    let (dweights, pull, experts) = (given(dweights)?, given(pull)?, logits.shape()[1]);
    let dlogits = kernels::choose_experts_backward(
        on.client(),
        &of_logits,
        &integers(chosen)?,
        dweights.as_ref(),
        pull.as_ref(),
        experts,
        rule,
    );
    Some(on.in_dtype(dlogits, &logits.shape(), logits.burn_dtype()))
}

/// The sums of the probabilities of all tokens, `[experts]` in f32.
pub(in crate::gpu) fn probability_sums(logits: &AnyTensor) -> Option<AnyTensor> {
    let (on, experts) = (On::device_of(logits)?, logits.shape()[1]);
    let sums = kernels::probability_sums(on.client(), &buffer(logits)?, experts);
    Some(on.floats(sums, &[experts]))
}

/// How many of `chosen` each expert is, `[experts]` in f32, on the device of `beside`.
pub(in crate::gpu) fn count_experts(
    chosen: &Tensor<1, Int>,
    experts: usize,
    beside: &AnyTensor,
) -> Option<AnyTensor> {
    let on = On::device_of(beside)?;
    let counts = kernels::count_experts(on.client(), &integers(chosen)?, experts);
    Some(on.floats(counts, &[experts]))
}
