//! xIELU (Huang and Schlag, arXiv:2411.13010): a feed-forward's activation with two learned numbers.

use burn::tensor::{DType, FloatDType, Tensor};

use crate::gpu::total;
use crate::{AnyTensor, OpsError, apply};

/// The part of the slope that is fixed.
const BETA: f32 = 0.5;
/// Inputs above it count as it in the exponential.
const EPS: f32 = -1e-6;

/// `p x^2 + x / 2` above zero, `n (exp(min(x, -1e-6)) - 1 - x) + x / 2` below, where `p = softplus(alpha_p)` and
/// `n = 1 / 2 + softplus(alpha_n)`.
///
/// # Shapes
/// - x: `[tokens, features]`, alpha_p and alpha_n: `[1]`, output: `[tokens, features]`
///
/// # Errors
/// If shapes do not fit.
pub fn xielu(x: &AnyTensor, alpha_p: &AnyTensor, alpha_n: &AnyTensor) -> Result<AnyTensor, OpsError> {
    const OP: &str = "xielu";
    crate::check::matrix(x)?;
    for (what, alpha) in [("alpha_p", alpha_p), ("alpha_n", alpha_n)] {
        if alpha.shape() != [1] {
            return Err(OpsError::Shape { op: OP, what, got: alpha.shape(), expected: vec![1] });
        }
    }
    #[cfg(feature = "flex")]
    if crate::flex::holds([x, alpha_p, alpha_n]) {
        return crate::flex::elementwise::xielu(x, alpha_p, alpha_n);
    }
    apply(OP, &[x.clone(), alpha_p.clone(), alpha_n.clone()], |plain, wanted| {
        let x = plain[0].rank::<2>()?;
        let dtype = x.dtype();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let x = to(x, wide);
        let alphas = [to(plain[1].rank::<1>()?, wide), to(plain[2].rank::<1>()?, wide)];
        let [p, n] = alphas.clone().map(|alpha| softplus(alpha).reshape([1, 1]));
        let n = n + BETA;
        let up = x.clone().greater_elem(0.0);
        let below = exp_minus_one(x.clone().clamp_max(EPS)) - x.clone();
        let y = (below * n.clone()).mask_where(up, x.clone().powi_scalar(2) * p.clone()) + x.clone() * BETA;
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = to(upstream.rank::<2>().expect("invariant: of the rank of the output"), wide);
            let up = x.clone().greater_elem(0.0);
            let dx = wanted[0].then(|| {
                // The exponential stands still above `EPS`.
                let exponential = x.clone().exp().mask_fill(x.clone().greater_elem(EPS), 0.0);
                let slope = ((exponential - 1.0) * n).mask_where(up.clone(), x.clone() * p * 2.0) + BETA;
                AnyTensor::new(to(dy.clone() * slope, dtype))
            });
            let number = |of: Tensor<2>, alpha: &Tensor<1>| {
                let slope = softplus_slope(alpha.clone());
                AnyTensor::new(total((dy.clone() * of).sum_dim(1)) * slope)
            };
            let of_p = wanted[1]
                .then(|| number(x.clone().powi_scalar(2).mask_fill(up.clone().bool_not(), 0.0), &alphas[0]));
            let of_n = wanted[2].then(|| {
                let below = exp_minus_one(x.clone().clamp_max(EPS)) - x.clone();
                number(below.mask_fill(up.clone(), 0.0), &alphas[1])
            });
            vec![dx, of_p, of_n]
        };
        Ok((AnyTensor::new(to(y, dtype)), Box::new(backward)))
    })
}

/// `exp(x) - 1` of negative numbers, to the last bits also of small ones: a stream of zeros (the padding token's) has
/// nothing else, and the next norm makes it large.
fn exp_minus_one(x: Tensor<2>) -> Tensor<2> {
    let mut series = x.clone() / 10.0 + 1.0;
    for n in (2..10).rev() {
        series = series * x.clone() / f64::from(n) + 1.0;
    }
    let small = x.clone().greater_elem(-0.5);
    (x.clone().exp() - 1.0).mask_where(small, series * x)
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: Tensor<1>) -> Tensor<1> {
    x.clone().clamp_min(0.0) + (x.abs().neg().exp() + 1.0).log()
}

/// Its derivative.
fn softplus_slope(x: Tensor<1>) -> Tensor<1> {
    (x.neg().exp() + 1.0).recip()
}

/// In another float dtype.
fn to<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    let into = match dtype {
        DType::F64 => FloatDType::F64,
        DType::BF16 => FloatDType::BF16,
        DType::F16 => FloatDType::F16,
        _ => FloatDType::F32,
    };
    if x.dtype() == dtype { x } else { x.cast(into) }
}
