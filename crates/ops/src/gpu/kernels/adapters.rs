//! Adapters of layers that read one input, together.

use burn::tensor::{DType, Tensor};
use burnish_gpu_kernels::{self as kernels, AdapterSize, Matrices};

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, client, float, launch_all};

/// Factors of adapters in the dtype of factors.
pub(in crate::gpu) struct Narrow {
    /// First factors, one below the other.
    pub(in crate::gpu) stack: Tensor<2>,
    /// Second factors, one below the other, where all have as many columns.
    pub(in crate::gpu) stack_of_b: Option<Tensor<2>>,
    pub(in crate::gpu) a: Vec<Tensor<2>>,
    pub(in crate::gpu) b: Vec<Tensor<2>>,
}

/// Factors in f32 rounded to `dtype`, in one launch; `None` where they are too many or in another dtype, or no kernel does it.
pub(in crate::gpu) fn narrow(a: &[Tensor<2>], b: &[Tensor<2>], dtype: DType) -> Option<Narrow> {
    let all: Vec<AnyTensor> = a.iter().chain(b).map(|t| AnyTensor::new(t.clone())).collect();
    let input = a.first()?.dims()[1];
    let fits = all.len() <= kernels::CAST_TOGETHER
        && a.iter().all(|a| a.dims()[1] == input)
        && all.iter().all(|t| t.burn_dtype() == DType::F32 && t.shape().iter().all(|&n| n > 0));
    let to = float(dtype).filter(|_| fits)?;
    let rows: usize = a.iter().map(|a| a.dims()[0]).sum();
    let (outs, rank) = (b.iter().map(|b| b.dims()[0]).sum::<usize>(), b.first()?.dims()[1]);
    let elements = b.iter().map(|b| b.dims()[0] * b.dims()[1]).sum::<usize>();
    let one_rank = b.iter().all(|b| b.dims()[1] == rank);
    let mut outputs = vec![(vec![rows, input], dtype), (vec![elements], dtype)];
    outputs.extend(all.iter().map(|t| (t.shape(), dtype)));
    let inputs = Inputs::of(&all.iter().collect::<Vec<_>>())?;
    let made = launch_all(inputs, outputs, |client, buffers| {
        let (whole, pieces) = kernels::cast(client, &buffers, to);
        let mut made = vec![whole.piece(0, rows * input), whole.piece(rows * input, elements)];
        made.extend(pieces);
        made
    });
    let stack_of_b = one_rank.then(|| of_rank::<1>(&made[1]).reshape([outs, rank]));
    let (stack, mut made) = (of_rank(&made[0]), made[2..].iter().map(of_rank));
    let mut next = |count: usize| made.by_ref().take(count).collect();
    Some(Narrow { stack, stack_of_b, a: next(a.len()), b: next(b.len()) })
}

/// Adapters of one rank that are multiplied together.
#[derive(Clone, Copy)]
pub(in crate::gpu) struct Adapters {
    of: kernels::Adapters,
    size: AdapterSize,
    factors: DType,
    scale: f32,
}

/// What comes back for an adapter.
pub(in crate::gpu) struct AdapterGradient {
    /// Of `x A^T`.
    pub(in crate::gpu) low: Tensor<2>,
    pub(in crate::gpu) a: Tensor<2>,
    pub(in crate::gpu) b: Tensor<2>,
}

impl Adapters {
    /// Of so many adapters on rows of `x`; `None` where no kernel multiplies them so.
    pub(in crate::gpu) fn new(x: &Tensor<2>, rank: usize, outputs: &[usize], scale: f32) -> Option<Self> {
        let [rows, input] = x.dims();
        let size = AdapterSize { rows, input, rank, count: outputs.len() };
        let gemm = kernels::Gemm::new(&client(&AnyTensor::new(x.clone()))?, float(x.dtype())?)?;
        // As eight of sixteen bits are read.
        let even = outputs.iter().all(|n| n.is_multiple_of(8));
        let of = gemm.adapters(size).filter(|of| even && of.outputs(outputs))?;
        Some(Self { of, size, factors: x.dtype(), scale })
    }

    /// `scale x A^T` from the stack of first factors: of all, one below the other, and of each.
    pub(in crate::gpu) fn low(self, x: &Tensor<2>, stack: &Tensor<2>) -> Option<(Tensor<2>, Vec<Tensor<2>>)> {
        let Self { of, size, factors, scale } = self;
        let tensors = [x, stack].map(|t| AnyTensor::new(t.clone()));
        let inputs = Inputs::of(&[&tensors[0], &tensors[1]])?;
        let AdapterSize { rows, input, rank, count } = size;
        let mut shapes = vec![(vec![count * rows, rank], factors)];
        shapes.extend(vec![(vec![rows, rank], factors); count]);
        let made = launch_all(inputs, shapes, |client, buffers| {
            let x = Matrices::rows(buffers[0].clone(), rows, input);
            let all = of.low(client, &x, &buffers[1], scale);
            let mut made = vec![all.clone()];
            made.extend((0..count).map(|at| all.piece(at * rows * rank, rows * rank)));
            made
        });
        Some((of_rank(&made[0]), made[1..].iter().map(of_rank).collect()))
    }

    /// From the gradients of outputs beside each other, second factors one below the other, and what [`Self::low`] gave.
    pub(in crate::gpu) fn gradients(
        self,
        x: &Tensor<2>,
        (upstream, outputs): (&Tensor<2>, &[usize]),
        (b, low): (&Tensor<2>, &Tensor<2>),
    ) -> Option<Vec<AdapterGradient>> {
        let Self { of, size, factors, scale } = self;
        let AdapterSize { rows, input, rank, count } = size;
        let tensors = [x, upstream, b, low];
        if tensors.iter().any(|t| t.dtype() != factors) {
            return None;
        }
        let tensors = tensors.map(|t| AnyTensor::new(t.clone()));
        let inputs = Inputs::of(&tensors.each_ref())?;
        let mut shapes = vec![(vec![rows, rank], factors); count];
        shapes.extend(vec![(vec![rank, input], DType::F32); count]);
        shapes.extend(outputs.iter().map(|&output| (vec![output, rank], DType::F32)));
        let made = launch_all(inputs, shapes, |client, buffers| {
            let x = Matrices::rows(buffers[0].clone(), rows, input);
            let upstream = Matrices::rows(buffers[1].clone(), rows, outputs.iter().sum());
            let made = of.gradients(client, &x, (&upstream, outputs), (&buffers[2], &buffers[3]), scale);
            made.low.into_iter().chain(made.a).chain(made.b).collect()
        });
        let mut parts = made.chunks(count);
        let mut next = || parts.next().unwrap_or_default().iter().map(of_rank);
        let (low, a, b) = (next(), next(), next());
        Some(low.zip(a).zip(b).map(|((low, a), b)| AdapterGradient { low, a, b }).collect())
    }
}
