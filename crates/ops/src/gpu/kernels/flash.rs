//! Flash attention and its gradients, in one launch and in three.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use burnish_gpu_kernels as kernels;

use super::{OnDevice, of_rank};
use crate::AnyTensor;
use crate::attention::AttentionShape;
use crate::cube::{Inputs, client, float, launch};
use crate::gpu::attention::Sight;
use crate::once_for::OnceFor;

/// Attention of one row of tokens.
pub(in crate::gpu) struct Flash {
    kernel: kernels::FlashAttention,
    plan: OnDevice<kernels::FlashPlan>,
    /// `[heads]`, where there are.
    slopes: Option<AnyTensor>,
    sinks: Option<AnyTensor>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// Plans of the documents of a row, one for all layers whose tokens see alike by the same kernels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plans(OnceFor<Kept>);

#[derive(Clone, Debug)]
struct Kept {
    window: Option<usize>,
    parents: Arc<Vec<Option<usize>>>,
    plan: OnDevice<kernels::FlashPlan>,
}

impl Plans {
    /// The plan for layers of that shape, which `make` makes where there is none yet.
    fn of(
        &self,
        kernel: &kernels::FlashAttention,
        shape: &AttentionShape,
        (tokens, device): (usize, &Device),
        make: impl FnOnce() -> OnDevice<kernels::FlashPlan>,
    ) -> OnDevice<kernels::FlashPlan> {
        let fits = |kept: &Kept| {
            let OnDevice { plan, words } = &kept.plan;
            (kept.window, &kept.parents) == (shape.window, &shape.parents)
                && plan.tokens() == tokens
                && kernel.takes(plan)
                && words.device() == *device
        };
        let (window, parents) = (shape.window, Arc::clone(&shape.parents));
        self.0.get(fits, || Kept { window, parents, plan: make() }).plan
    }
}

/// Queries, keys and values in one dtype.
pub(in crate::gpu) enum FlashInput {
    /// Beside each other in a row, `[tokens, (heads + 2 kv_heads) d]`.
    Rows(AnyTensor),
    /// `[heads, tokens, d]` each.
    ByHead(Box<[Tensor<3>; 3]>),
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
            Self::Rows(qkv) => qkv.burn_dtype(),
            Self::ByHead(all) => all[0].dtype(),
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
    /// `None` where none computes it: other devices than CubeCL's, f64, heads of more elements than
    /// [`FLASH_HEAD`](burnish_core::FLASH_HEAD).
    pub(in crate::gpu) fn kernel(qkv: &AnyTensor, shape: &AttentionShape) -> Option<kernels::FlashAttention> {
        let of = kernels::FlashShape {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            scale: shape.scale,
            softcap: shape.softcap,
        };
        let dtype = float(qkv.burn_dtype())?;
        kernels::FlashAttention::new(&client(qkv)?, of, dtype)
    }

    /// Of `tokens` that see what the function says, by a plan of `plans` where those have it; `None` where no kernel computes it.
    pub(in crate::gpu) fn new(
        qkv: &AnyTensor,
        shape: &AttentionShape,
        (tokens, sight): (usize, impl FnOnce() -> Sight),
        plans: Option<&Plans>,
        sinks: Option<&AnyTensor>,
    ) -> Option<Self> {
        let kernel = Self::kernel(qkv, shape)?;
        let device = qkv.device();
        let make = || {
            let sight = sight();
            OnDevice::new(kernel.plan(&sight.low, &sight.before), kernels::FlashPlan::words, &device)
        };
        let plan = match plans {
            Some(plans) => plans.of(&kernel, shape, (tokens, &device), make),
            None => make(),
        };
        let slopes = (!shape.slopes.is_empty()).then(|| {
            let slopes = TensorData::new(shape.slopes.to_vec(), [shape.heads]);
            AnyTensor::new(Tensor::<1>::from_data(slopes, (&device, DType::F32)))
        });
        let sinks = sinks.cloned();
        let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
        Some(Self { kernel, plan, slopes, sinks, heads, kv_heads, head_dim })
    }

    fn given(&self, input: &FlashInput) -> Given {
        Given {
            rows: matches!(input, FlashInput::Rows(_)),
            slopes: self.slopes.is_some(),
            sinks: self.sinks.is_some(),
            tokens: self.plan.plan.tokens(),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    fn inputs(&self, input: &FlashInput, more: &[&AnyTensor]) -> Inputs {
        let own = input.tensors();
        let all = own.iter().chain(&self.slopes).chain(&self.sinks).chain(more.iter().copied());
        let inputs = Inputs::of(&all.collect::<Vec<_>>());
        inputs
            .expect("invariant: operands of one device and its dtypes")
            .and_integers(self.plan.words.clone())
    }

    /// The output `[tokens, heads * d]` in the operands' dtype, and the log-sum-exp `[heads, tokens]`.
    pub(in crate::gpu) fn forward(&self, input: &FlashInput) -> (Tensor<2>, Tensor<2>) {
        let (given, kernel, plan) = (self.given(input), self.kernel, Arc::clone(&self.plan.plan));
        let (out, sums) = ([given.tokens, given.heads * given.head_dim], [given.heads, given.tokens]);
        let outputs = [(&out[..], input.dtype()), (&sums, DType::F32)];
        let made = launch(self.inputs(input, &[]), outputs, |client, buffers| {
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
        let (kernel, plan) = (self.kernel, Arc::clone(&self.plan.plan));
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
            let made = launch(inputs, by_head, |client, buffers| {
                let kernels::FlashGradients { q, k, v, .. } = backward(client, buffers);
                [q, k, v]
            });
            return FlashGrad { heads: made.map(|t| of_rank(&t)), sinks: None };
        }
        let [of_q, of_k, of_v] = by_head;
        let outputs = [of_q, of_k, of_v, (&[heads][..], DType::F32)];
        let [q, k, v, sinks] = launch(inputs, outputs, |client, buffers| {
            let kernels::FlashGradients { q, k, v, sinks } = backward(client, buffers);
            [q, k, v, sinks.expect("invariant: there are sinks")]
        });
        FlashGrad { heads: [q, k, v].map(|t| of_rank(&t)), sinks: Some(of_rank(&sinks)) }
    }
}
