//! The steps of recurrences: what each head forgets and learns by.

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use crate::gpu::{over_rows, to, wide, wide_dtype};
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "steps";
/// Beyond it the line that a softplus comes near to, as torch has it.
const LINE: f32 = 20.0;

/// `softplus(x + bias)` of each token's heads: `ln(1 + exp(x + bias))`.
///
/// # Shapes
/// - x: `[tokens, heads]`, bias: `[heads]`; output: `[tokens, heads]`, f32
///
/// # Errors
/// If shapes do not fit.
pub fn steps(x: &AnyTensor, bias: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let [_, heads] = crate::check::matrix(x)?;
    if bias.shape() != [heads] {
        return Err(OpsError::Shape { op: OP, what: "bias", got: bias.shape(), expected: vec![heads] });
    }
    apply(OP, &[x.clone(), bias.clone()], |plain, wanted| {
        let dtypes = [wide_dtype(&plain[1]), plain[0].burn_dtype()];
        let x: Tensor<2> = wide(&plain[0])?;
        let bias = to(plain[1].rank::<1>()?, x.dtype());
        let x = x + bias.unsqueeze();
        let soft = x.clone().clamp_max(LINE).exp().log1p();
        let y = soft.mask_where(x.clone().greater_elem(LINE), x.clone());
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = to(upstream.rank::<2>().expect("invariant: of the rank of the output"), x.dtype());
            let dx = dy * sigmoid(x);
            let of_bias = wanted[1].then(|| AnyTensor::new(to(over_rows(dx.clone()), dtypes[0])));
            vec![wanted[0].then(|| AnyTensor::new(to(dx, dtypes[1]))), of_bias]
        };
        Ok((AnyTensor::new(y), Box::new(backward)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burn::tensor::{DType, Device};

    use super::*;

    #[test]
    fn large_steps_are_a_line() {
        let of = |values: Vec<f32>, shape: &[usize]| AnyTensor::from_elements(values, shape, &Device::flex());
        let y = steps(&of(vec![0.0, 30.0, -30.0, 100.0], &[2, 2]), &of(vec![0.0, 1.0], &[2])).unwrap();
        let got = y.to_f32();
        let want = [2f32.ln(), 31.0, (-30f32).exp(), 101.0];
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 1e-6 * w), "{got:?}");
        assert_eq!(y.burn_dtype(), DType::F32);
        assert!(steps(&of(vec![0.0; 2], &[1, 2]), &of(vec![0.0], &[1])).is_err());
    }
}
