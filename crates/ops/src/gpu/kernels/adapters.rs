//! Adapters of layers that read one input, together.

use burn::tensor::{DType, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burnish_gpu_kernels::{self as kernels, AdapterSize, Matrices};

use super::gemm::matrices;
use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, client, float, launch_all, launch_on_all};

/// Factors of adapters in the dtype of factors.
pub(in crate::gpu) struct Narrow {
    /// First factors, one below the other.
    pub(in crate::gpu) stack: Tensor<2>,
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
    let mut outputs = vec![(vec![rows, input], dtype)];
    outputs.extend(all.iter().map(|t| (t.shape(), dtype)));
    let inputs = Inputs::of(&all.iter().collect::<Vec<_>>())?;
    let made = launch_all(inputs, outputs, |client, buffers| {
        let (whole, pieces) = kernels::cast(client, &buffers, to);
        let mut made = vec![whole.piece(0, rows * input)];
        made.extend(pieces);
        made
    });
    let mut made = made.iter().map(of_rank);
    let stack = made.next()?;
    let mut next = |count: usize| made.by_ref().take(count).collect();
    Some(Narrow { stack, a: next(a.len()), b: next(b.len()) })
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

    /// `scale x A^T` of each, from the stack of first factors.
    pub(in crate::gpu) fn low(self, x: &Tensor<2>, stack: &Tensor<2>) -> Option<Vec<Tensor<2>>> {
        let Self { of, size, factors, scale } = self;
        let tensors = [x, stack].map(|t| AnyTensor::new(t.clone()));
        let inputs = Inputs::of(&[&tensors[0], &tensors[1]])?;
        let made = launch_on_all(inputs, |tensors| {
            let Ok([x, stack]) = <[CubeTensor; 2]>::try_from(tensors) else {
                unreachable!("invariant: two inputs");
            };
            let (client, device) = (x.client.clone(), x.device.clone());
            let (x, stack) = (matrices(into_contiguous(x)), matrices(into_contiguous(stack)).buffer);
            let made = of.low(&client, &x, &stack, scale).into_iter();
            let shape = [size.rows, size.rank];
            let tensor = |b: kernels::Buffer| (client.clone(), device.clone(), shape.into(), b.handle);
            made.map(tensor).map(|(c, d, s, h)| CubeTensor::new_contiguous(c, d, s, h, factors)).collect()
        });
        Some(made.iter().map(of_rank).collect())
    }

    /// From the gradients of outputs, second factors, and what [`Self::low`] gave.
    pub(in crate::gpu) fn gradients(
        self,
        x: &Tensor<2>,
        upstream: &[Tensor<2>],
        (b, low): (&[Tensor<2>], &[Tensor<2>]),
    ) -> Option<Vec<AdapterGradient>> {
        let Self { of, size, factors, scale } = self;
        let AdapterSize { rows, input, rank, count } = size;
        if upstream.iter().chain(b).chain(low).any(|t| t.dtype() != factors) {
            return None;
        }
        let outs: Vec<usize> = b.iter().map(|b| b.dims()[0]).collect();
        let all = [x].into_iter().chain(upstream).chain(b).chain(low);
        let tensors: Vec<AnyTensor> = all.map(|t| AnyTensor::new(t.clone())).collect();
        let inputs = Inputs::of(&tensors.iter().collect::<Vec<_>>())?;
        let mut shapes = vec![(vec![rows, rank], factors); count];
        shapes.extend(vec![(vec![rank, input], DType::F32); count]);
        shapes.extend(outs.iter().map(|&output| (vec![output, rank], DType::F32)));
        let made = launch_on_all(inputs, |tensors| {
            let (client, device) = (tensors[0].client.clone(), tensors[0].device.clone());
            let mut tensors = tensors.into_iter();
            let mut next = || tensors.next().expect("invariant: as many as were given");
            let x = matrices(into_contiguous(next()));
            let upstream: Vec<Matrices> = (0..count)
                .map(|at| {
                    let t = next();
                    let found = matrices(t.clone());
                    let lies = of.reads(&x, std::slice::from_ref(&found), &outs[at..=at]);
                    if lies { found } else { matrices(into_contiguous(t)) }
                })
                .collect();
            let mut buffers = || (0..count).map(|_| matrices(into_contiguous(next())).buffer).collect();
            let (b, low): (Vec<_>, Vec<_>) = (buffers(), buffers());
            let made = of.gradients(&client, &x, &upstream, (&b, &low), scale);
            let all = made.low.into_iter().chain(made.a).chain(made.b).zip(&shapes);
            let tensor = |(made, (shape, dtype)): (kernels::Buffer, &(Vec<usize>, DType))| {
                let (client, device) = (client.clone(), device.clone());
                CubeTensor::new_contiguous(client, device, shape.clone().into(), made.handle, *dtype)
            };
            all.map(tensor).collect()
        });
        let mut parts = made.chunks(count);
        let mut next = || parts.next().unwrap_or_default().iter().map(of_rank);
        let (low, a, b) = (next(), next(), next());
        Some(low.zip(a).zip(b).map(|((low, a), b)| AdapterGradient { low, a, b }).collect())
    }
}
