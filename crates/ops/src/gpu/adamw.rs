//! AdamW in Burn operations, for any device; on CubeCL's in one launch for several parameters.

use burn::tensor::Tensor;

use super::{sum_rows, to, total, wide_dtype};
use crate::AnyTensor;
use crate::adamw::{Adam, AdamState};

/// Elements that are summed into one before sums are summed.
const ROW: usize = 4096;

/// See [`crate::adam_steps`]. Tensors are taken, not shared, so that a backend may write where they lie.
#[must_use]
pub fn adam_steps(all: Vec<(AnyTensor, AdamState, AnyTensor)>, h: &Adam) -> Vec<(AnyTensor, AdamState)> {
    #[cfg(feature = "cube")]
    let all = match super::kernels::adam_steps(all, h) {
        Ok(made) => return made,
        Err(back) => back,
    };
    all.into_iter().map(|(master, state, gradient)| adam_step(master, state, &gradient, h)).collect()
}

fn adam_step(master: AnyTensor, state: AdamState, gradient: &AnyTensor, h: &Adam) -> (AnyTensor, AdamState) {
    let own = |t: AnyTensor| Tensor::<1>::from_dispatch(t.dispatch());
    let (mut p, m, v) = (own(master), own(state.exp_avg), own(state.exp_avg_sq));
    let mut g = gradient.carrier() * h.grad_scale;
    if h.weight_decay != 0.0 {
        if h.decoupled {
            p = p * (1.0 - h.lr * h.weight_decay);
        } else {
            g = g + p.clone() * h.weight_decay;
        }
    }
    let m = m * h.beta1 + g.clone() * (1.0 - h.beta1);
    let v = v * h.beta2 + g.powi_scalar(2) * (1.0 - h.beta2);
    let (c1, c2) = (1.0 - h.beta1.powi(h.step as i32), 1.0 - h.beta2.powi(h.step as i32));
    let denominator = v.clone().sqrt() * (1.0 / c2.sqrt()) + h.eps;
    let p = p - m.clone() / denominator * (h.lr / c1);
    (AnyTensor::new(p), AdamState { exp_avg: AnyTensor::new(m), exp_avg_sq: AnyTensor::new(v) })
}

/// The sum of both. They are taken, not shared: a backend may add where one of them lies.
pub(crate) fn add(into: AnyTensor, other: AnyTensor) -> AnyTensor {
    let own = |t: AnyTensor| Tensor::<1>::from_dispatch(t.dispatch());
    AnyTensor::new(own(into) + own(other))
}

/// See [`crate::accumulate_all`].
pub(crate) fn add_all(pairs: Vec<(AnyTensor, AnyTensor)>) -> Vec<AnyTensor> {
    #[cfg(feature = "cube")]
    let pairs = match super::kernels::accumulate(pairs) {
        Ok(sums) => return sums,
        Err(back) => back,
    };
    pairs.into_iter().map(|(into, other)| add(into, other)).collect()
}

/// See [`crate::sums_of_squares`]. Rows are summed in f32, and sums of rows on the device too: the host reads one number
/// per tensor, all at once.
#[must_use]
pub fn sums_of_squares(tensors: &[&AnyTensor]) -> Vec<f64> {
    let wide = tensors.iter().any(|t| t.dtype() == Some(burnish_core::Dtype::F64));
    let sum = |t: &AnyTensor| -> Tensor<1> {
        let n: usize = t.shape().iter().product();
        let dtype = if wide { burn::tensor::DType::F64 } else { wide_dtype(t) };
        let device = t.plain().device();
        if n == 0 {
            return Tensor::zeros([1], (&device, dtype));
        }
        let flat: Tensor<1> = to(t.plain().piece(0..n, &[n]).carrier(), dtype);
        let whole = n / ROW * ROW;
        let mut sum = Tensor::zeros([1], (&device, dtype));
        if whole > 0 {
            let rows = flat.clone().narrow(0, 0, whole).reshape([whole / ROW, ROW]);
            sum = total(sum_rows(rows, true));
        }
        if whole < n {
            let rest = flat.narrow(0, whole, n - whole).reshape([1, n - whole]);
            sum = sum + sum_rows(rest, true);
        }
        sum
    };
    if tensors.is_empty() {
        return Vec::new();
    }
    let each = || Tensor::cat(tensors.iter().map(|t| sum(t)).collect(), 0);
    #[cfg(feature = "cube")]
    let sums = super::kernels::sums_of_squares(tensors).unwrap_or_else(each);
    #[cfg(not(feature = "cube"))]
    let sums = each();
    AnyTensor::new(sums).to_data().convert::<f64>().try_into_vec().expect("invariant: converted to f64")
}
