//! Linear attention, and its gradients.

use std::sync::Arc;

use burn::tensor::{DType, FloatDType};
use burnish_gpu_kernels as kernels;

use super::OnDevice;
use crate::cube::{Inputs, client, launch};
use crate::linear_attention::LinearAttentionShape;
use crate::{AnyTensor, Documents, OpsError, apply};

/// The kernel for rows of `width` columns; `None` where there is none.
fn kernel(inputs: [&AnyTensor; 2], shape: &LinearAttentionShape) -> Option<kernels::LinearAttention> {
    if inputs.iter().any(|input| input.burn_dtype() != DType::F32) {
        return None;
    }
    let LinearAttentionShape { key_heads, heads, key_dim, value_dim, columns, delta_rule } = *shape;
    let width = inputs[0].shape()[1];
    let shape =
        kernels::LinearAttentionShape { key_heads, heads, key_dim, value_dim, columns, width, delta_rule };
    kernels::LinearAttention::new(&client(inputs[0])?, shape)
}

/// What a kernel reads: the first two buffers and the last.
fn operands(buffers: &[kernels::Buffer]) -> kernels::LinearAttentionOperands {
    let [qkv, weights, .., words] = buffers else {
        unreachable!("invariant: two inputs, and the plan's words behind all others")
    };
    let [qkv, weights, words] = [qkv, weights, words].map(Clone::clone);
    kernels::LinearAttentionOperands { qkv, weights, words }
}

/// See [`crate::linear_attention()`]; `None` where no kernel computes it.
pub(in crate::gpu) fn linear_attention(
    inputs: [&AnyTensor; 2],
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Option<Result<AnyTensor, OpsError>> {
    let kernel = kernel(inputs, shape)?;
    let &[tokens, width] = inputs[0].shape().as_slice() else { return None };
    if tokens == 0 {
        return None;
    }
    let (heads, device) = (shape.heads, inputs[0].plain().device());
    let OnDevice { plan, words } = texts.walked.of(kernel.chunk(), texts, Some(parents), (tokens, &device));
    let y = [tokens, heads * shape.value_dim];
    Some(apply("linear_attention", &inputs.map(Clone::clone), move |plain, wanted| {
        let read = |more: &[&AnyTensor]| {
            let all: Vec<&AnyTensor> = plain.iter().chain(more.iter().copied()).collect();
            Inputs::of(&all).expect("invariant: in f32 on one device").and_integers(words.clone())
        };
        let [out] = launch(read(&[]), [(&y, DType::F32)], |client, buffers| {
            [kernel.forward(client, &plan, &operands(&buffers))]
        });
        let (saved, words, plan) = (plain.to_vec(), words.clone(), Arc::clone(&plan));
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let upstream = match upstream.burn_dtype() {
                DType::F32 => upstream,
                _ => upstream.cast(FloatDType::F32),
            };
            let all: Vec<&AnyTensor> = saved.iter().chain([&upstream]).collect();
            let read = Inputs::of(&all).expect("invariant: in f32 on one device").and_integers(words);
            let (of_qkv, of_weights) = ([tokens, width], [2, tokens * heads]);
            let outputs = [of_qkv, of_weights].map(|shape| (shape, DType::F32));
            let outputs = outputs.each_ref().map(|(shape, dtype)| (&shape[..], *dtype));
            let made = launch(read, outputs, |client, buffers| {
                let found = kernel.backward(client, &plan, &operands(&buffers), &buffers[2]);
                [found.qkv, found.weights]
            });
            made.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((out, Box::new(backward)))
    }))
}

/// The output of new rows and the states behind them; `None` where no kernel computes it.
pub(in crate::gpu) fn linear_attention_stepped(
    inputs: [&AnyTensor; 2],
    shape: &LinearAttentionShape,
    texts: &Documents,
    states: &AnyTensor,
) -> Option<(AnyTensor, AnyTensor)> {
    let kernel = kernel(inputs, shape)?;
    let tokens = inputs[0].shape()[0];
    if tokens == 0 || texts.is_empty() {
        return None;
    }
    let device = inputs[0].device();
    let OnDevice { plan, words } = texts.walked.of(kernel.chunk(), texts, None, (tokens, &device));
    let [qkv, weights] = inputs;
    let read = Inputs::of(&[qkv, weights, states])?.and_integers(words);
    let (y, behind) = ([tokens, shape.heads * shape.value_dim], [texts.len(), shape.state()]);
    let [y, behind] = launch(read, [(&y, DType::F32), (&behind, DType::F32)], |client, buffers| {
        kernel.forward_held(client, &plan, &operands(&buffers), &buffers[2])
    });
    Some((y, behind))
}
