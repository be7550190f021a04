//! Flash attention and its gradients, in one launch and in three.

use std::sync::Arc;

use burn::tensor::{DType, Int, Tensor, TensorData};
use burnish_gpu_kernels as kernels;

use super::{integers, of_rank};
use crate::AnyTensor;
use crate::attention::AttentionShape;
use crate::cube::{Inputs, client, float, launch};
use crate::gpu::attention::Sight;

/// Attention of one row of tokens.
pub(in crate::gpu) struct Flash {
    kernel: kernels::FlashAttention,
    plan: Arc<kernels::FlashPlan>,
    /// The plan's words.
    words: Tensor<1, Int>,
    /// `[heads]`, where there are.
    slopes: Option<AnyTensor>,
    sinks: Option<AnyTensor>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// Queries, keys and values in one dtype.
pub(in crate::gpu) enum FlashInput {
    /// Beside each other in a row, `[tokens, (heads + 2 kv_heads) d]`.
    Rows(AnyTensor),
    /// `[heads, tokens, d]` each.
    ByHead([Tensor<3>; 3]),
}

/// Gradients in f32: queries, keys and values by head, and sinks `[heads]`.
pub(in crate::gpu) struct FlashGrad {
    pub(in crate::gpu) heads: [Tensor<3>; 3],
    pub(in crate::gpu) sinks: Option<Tensor<1>>,
}

impl FlashInput {
    /// Where the heads are, in the buffers of its tensors.
    pub(super) fn rows(
        beside: bool,
        mut next: impl FnMut() -> kernels::Buffer,
        tokens: usize,
        (heads, kv_heads, d): (usize, usize, usize),
    ) -> [kernels::HeadRows; 3] {
        if !beside {
            let mut by_head = || kernels::HeadRows { buffer: next(), first: 0, token: d, head: tokens * d };
            return [by_head(), by_head(), by_head()];
        }
        let (qkv, token) = (next(), (heads + 2 * kv_heads) * d);
        [0, heads, heads + kv_heads].map(|first| kernels::HeadRows {
            buffer: qkv.clone(),
            first: first * d,
            token,
            head: d,
        })
    }

    pub(super) fn tensors(&self) -> Vec<AnyTensor> {
        match self {
            Self::Rows(qkv) => vec![qkv.clone()],
            Self::ByHead(all) => all.iter().map(|t| AnyTensor::new(t.clone())).collect(),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Rows(qkv) => qkv.carrier().dtype(),
            Self::ByHead([q, ..]) => q.dtype(),
        }
    }
}

/// What of a call's operands there is, to find their buffers.
#[derive(Clone, Copy)]
struct Given {
    rows: bool,
    slopes: bool,
    sinks: bool,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Given {
    /// Operands, and the buffers after theirs; the words come last.
    fn take(self, mut buffers: Vec<kernels::Buffer>) -> (kernels::FlashOperands, Vec<kernels::Buffer>) {
        let words = buffers.pop().expect("invariant: the words are the last input");
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("invariant: a buffer for each input");
        let shape = (self.heads, self.kv_heads, self.head_dim);
        let [q, k, v] = FlashInput::rows(self.rows, &mut next, self.tokens, shape);
        let slopes = self.slopes.then(&mut next);
        let sinks = self.sinks.then(&mut next);
        (kernels::FlashOperands { q, k, v, slopes, sinks, words }, buffers.collect())
    }
}

impl Flash {
    /// `None` where no kernel computes it: other devices than CubeCL's, f64, heads of more than 256 elements.
    pub(in crate::gpu) fn new(
        qkv: &AnyTensor,
        shape: &AttentionShape,
        sight: &Sight,
        sinks: Option<&AnyTensor>,
    ) -> Option<Self> {
        let of = kernels::FlashShape {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            scale: shape.scale,
            softcap: shape.softcap,
        };
        let dtype = float(qkv.carrier().dtype())?;
        let kernel = kernels::FlashAttention::new(&client(qkv)?, of, dtype)?;
        let plan = Arc::new(kernel.plan(&sight.low, &sight.before));
        let device = qkv.device();
        let words = integers(plan.words().iter().map(|&word| word as i32).collect(), &device);
        let slopes = (!shape.slopes.is_empty()).then(|| {
            let slopes = TensorData::new(shape.slopes.to_vec(), [shape.heads]);
            AnyTensor::new(Tensor::<1>::from_data(slopes, (&device, DType::F32)))
        });
        let sinks = sinks.cloned();
        let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
        Some(Self { kernel, plan, words, slopes, sinks, heads, kv_heads, head_dim })
    }

