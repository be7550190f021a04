//! [`crate::linear_attention()`] on CPU kernels.

use std::ops::Range;

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::linear_attention::{Inputs, LinearAttentionShape};
use crate::{AnyTensor, Documents, OpsError, apply};

/// What the kernels read.
enum Read {
    OfHeads([Host; 2]),
    OfChannels([Host; 3]),
}

impl Read {
    fn of(inputs: Inputs<'_>) -> Result<Self, OpsError> {
        let host = |what, tensor| Host::f32_of(inputs.op(), what, tensor);
        Ok(match inputs {
            Inputs::OfHeads([qkv, weights]) => Self::OfHeads([host("qkv", qkv)?, host("weights", weights)?]),
            Inputs::OfChannels([qkv, decays, betas]) => {
                Self::OfChannels([host("qkv", qkv)?, host("decays", decays)?, host("betas", betas)?])
            }
        })
    }

    fn call<'a>(
        &'a self,
        shape: &LinearAttentionShape,
        width: usize,
        documents: &'a [Range<usize>],
        parents: &'a [Option<usize>],
    ) -> kernels::LinearAttention<'a> {
        let LinearAttentionShape { key_heads, heads, key_dim, value_dim, columns, delta_rule } = *shape;
        let (decays, [qkv, decay, beta]) = match self {
            Self::OfHeads([qkv, weights]) => {
                let (decay, beta) = weights.f32().split_at(weights.f32().len() / 2);
                (kernels::Decays::OfHeads, [qkv.f32(), decay, beta])
            }
            Self::OfChannels(all) => (kernels::Decays::OfChannels, all.each_ref().map(Host::f32)),
        };
        let shape = kernels::LinearAttentionShape {
            key_heads,
            heads,
            key_dim,
            value_dim,
            columns,
            width,
            delta_rule,
            decays,
            documents,
            parents,
        };
        kernels::LinearAttention { shape, qkv, decay, beta }
    }
}

/// Whether the kernels have heads of these sizes; Burn's operations compute others.
fn has_kernel(shape: &LinearAttentionShape) -> bool {
    let sizes = 1..=kernels::STATE_DIM;
    sizes.contains(&shape.key_dim) && sizes.contains(&shape.value_dim)
}

/// See [`crate::linear_attention()`].
pub(crate) fn linear_attention(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    if !has_kernel(shape) {
        return crate::gpu::linear_attention::linear_attention(inputs, shape, texts, parents);
    }
    let [tokens, width] = crate::check::matrix(inputs.qkv())?;
    let (shape, texts) = (*shape, texts.clone());
    let parents = parents[..parents.len().min(texts.len())].to_vec();
    let all: Vec<AnyTensor> = inputs.all().iter().copied().cloned().collect();
    apply(inputs.op(), &all, move |plain, wanted| {
        let read = Read::of(Inputs::of(plain))?;
        let y = kernels::linear_attention_forward(&read.call(&shape, width, &texts, &parents), None);
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let call = read.call(&shape, width, &texts, &parents);
            let found = kernels::linear_attention_backward(&call, dy.f32());
            let (heads, qkv) = (shape.heads, tensor(found.qkv, &[tokens, width]));
            let all = match read {
                Read::OfHeads(_) => {
                    vec![qkv, tensor([found.decay, found.beta].concat(), &[2, tokens * heads])]
                }
                Read::OfChannels(_) => {
                    let decays = tensor(found.decay, &[tokens, heads * shape.key_dim]);
                    vec![qkv, decays, tensor(found.beta, &[tokens, heads])]
                }
            };
            all.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((tensor(y, &[tokens, shape.heads * shape.value_dim]), Box::new(backward)))
    })
}

/// The output of new rows and the states behind them, `[texts, state]`.
pub(crate) fn stepped(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    if !has_kernel(shape) {
        return crate::gpu::linear_attention::stepped(inputs, shape, texts, states);
    }
    let [tokens, width] = crate::check::matrix(inputs.qkv())?;
    let read = Read::of(inputs)?;
    let mut held = Host::f32_of(inputs.op(), "states", &states)?;
    drop(states);
    let call = read.call(shape, width, texts, &[]);
    let size = [tokens, shape.heads * shape.value_dim];
    if let Some(own) = held.own_f32() {
        let y = kernels::linear_attention_forward(&call, Some(own));
        let states = held.into_tensor().expect("invariant: a tensor, as it was");
        return Ok((tensor(y, &size), states));
    }
    let mut own = held.f32().to_vec();
    let y = kernels::linear_attention_forward(&call, Some(&mut own));
    Ok((tensor(y, &size), tensor(own, &[texts.len(), shape.state()])))
}
