//! A scaled branch, plus a residual.

use crate::{AnyTensor, OpsError, apply};

/// `factor * x + residual`.
///
/// # Shapes
/// - x, residual and output: `[tokens, features]`
///
/// # Errors
/// If shapes do not fit.
pub fn scaled_sum(x: &AnyTensor, factor: f32, residual: Option<&AnyTensor>) -> Result<AnyTensor, OpsError> {
    const OP: &str = "scaled_sum";
    let shape = crate::check::matrix(x)?;
    if let Some(residual) = residual.filter(|r| r.shape() != shape) {
        let (got, expected) = (residual.shape(), shape.to_vec());
        return Err(OpsError::Shape { op: OP, what: "residual", got, expected });
    }
    #[cfg(feature = "flex")]
    if crate::flex::holds(std::iter::once(x).chain(residual)) {
        return crate::flex::elementwise::scaled_sum(x, factor, residual);
    }
    let inputs: Vec<AnyTensor> = std::iter::once(x).chain(residual).cloned().collect();
    apply(OP, &inputs, |plain, wanted| {
        let x = plain[0].rank::<2>()?;
        let y = if factor == 1.0 { x } else { x * factor };
        let y = match plain.get(1) {
            Some(residual) => y + residual.rank::<2>()?,
            None => y,
        };
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let scaled = || {
                let upstream = upstream.rank::<2>().expect("invariant: of the rank of the output");
                AnyTensor::new(if factor == 1.0 { upstream } else { upstream * factor })
            };
            let of = |(i, &wanted): (usize, &bool)| {
                wanted.then(|| if i == 0 { scaled() } else { upstream.clone() })
            };
            wanted.iter().enumerate().map(of).collect()
        };
        Ok((AnyTensor::new(y), Box::new(backward)))
    })
}