    fn given(&self, input: &FlashInput) -> Given {
        Given {
            rows: matches!(input, FlashInput::Rows(_)),
            slopes: self.slopes.is_some(),
            sinks: self.sinks.is_some(),
            tokens: self.plan.tokens(),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    fn inputs(&self, input: &FlashInput, more: &[&AnyTensor]) -> Inputs {
        let own = input.tensors();
        let all = own.iter().chain(&self.slopes).chain(&self.sinks).chain(more.iter().copied());
        let inputs = Inputs::of(&all.collect::<Vec<_>>());
        inputs.expect("invariant: operands of one device and its dtypes").and_integers(self.words.clone())
    }

    /// The output `[tokens, heads * d]` in the operands' dtype, and the log-sum-exp `[heads, tokens]`.
    pub(in crate::gpu) fn forward(&self, input: &FlashInput) -> (Tensor<2>, Tensor<2>) {
        let (given, kernel, plan) = (self.given(input), self.kernel, Arc::clone(&self.plan));
        let (out, sums) = ([given.tokens, given.heads * given.head_dim], [given.heads, given.tokens]);
        let outputs = [(&out[..], input.dtype()), (&sums, DType::F32)];
        let made = launch("flash_attention", self.inputs(input, &[]), outputs, move |client, buffers| {
            let (operands, _) = given.take(buffers);
            let kernels::FlashOutput { out, sums } = kernel.forward(client, &plan, &operands);
            [out, sums]
        });
        let [out, sums] = made.map(|t| of_rank(&t));
        (out, sums)
    }

    /// Gradients from that of the output, which has the operands' dtype.
    pub(in crate::gpu) fn backward(
        &self,
        input: &FlashInput,
        out: &Tensor<2>,
        sums: &Tensor<2>,
        upstream: &Tensor<2>,
    ) -> FlashGrad {
        let given = self.given(input);
        let more = [out, sums, upstream].map(|t| AnyTensor::new(t.clone()));
        let inputs = self.inputs(input, &more.each_ref());
        let (kernel, plan) = (self.kernel, Arc::clone(&self.plan));
        let backward = move |client: &kernels::Client, buffers| {
            let (operands, more) = given.take(buffers);
            let [out, sums, upstream] = <[_; 3]>::try_from(more).expect("invariant: the last three inputs");
            let made = kernels::FlashOutput { out, sums };
            kernel.backward(client, &plan, &operands, &made, &upstream)
        };
        let Given { tokens, heads, kv_heads, head_dim: d, .. } = given;
        let (q, kv) = ([heads, tokens, d], [kv_heads, tokens, d]);
        let by_head = [(&q[..], DType::F32), (&kv, DType::F32), (&kv, DType::F32)];
        if !given.sinks {
            let made = launch("flash_attention_backward", inputs, by_head, move |client, buffers| {
                let kernels::FlashGradients { q, k, v, .. } = backward(client, buffers);
                [q, k, v]
            });
            return FlashGrad { heads: made.map(|t| of_rank(&t)), sinks: None };
        }
        let [of_q, of_k, of_v] = by_head;
        let outputs = [of_q, of_k, of_v, (&[heads][..], DType::F32)];
        let [q, k, v, sinks] = launch("flash_attention_backward", inputs, outputs, move |client, buffers| {
            let kernels::FlashGradients { q, k, v, sinks } = backward(client, buffers);
            [q, k, v, sinks.expect("invariant: there are sinks")]
        });
        FlashGrad { heads: [q, k, v].map(|t| of_rank(&t)), sinks: Some(of_rank(&sinks)) }
    }
}
