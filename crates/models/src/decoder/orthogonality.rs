//! `Orthogonality`: how far AdaLoRA's factors are from orthogonal ones, a term of the loss, and its pull on them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Tensor, TensorData};
use burnish_ops::{AnyTensor, OpsError, apply};
use burnish_tp::{Gradient, Tp};

use crate::Parallel;

/// The mean over factors of `|P P^T - I|` (of `P^T P` where columns are the vectors), as passes find it, and a gradient of it
/// on each.
///
/// # Collectives
/// One sum over the ranks that share layers for each factor that they divide, wherever its layer is made ready.
pub struct Orthogonality {
    factors: usize,
    coefficient: f32,
    found: Mutex<BTreeMap<usize, AnyTensor>>,
    /// The ranks that share layers, and how.
    over: Option<(Tp, Arc<Parallel>)>,
}

/// What a rank has to do with a factor.
struct Counted {
    /// Those that have its other lines.
    sums: Option<Tp>,
    /// Whether it pulls.
    pulls: bool,
    /// Ones at the lines that it counts; `None` where it counts all.
    lines: Option<Tensor<2>>,
}

impl Default for Counted {
    fn default() -> Self {
        Self { sums: None, pulls: true, lines: None }
    }
}

/// Whose vectors a factor's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    Rows,
    Columns,
}

impl fmt::Debug for Orthogonality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { factors, coefficient, .. } = self;
        f.debug_struct("Orthogonality")
            .field("factors", factors)
            .field("coefficient", coefficient)
            .finish_non_exhaustive()
    }
}

impl Orthogonality {
    /// Of so many factors; it is multiplied by `coefficient` where it pulls.
    #[must_use]
    pub fn new(factors: usize, coefficient: f32) -> Self {
        Self { factors, coefficient, found: Mutex::default(), over: None }
    }

    /// The same, of a model whose layers these ranks share: each pulls where its gradient is to be summed from.
    #[must_use]
    pub fn over(self, tp: &Tp, parallel: &Arc<Parallel>) -> Self {
        Self { over: Some((tp.clone(), parallel.clone())), ..self }
    }

    /// Which lines of the factor at `index`, along the dimension that vectors lie along, this rank counts: `[1, n]` or
    /// `[n, 1]` of ones and zeros, `None` where it counts all.
    fn counted(&self, index: usize, factor: &Tensor<2>, vectors: Vectors) -> Counted {
        let Some((tp, parallel)) = &self.over else { return Counted::default() };
        let layout = parallel.tp_layout(index);
        match layout.gradient() {
            Gradient::Complete => Counted::default(),
            // An addend of the whole: one rank's.
            Gradient::Partial => Counted { sums: None, pulls: tp.rank() == 0, lines: None },
            Gradient::Own | Gradient::Shared => {
                let along = if vectors == Vectors::Rows { 1 } else { 0 };
                let mut own = vec![0.0_f32; factor.dims()[along]];
                let counted = layout.layout().counted(tp.rank());
                counted.ranges(along).iter().for_each(|lines| own[lines.clone()].fill(1.0));
                let mut shape = [1, 1];
                shape[along] = own.len();
                let lines = own.contains(&0.0).then(|| {
                    Tensor::<1>::from_data(TensorData::from(own.as_slice()), &factor.device()).reshape(shape)
                });
                Counted { sums: Some(tp.clone()), pulls: true, lines }
            }
        }
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
            let mut p = plain[0].rank::<2>()?;
            let Counted { sums, pulls, lines } = own.counted(index, &p, vectors);
            if let Some(lines) = lines {
                p = p * lines;
            }
            let turned = p.clone().transpose();
            let gram =
                if vectors == Vectors::Rows { p.clone().matmul(turned) } else { turned.matmul(p.clone()) };
            let gram = match sums {
                Some(tp) => tp.summed(&AnyTensor::new(gram), "orthogonality").rank::<2>()?,
                None => gram,
            };
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
                if !pulls {
                    return vec![Some(upstream)];
                }
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
