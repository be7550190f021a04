//! Once-a-step collectives of tensor-parallel ranks: partial gradients and the gradient norm.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use burnish_comm::Bucket;
use burnish_models::{Parallel, to_host};
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{Gradients, Reduced};
use burnish_tp::{Gradient, PartialGrad, TpError, TrafficEstimate};
use burnish_zero::Plan;

use crate::TrainError;
use crate::rank::Rank;

/// The trained parameters of which each tensor-parallel rank has addends of the gradient, where the data-parallel rank
/// `dp` has rows of them: the same on every tensor-parallel rank, also where only one has an addend (biases of
/// row-parallel layers).
fn addends(parallel: &Parallel, plan: &Plan, dp: usize) -> Vec<usize> {
    let registry = plan.registry();
    let summed = |index: usize| {
        let parameter = registry.at(index);
        let partial = matches!(parallel.tp_layout(index).gradient(), Gradient::Partial | Gradient::Shared);
        partial && parameter.trainable && parameter.alias_of.is_none() && !plan.rows(index, dp).is_empty()
    };
    (0..registry.len()).filter(|&index| summed(index)).collect()
}

/// Adds what [`Rank::summed`] and [`Rank::sum_squares`] move once a step, on the first rank of all.
///
/// # Errors
/// If ranks that share rows would not give the same ones.
pub(crate) fn add_step(
    forecast: &mut TrafficEstimate,
    parallel: &Parallel,
    plan: &Plan,
) -> Result<(), TpError> {
    let name = |index: usize| plan.registry().at(index).name.as_str();
    let given = addends(parallel, plan, 0).into_iter();
    forecast.sum_partial(0, given.map(|i| (name(i), parallel.tp_layout(i), plan.rows(i, 0))))?;
    forecast.sum_f64(1);
    Ok(())
}

impl Rank<'_> {
    /// Sums what each tensor-parallel rank has an addend of. With it, by index, the squares that this rank counts of
    /// gradients of which it counts some rows and other ranks the rest: packed matrices with shared heads.
    pub(crate) fn summed(
        &self,
        gradients: Gradients<Reduced>,
    ) -> Result<(Gradients<Reduced>, BTreeMap<usize, f64>), TrainError> {
        let Some(parallel) = &self.parallel else { return Ok((gradients, BTreeMap::new())) };
        let mut entries = gradients.into_entries();
        let registry = self.store.registry();
        for index in addends(parallel, &self.plan, self.dp.rank()) {
            if let Err(at) = entries.binary_search_by_key(&index, |(index, _)| *index) {
                let mut shape = registry.at(index).shape.clone();
                shape[0] = self.plan.rows(index, self.dp.rank()).len();
                let zeros = vec![0.0_f32; shape.iter().product()];
                entries.insert(at, (index, AnyTensor::from_elements(zeros, &shape, &self.device)));
            }
        }
        let mut addends: Vec<PartialGrad<'_>> = entries
            .into_iter()
            .map(|(index, gradient)| PartialGrad {
                name: &registry.at(index).name,
                layout: parallel.tp_layout(index),
                rows: self.plan.rows(index, self.dp.rank()),
                gradient,
            })
            .collect();
        self.tp.sum_partial(&mut addends)?;
        let index = |name: &str| registry.index_of(name).expect("invariant: named by the registry");
        let partly = |a: &&PartialGrad<'_>| {
            let packed = a.layout.layout().split().is_some_and(|(_, split)| split.is_packed());
            packed && a.layout.gradient() == Gradient::Shared
        };
        let counted =
            addends.iter().filter(partly).map(|a| (index(a.name), a.squares(self.tp.rank()))).collect();
        let entries = addends.into_iter().map(|a| (index(a.name), a.gradient)).collect();
        Ok((Gradients::summed(entries), counted))
    }

    /// That ranks which share layers have the same bits of every parameter that each has whole. Every rank calls it at the
    /// same place.
    ///
    /// # Errors
    /// Names the first parameter that differs: the run has drifted apart, and what it would save is wrong.
    pub(crate) fn check_replicas(&self) -> Result<(), TrainError> {
        let Some(parallel) = &self.parallel else { return Ok(()) };
        let registry = self.plan.registry();
        let whole = |index: usize| parallel.layout(index).dim().is_none();
        let indices: Vec<usize> = (0..registry.len())
            .filter(|&i| registry.at(i).trainable && registry.at(i).alias_of.is_none() && whole(i))
            .collect();
        let mut digests = Vec::with_capacity(indices.len());
        for &index in &indices {
            let mut hasher = DefaultHasher::new();
            hasher.write(&to_host(&self.store.saved_rows(index)?.1).bytes);
            digests.push(hasher.finish());
        }
        let counts = vec![digests.len(); self.tp.size()];
        let group = self.tp.group().channel("replicas");
        let all = group.all_gather_v(Bucket::new(digests), &counts, "replicas").wait()?;
        for (at, &index) in indices.iter().enumerate() {
            let ranks: Vec<usize> = (1..self.tp.size()).filter(|&r| all.of(r)[at] != all.of(0)[at]).collect();
            if !ranks.is_empty() {
                let parameter = registry.at(index).name.clone();
                return Err(TrainError::Drifted { parameter, ranks });
            }
        }
        Ok(())
    }

    /// The global sum of squares, each logical element counted once; `partly` as [`Self::summed`] gives it.
    pub(crate) fn sum_squares(
        &self,
        squares: &[(usize, f64)],
        partly: &BTreeMap<usize, f64>,
    ) -> Result<f64, TrainError> {
        let Some(parallel) = &self.parallel else { return Ok(self.store.sum_squares(squares)?) };
        // A shared key or value head is one rank's to count, as a replicated parameter is.
        let counted = |index: usize| !parallel.layout(index).counted(self.tp.rank()).is_empty();
        let own = |&(index, all): &(usize, f64)| (index, partly.get(&index).copied().unwrap_or(all));
        let own: Vec<(usize, f64)> = squares.iter().filter(|(index, _)| counted(*index)).map(own).collect();
        let own = self.store.sum_squares(&own)?;
        Ok(self.tp.sum_f64(&[own], "gradient norm")?[0])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
