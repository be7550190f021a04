//! A matrix by columns, whose gradient is put together once.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Tensor};

use crate::gpu::to;
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "split_columns";

/// Neighbouring columns of `x`, one piece behind the other.
///
/// Burn's slices would each make a gradient as wide as `x`, zeros but for their own columns, and add all of them; here each piece leaves
/// its own, and `x` gets them beside each other.
///
/// # Shapes
/// - x: `[tokens, columns]`; output: `[tokens, width]` for each of `widths`
///
/// # Errors
/// If the widths are not those of all columns.
pub fn split_columns(x: &AnyTensor, widths: &[usize]) -> Result<Vec<AnyTensor>, OpsError> {
    let [tokens, columns] = crate::check::matrix(x)?;
    if widths.iter().sum::<usize>() != columns {
        let (got, expected) = (widths.to_vec(), vec![columns]);
        return Err(OpsError::Shape { op: OP, what: "widths", got, expected });
    }
    let gradients: Arc<Mutex<Vec<Option<Tensor<2>>>>> = Arc::new(Mutex::new(vec![None; widths.len()]));
    let (left, of_widths) = (gradients.clone(), widths.to_vec());
    let whole = apply(OP, std::slice::from_ref(x), |plain, _| {
        let (dtype, device) = (plain[0].burn_dtype(), plain[0].device());
        let backward = move |_| {
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            let pieces = left.iter_mut().zip(of_widths).map(|(piece, width)| match piece.take() {
                Some(piece) => piece,
                None => Tensor::zeros([tokens, width], (&device, dtype)),
            });
            vec![Some(AnyTensor::new(Tensor::cat(pieces.collect(), 1)))]
        };
        Ok((plain[0].clone(), Box::new(backward)))
    })?;
    let mut first = 0;
    let mut pieces = Vec::with_capacity(widths.len());
    for (at, &width) in widths.iter().enumerate() {
        let (begin, gradients) = (first, gradients.clone());
        pieces.push(apply(OP, std::slice::from_ref(&whole), |plain, _| {
            let piece = plain[0].rank::<2>()?.narrow(1, begin, width);
            let (dtype, device) = (plain[0].burn_dtype(), plain[0].device());
            let backward = move |upstream: AnyTensor| {
                let upstream = to(upstream.rank::<2>().expect("invariant: of a piece's shape"), dtype);
                gradients.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(upstream);
                // That there is a gradient: what it is was left.
                vec![Some(AnyTensor::new(Tensor::<1>::zeros([1], (&device, DType::F32))))]
            };
            Ok((AnyTensor::new(piece), Box::new(backward)))
        })?);
        first += width;
    }
    Ok(pieces)
}
