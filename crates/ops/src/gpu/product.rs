//! Products, with what is done to the sums before they are written.
//!
//! Factors are multiplied in the narrower of their dtypes, whatever they lie in memory as: bf16 and f16 by tensor cores, with
//! sums in f32 that are rounded once, to the dtype that is asked for. Products of f32 are multiplied in f32; where [`Compute`]
//! lets factors be rounded, they are rounded to bf16.

use burn::tensor::{DType, Device, Tensor};
use burnish_core::Compute;

use super::to;

/// What is done to sums: `scale (a b + more) + add + bias`, in the dtype `out`.
pub(super) struct Finish<const D: usize> {
    pub(super) out: DType,
    pub(super) scale: f32,
    /// The factors of another product of the same shape.
    pub(super) more: Option<[Tensor<D>; 2]>,
    /// Of the output's shape. Written to where nobody else holds it.
    pub(super) add: Option<Tensor<D>>,
    /// Added to every row.
    pub(super) bias: Option<Tensor<1>>,
}

impl<const D: usize> Finish<D> {
    /// Sums as they are.
    pub(super) fn new(out: DType) -> Self {
        Self { out, scale: 1.0, more: None, add: None, bias: None }
    }

    /// The sums times `scale`.
    pub(super) fn scaled(out: DType, scale: f32) -> Self {
        Self { scale, ..Self::new(out) }
    }

    /// The sums and `add`.
    pub(super) fn adding(out: DType, add: Option<Tensor<D>>) -> Self {
        Self { add, ..Self::new(out) }
    }
}

/// The dtype in which factors are multiplied.
pub(super) fn factors(a: DType, b: DType, compute: Compute) -> DType {
    match if a.size() < b.size() { a } else { b } {
        DType::F32 if compute == Compute::Bf16 => DType::BF16,
        narrow => narrow,
    }
}

/// How a device computes: factors of f32 are rounded where tensor cores multiply them.
pub(super) fn on_device(device: &Device, compute: Compute) -> Compute {
    #[cfg(feature = "cube")]
    if compute == Compute::Bf16 && super::kernels::multiplies(device, DType::BF16) {
        return compute;
    }
    #[cfg(not(feature = "cube"))]
    let _ = (device, compute);
    Compute::Fp32
}

/// `a b`, of matrices or of batches of them, finished.
pub(super) fn product<const D: usize>(
    a: Tensor<D>,
    b: Tensor<D>,
    compute: Compute,
    mut finish: Finish<D>,
) -> Tensor<D> {
    let of = |a: &Tensor<D>, b: &Tensor<D>| factors(a.dtype(), b.dtype(), compute);
    let own = of(&a, &b);
    // Of other factors: by itself.
    if let Some([p, q]) = finish.more.take_if(|[p, q]| of(p, q) != own) {
        let Finish { out, scale, add, bias, .. } = finish;
        let wide = if out == DType::F64 { out } else { DType::F32 };
        let before = product(a, b, compute, Finish { scale, add, bias, ..Finish::new(wide) });
        return product(p, q, compute, Finish { out, scale, more: None, add: Some(before), bias: None });
    }
    #[cfg(feature = "cube")]
    let (a, b, finish) = match super::kernels::gemm(a, b, own, finish) {
        Ok(y) => return y,
        Err(rest) => *rest,
    };
    by_itself(a, b, finish)
}

/// Matrices to multiply, and what is done to the sums.
pub(super) struct Factors {
    pub(super) a: Tensor<2>,
    pub(super) b: Tensor<2>,
    pub(super) compute: Compute,
    pub(super) finish: Finish<2>,
}

impl Factors {
    /// The product.
    pub(super) fn product(self) -> Tensor<2> {
        product(self.a, self.b, self.compute, self.finish)
    }

    /// The dtype in which all factors are multiplied; `None` of two products in two.
    #[cfg(feature = "cube")]
    fn dtype(&self) -> Option<DType> {
        let own = factors(self.a.dtype(), self.b.dtype(), self.compute);
        let one = |[p, q]: &[Tensor<2>; 2]| factors(p.dtype(), q.dtype(), self.compute) == own;
        self.finish.more.as_ref().is_none_or(one).then_some(own)
    }
}

/// Products of as many rows, beside each other.
pub(super) fn beside(mut all: Vec<Factors>) -> Tensor<2> {
    if all.len() == 1 {
        return all.remove(0).product();
    }
    #[cfg(feature = "cube")]
    if let Some(dtypes) = all.iter().map(Factors::dtype).collect::<Option<Vec<_>>>() {
        let computes: Vec<Compute> = all.iter().map(|factors| factors.compute).collect();
        let parts = all.into_iter().map(|Factors { a, b, finish, .. }| (a, b, finish)).zip(dtypes);
        all = match super::kernels::gemm_beside(parts.collect()) {
            Ok(y) => return y,
            Err(rest) => rest
                .into_iter()
                .zip(computes)
                .map(|((a, b, finish), compute)| Factors { a, b, compute, finish })
                .collect(),
        };
    }
    Tensor::cat(all.into_iter().map(Factors::product).collect(), 1)
}

/// What no kernel finishes.
fn by_itself<const D: usize>(a: Tensor<D>, b: Tensor<D>, finish: Finish<D>) -> Tensor<D> {
    let Finish { out, scale, more, add, bias } = finish;
    let mut y = plain(a, b);
    if more.is_none() && scale == 1.0 && add.is_none() && bias.is_none() {
        return to(y, out);
    }
    let wide = if out == DType::F64 { out } else { DType::F32 };
    y = to(y, wide);
    if let Some([p, q]) = more {
        y = y + to(plain(p, q), wide);
    }
    if scale != 1.0 {
        y = y * scale;
    }
    if let Some(add) = add {
        y = y + to(add, wide);
    }
    if let Some(bias) = bias {
        y = y + to(bias, wide).unsqueeze();
    }
    to(y, out)
}

/// The product in the narrower dtype of its factors. Burn promotes nothing, so the other one is cast.
fn plain<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    let narrow = factors(a.dtype(), b.dtype(), Compute::Fp32);
    let (a, b) = (to(a, narrow), to(b, narrow));
    #[cfg(feature = "cube")]
    if let Some(y) = super::kernels::product(&a, &b) {
        return y;
    }
    a.matmul(b)
}

/// `a b` of one dtype, in that.
pub(super) fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>, compute: Compute) -> Tensor<D> {
    let out = a.dtype();
    product(a, b, compute, Finish::new(out))
}

/// `x W^T`, to be made.
pub(super) fn forward_factors(
    x: Tensor<2>,
    weight: &Tensor<2>,
    compute: Compute,
    finish: Finish<2>,
) -> Factors {
    Factors { a: x, b: weight.clone().transpose(), compute, finish }
}

/// `x W^T`.
pub(super) fn forward(x: Tensor<2>, weight: &Tensor<2>, compute: Compute, finish: Finish<2>) -> Tensor<2> {
    forward_factors(x, weight, compute, finish).product()
}

/// `dy W`, the input's gradient.
pub(super) fn of_input(dy: Tensor<2>, weight: &Tensor<2>, compute: Compute, finish: Finish<2>) -> Tensor<2> {
    product(dy, weight.clone(), compute, finish)
}

/// `dy^T x`, the weight's gradient.
pub(super) fn of_weight(dy: Tensor<2>, x: Tensor<2>, compute: Compute, finish: Finish<2>) -> Tensor<2> {
    product(dy.transpose(), x, compute, finish)
}
