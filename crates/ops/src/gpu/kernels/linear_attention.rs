//! Linear attention, and its gradients.

use std::sync::Arc;

use burn::tensor::{DType, FloatDType};
use burnish_gpu_kernels as kernels;
use burnish_gpu_kernels::{Buffer, Client, TextPlan};

use super::OnDevice;
use crate::cube::{self, client, launch, launch_all};
use crate::linear_attention::{Inputs, LinearAttentionShape};
use crate::{AnyTensor, Documents, OpsError, apply};

/// The kernel of a call; its buffers are what the call reads, what else there is, and the plan's words.
#[derive(Clone, Copy)]
enum Kernel {
    OfHeads(kernels::LinearAttention),
    OfChannels(kernels::ChannelLinearAttention),
}

impl Kernel {
    /// For rows of `width` columns; `None` where there is none.
    fn new(inputs: Inputs<'_>, shape: &LinearAttentionShape) -> Option<Self> {
        if inputs.all().iter().any(|input| input.burn_dtype() != DType::F32) {
            return None;
        }
        let LinearAttentionShape { key_heads, heads, key_dim, value_dim, columns, delta_rule } = *shape;
        let width = inputs.qkv().shape()[1];
        let shape = kernels::LinearAttentionShape {
            key_heads,
            heads,
            key_dim,
            value_dim,
            columns,
            width,
            delta_rule,
        };
        let client = client(inputs.qkv())?;
        match inputs {
            Inputs::OfHeads(_) => kernels::LinearAttention::new(&client, shape).map(Self::OfHeads),
            Inputs::OfChannels(_) => {
                kernels::ChannelLinearAttention::new(&client, shape).map(Self::OfChannels)
            }
        }
    }

    fn chunk(&self) -> usize {
        match self {
            Self::OfHeads(kernel) => kernel.chunk(),
            Self::OfChannels(kernel) => kernel.chunk(),
        }
    }

    fn forward(&self, client: &Client, plan: &TextPlan, buffers: &[Buffer]) -> Buffer {
        match self {
            Self::OfHeads(kernel) => kernel.forward(client, plan, &of_heads(buffers)),
            Self::OfChannels(kernel) => kernel.forward(client, plan, &of_channels(buffers)),
        }
    }

    fn forward_held(&self, client: &Client, plan: &TextPlan, buffers: &[Buffer]) -> [Buffer; 2] {
        match self {
            Self::OfHeads(kernel) => kernel.forward_held(client, plan, &of_heads(buffers), &buffers[2]),
            Self::OfChannels(kernel) => kernel.forward_held(client, plan, &of_channels(buffers), &buffers[3]),
        }
    }

    /// Gradients of what the call reads.
    fn backward(&self, client: &Client, plan: &TextPlan, buffers: &[Buffer]) -> Vec<Buffer> {
        match self {
            Self::OfHeads(kernel) => {
                let found = kernel.backward(client, plan, &of_heads(buffers), &buffers[2]);
                vec![found.qkv, found.weights]
            }
            Self::OfChannels(kernel) => {
                let found = kernel.backward(client, plan, &of_channels(buffers), &buffers[3]);
                vec![found.qkv, found.decays, found.betas]
            }
        }
    }
}

/// The first two buffers and the last.
fn of_heads(buffers: &[Buffer]) -> kernels::LinearAttentionOperands {
    let [qkv, weights, .., words] = buffers else {
        unreachable!("invariant: two inputs, and the plan's words behind all others")
    };
    let [qkv, weights, words] = [qkv, weights, words].map(Clone::clone);
    kernels::LinearAttentionOperands { qkv, weights, words }
}

/// The first three buffers and the last.
fn of_channels(buffers: &[Buffer]) -> kernels::ChannelLinearAttentionOperands {
    let [qkv, decays, betas, .., words] = buffers else {
        unreachable!("invariant: three inputs, and the plan's words behind all others")
    };
    let [qkv, decays, betas, words] = [qkv, decays, betas, words].map(Clone::clone);
    kernels::ChannelLinearAttentionOperands { qkv, decays, betas, words }
}

/// See [`crate::linear_attention()`]; `None` where no kernel computes it.
pub(in crate::gpu) fn linear_attention(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Option<Result<AnyTensor, OpsError>> {
    let kernel = Kernel::new(inputs, shape)?;
    let &[tokens, _] = inputs.qkv().shape().as_slice() else { return None };
    if tokens == 0 {
        return None;
    }
    let (heads, device) = (shape.heads, inputs.qkv().plain().device());
    let OnDevice { plan, words } = texts.walked.of(kernel.chunk(), texts, Some(parents), (tokens, &device));
    let y = [tokens, heads * shape.value_dim];
    let all: Vec<AnyTensor> = inputs.all().iter().copied().cloned().collect();
    Some(apply(inputs.op(), &all, move |plain, wanted| {
        let read = |more: &[&AnyTensor]| {
            let all: Vec<&AnyTensor> = plain.iter().chain(more.iter().copied()).collect();
            cube::Inputs::of(&all).expect("invariant: in f32 on one device").and_integers(words.clone())
        };
        let [out] =
            launch(
                read(&[]),
                [(&y, DType::F32)],
                |client, buffers| [kernel.forward(client, &plan, &buffers)],
            );
        let (saved, words, plan) = (plain.to_vec(), words.clone(), Arc::clone(&plan));
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let upstream = match upstream.burn_dtype() {
                DType::F32 => upstream,
                _ => upstream.cast(FloatDType::F32),
            };
            let all: Vec<&AnyTensor> = saved.iter().chain([&upstream]).collect();
            let read = cube::Inputs::of(&all).expect("invariant: in f32 on one device").and_integers(words);
            let outputs = saved.iter().map(|input| (input.shape(), DType::F32)).collect();
            let made = launch_all(read, outputs, |client, buffers| kernel.backward(client, &plan, &buffers));
            made.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((out, Box::new(backward)))
    }))
}

/// The output of new rows and the states behind them; `None` where no kernel computes it.
pub(in crate::gpu) fn linear_attention_stepped(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    states: &AnyTensor,
) -> Option<(AnyTensor, AnyTensor)> {
    let kernel = Kernel::new(inputs, shape)?;
    let tokens = inputs.qkv().shape()[0];
    if tokens == 0 || texts.is_empty() {
        return None;
    }
    let device = inputs.qkv().device();
    let OnDevice { plan, words } = texts.walked.of(kernel.chunk(), texts, None, (tokens, &device));
    let all: Vec<&AnyTensor> = inputs.all().iter().copied().chain([states]).collect();
    let read = cube::Inputs::of(&all)?.and_integers(words);
    let (y, behind) = ([tokens, shape.heads * shape.value_dim], [texts.len(), shape.state()]);
    let [y, behind] = launch(read, [(&y, DType::F32), (&behind, DType::F32)], |client, buffers| {
        kernel.forward_held(client, &plan, &buffers)
    });
    Some((y, behind))
}
