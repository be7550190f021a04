//! Queries and keys before attention: norm, rotation and order by head in one pass, and their gradient.

use burn::tensor::{DType, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, launch};

/// Heads' norms and rotations.
pub(in crate::gpu) struct Placing<'a> {
    pub(in crate::gpu) shape: kernels::HeadShape,
    /// Cosines and sines `[tokens, 1, half]`.
    pub(in crate::gpu) turns: Option<(&'a Tensor<3>, &'a Tensor<3>)>,
    /// Gains of queries and keys, and epsilon.
    pub(in crate::gpu) norms: Option<(&'a Tensor<1>, &'a Tensor<1>, f32)>,
}

impl Placing<'_> {
    /// Its tensors, in the order in which [`Given`] takes their buffers.
    fn tensors(&self) -> Vec<AnyTensor> {
        let turns = self.turns.map(|(cos, sin)| [cos, sin].map(|t| AnyTensor::new(t.clone())));
        let norms = self.norms.map(|(q, k, _)| [q, k].map(|t| AnyTensor::new(t.clone())));
        turns.into_iter().flatten().chain(norms.into_iter().flatten()).collect()
    }

    fn given(&self) -> Given {
        Given { turns: self.turns.is_some(), eps: self.norms.map(|(.., eps)| eps) }
    }
}

/// Which of a placing's tensors there are.
#[derive(Clone, Copy)]
struct Given {
    turns: bool,
    eps: Option<f32>,
}

impl Given {
    fn take(
        self,
        buffers: &mut impl Iterator<Item = kernels::Buffer>,
    ) -> (Option<kernels::Turns>, Option<kernels::HeadNorms>) {
        let mut next = || buffers.next().expect("invariant: a buffer for each tensor");
        let turns = self.turns.then(|| kernels::Turns { cos: next(), sin: next() });
        let norms = self.eps.map(|eps| kernels::HeadNorms { q: next(), k: next(), eps });
        (turns, norms)
    }
}

fn inputs(tensors: &[&AnyTensor], placing: &Placing<'_>) -> Option<Inputs> {
    let own = placing.tensors();
    Inputs::of(&tensors.iter().copied().chain(&own).collect::<Vec<_>>())
}

/// Queries times `scale` `[heads, tokens, d]`, keys and values `[kv_heads, tokens, d]`, in the dtype of `qkv`.
pub(in crate::gpu) fn place_heads(
    qkv: &AnyTensor,
    placing: &Placing<'_>,
    scale: f32,
) -> Option<[Tensor<3>; 3]> {
    let inputs = inputs(&[qkv], placing)?;
    let (shape, given, dtype) = (placing.shape, placing.given(), qkv.burn_dtype());
    let tokens = qkv.shape()[0];
    let (q, kv) = ([shape.heads, tokens, shape.dim], [shape.kv_heads, tokens, shape.dim]);
    let outputs = [(&q[..], dtype), (&kv, dtype), (&kv, dtype)];
    let placed = launch(inputs, outputs, |client, buffers| {
        let mut buffers = buffers.into_iter();
        let qkv = buffers.next().expect("invariant: the heads");
        let (turns, norms) = given.take(&mut buffers);
        let kernels::Heads { q, k, v } =
            kernels::place_heads(client, &qkv, shape, turns.as_ref(), norms.as_ref(), scale);
        [q, k, v]
    });
    Some(placed.map(|t| of_rank(&t)))
}

/// The gradients of heads, and those of both gains where they are wanted.
pub(in crate::gpu) type PlacedGrad = (Tensor<2>, Option<(Tensor<1>, Tensor<1>)>);

/// The gradient of `qkv`, in its dtype, from those of queries before their scale, keys and values.
pub(in crate::gpu) fn place_heads_backward(
    qkv: &AnyTensor,
    d: [&Tensor<3>; 3],
    placing: &Placing<'_>,
    want_gains: bool,
) -> Option<PlacedGrad> {
    let [dq, dk, dv] = d.map(|t| AnyTensor::new(t.clone()));
    let inputs = inputs(&[qkv, &dq, &dk, &dv], placing)?;
    let (shape, given, dtype) = (placing.shape, placing.given(), qkv.burn_dtype());
    let backward = move |client: &kernels::Client, buffers: Vec<kernels::Buffer>| {
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("invariant: heads and their gradients");
        let (qkv, d) = (next(), kernels::Heads { q: next(), k: next(), v: next() });
        let (turns, norms) = given.take(&mut buffers);
        kernels::place_heads_backward(client, &qkv, &d, shape, turns.as_ref(), norms.as_ref(), want_gains)
    };
    let (whole, gain) = (qkv.shape(), [shape.dim]);
    let of_qkv = (whole.as_slice(), dtype);
    if want_gains {
        let outputs = [of_qkv, (&gain, DType::F32), (&gain, DType::F32)];
        let [dqkv, q, k] = launch(inputs, outputs, |client, buffers| {
            let made = backward(client, buffers);
            let (q, k) = made.gains.expect("invariant: they were asked for");
            [made.qkv, q, k]
        });
        return Some((of_rank(&dqkv), Some((of_rank(&q), of_rank(&k)))));
    }
    let [dqkv] = launch(inputs, [of_qkv], |client, buffers| [backward(client, buffers).qkv]);
    Some((of_rank(&dqkv), None))
}
