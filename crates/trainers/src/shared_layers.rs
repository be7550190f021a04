//! What ranks that share layers do once a step: gradients that are addends, and the norm.

use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{Gradients, Reduced};
use burnish_tp::{Addend, Gradient};

use crate::TrainError;
use crate::rank::Rank;

impl Rank<'_> {
    /// Sums what each tensor-parallel rank has an addend of.
    pub(crate) fn summed(&self, gradients: Gradients<Reduced>) -> Result<Gradients<Reduced>, TrainError> {
        let Some(parallel) = &self.parallel else { return Ok(gradients) };
        let mut entries = gradients.into_entries();
        let registry = self.store.registry();
        // The same parameters on every rank, also where only one has an addend (biases of row-parallel layers).
        for (index, parameter) in registry.iter().enumerate() {
            let partial =
                matches!(parallel.placement(index).gradient(), Gradient::Partial | Gradient::Shared);
            let rows = self.plan.rows(index, self.dp.rank());
            if partial && parameter.trainable && parameter.alias_of.is_none() && !rows.is_empty() {
                let at = entries.binary_search_by_key(&index, |(index, _)| *index);
                if let Err(at) = at {
                    let mut shape = parameter.shape.clone();
                    shape[0] = rows.len();
                    let zeros = vec![0.0_f32; shape.iter().product()];
                    entries.insert(at, (index, AnyTensor::from_elements(zeros, &shape, &self.sft.device)));
                }
            }
        }
        let mut addends: Vec<Addend<'_>> = entries
            .into_iter()
            .map(|(index, gradient)| Addend {
                name: &registry.at(index).name,
                placement: parallel.placement(index),
                rows: self.plan.rows(index, self.dp.rank()),
                gradient,
            })
            .collect();
        self.tp.sum_partial(&mut addends)?;
        let index = |name: &str| registry.index_of(name).expect("invariant: named by the registry");
        Ok(Gradients::summed(addends.into_iter().map(|a| (index(a.name), a.gradient)).collect()))
    }

    /// The global sum of squares, each logical element counted once.
    pub(crate) fn sum_squares(&self, squares: &[(usize, f64)]) -> Result<f64, TrainError> {
        let Some(parallel) = &self.parallel else { return Ok(self.store.sum_squares(squares)?) };
        // A shared key or value head is one rank's to count, as a replicated parameter is.
        let counted = |index: usize| !parallel.placement(index).counted(self.tp.rank()).is_empty();
        let own: Vec<(usize, f64)> = squares.iter().copied().filter(|(index, _)| counted(*index)).collect();
        let own = self.store.sum_squares(&own)?;
        Ok(self.tp.sum_f64(&[own], "gradient norm")?[0])
    }
}
