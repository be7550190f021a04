//! `Orthogonality`: how far AdaLoRA's factors are from orthogonal ones, a term of the loss, and its pull on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, OpsError, apply};

/// The mean over factors of `|P P^T - I|` (of `P^T P` where columns are the vectors), as passes find it, and a gradient of it
/// on each.
#[derive(Debug)]
pub struct Orthogonality {
    factors: usize,
    coefficient: f32,
    found: Mutex<BTreeMap<usize, AnyTensor>>,
}

/// Whose vectors a factor's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    Rows,
    Columns,
}

impl Orthogonality {
    /// Of so many factors; it is multiplied by `coefficient` where it pulls.
    #[must_use]
    pub fn new(factors: usize, coefficient: f32) -> Self {
        Self { factors, coefficient, found: Mutex::default() }
    }

    /// The mean without its coefficient.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let sum: f64 = found.values().map(|norm| f64::from(norm.to_f32()[0])).sum();
        sum / self.factors.max(1) as f64
    }

    /// The factor at `index` of the registry, as it is; its gradient is also that of the mean.
    pub(crate) fn on(
        self: &Arc<Self>,
        index: usize,
        factor: &AnyTensor,
        vectors: Vectors,
    ) -> Result<AnyTensor, OpsError> {
        let own = self.clone();
        apply("orthogonality", std::slice::from_ref(factor), move |plain, _| {
            let p = plain[0].rank::<2>()?;
            let turned = p.clone().transpose();
            let gram =
                if vectors == Vectors::Rows { p.clone().matmul(turned) } else { turned.matmul(p.clone()) };
            let unit = Tensor::<2>::eye(gram.dims()[0], &gram.device());
            let apart = gram - unit;
            // Along dimensions: a sum of all at once is atomic on GPUs, in another order each time.
            let squares = (apart.clone() * apart.clone()).sum_dim(1).sum_dim(0);
            let norm = squares.reshape([1]).sqrt();
            // The same once more where a block is recomputed.
            own.found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(index, AnyTensor::new(norm.clone()));
            let factor = own.coefficient / own.factors.max(1) as f32;
            let backward = move |upstream: AnyTensor| {
                let upstream = upstream.rank::<2>().expect("invariant: of the rank of the output");
                // No direction leads away from what is orthogonal.
                let zero = norm.clone().equal_elem(0.0);
                let by = (norm.recip() * (2.0 * factor)).mask_fill(zero, 0.0).unsqueeze::<2>();
                let pull = if vectors == Vectors::Rows { apart.matmul(p) } else { p.matmul(apart) };
                vec![Some(AnyTensor::new(upstream + pull * by))]
            };
            Ok((plain[0].clone(), Box::new(backward)))
        })
    }
}
