//! Once-a-step collectives of tensor-parallel ranks: partial gradients and the gradient norm.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use burnish_comm::Bucket;
use burnish_models::{Parallel, to_host};
use burnish_ops::{AnyTensor, Parameters};
use burnish_optim::{Gradients, Reduced};
use burnish_tp::{Gradient, PartialGrad, TpError, TpLayout, TrafficEstimate};
use burnish_zero::Plan;

use crate::TrainError;
use crate::rank::Rank;

/// The trained parameters of which each tensor-parallel rank has addends of the gradient, where the data-parallel rank
/// `dp` has rows of them: the same on every tensor-parallel rank, also where only one has an addend (biases of
/// row-parallel layers).
fn addends(parallel: &Parallel, plan: &Plan, dp: usize) -> Vec<usize> {
    let summed = |&index: &usize| {
        let partial = matches!(parallel.tp_layout(index).gradient(), Gradient::Partial | Gradient::Shared);
        partial && !parallel.is_of_exchanged_experts(index)
    };
    trained(plan, dp).filter(summed).collect()
}

/// The trained parameters of which the data-parallel rank `dp` has rows.
fn trained(plan: &Plan, dp: usize) -> impl Iterator<Item = usize> {
    let registry = plan.registry();
    let own = move |&index: &usize| {
        let parameter = registry.at(index);
        parameter.trainable && parameter.alias_of.is_none() && !plan.rows(index, dp).is_empty()
    };
    (0..registry.len()).filter(own)
}

/// The same, of which each of several groups with other tokens has addends; with how those lie over the groups, on the rank
/// `rank` of all.
fn over_groups(parallel: &Parallel, plan: &Plan, dp: usize, rank: usize) -> Vec<(usize, TpLayout)> {
    trained(plan, dp).filter_map(|index| Some((index, parallel.over_groups(index, rank)?))).collect()
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
    let groups = over_groups(parallel, plan, 0, 0);
    if let Some((_, layout)) = groups.first() {
        let mut sent = TrafficEstimate::new(layout.layout().ranks());
        sent.sum_partial(0, groups.iter().map(|(i, layout)| (name(*i), layout, plan.rows(*i, 0))))?;
        forecast.merge(&sent);
    }
    if parallel.ranks() > 1 {
        let given = addends(parallel, plan, 0).into_iter();
        forecast.sum_partial(0, given.map(|i| (name(i), parallel.tp_layout(i), plan.rows(i, 0))))?;
    }
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
        let (dp, rank) = (self.dp.rank(), self.axes.all.rank());
        let groups = over_groups(parallel, &self.plan, dp, rank);
        let addends = addends(parallel, &self.plan, dp);
        for &index in addends.iter().chain(groups.iter().map(|(index, _)| index)) {
            if let Err(at) = entries.binary_search_by_key(&index, |(index, _)| *index) {
                let mut shape = registry.at(index).shape.clone();
                shape[0] = self.plan.rows(index, dp).len();
                let zeros = vec![0.0_f32; shape.iter().product()];
                entries.insert(at, (index, AnyTensor::from_elements(zeros, &shape, &self.device)));
            }
        }
        let (experts, mut shared): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(index, _)| parallel.is_of_exchanged_experts(*index));
        fn part<'a>(
            rank: &'a Rank<'_>,
            index: usize,
            gradient: AnyTensor,
            layout: &'a TpLayout,
        ) -> PartialGrad<'a> {
            let (name, rows) = (&rank.plan.registry().at(index).name, rank.plan.rows(index, rank.dp.rank()));
            PartialGrad { name, layout, rows, gradient }
        }
        if let Some(ep) = &self.axes.ep {
            // Of what is no expert's every group has a gradient.
            let own = shared.into_iter().zip(&groups);
            let mut between: Vec<_> =
                own.map(|((index, gradient), (_, layout))| part(self, index, gradient, layout)).collect();
            ep.sum_partial(&mut between)?;
            let sums = between.into_iter().map(|addend| addend.gradient);
            shared = groups.iter().map(|(index, _)| *index).zip(sums).collect();
        }
        let mut shared: Vec<_> = shared
            .into_iter()
            .map(|(index, gradient)| part(self, index, gradient, parallel.tp_layout(index)))
            .collect();
        self.axes.tp.sum_partial(&mut shared)?;
        let index = |name: &str| registry.index_of(name).expect("invariant: named by the registry");
        let partly = |a: &&PartialGrad<'_>| {
            let packed = a.layout.layout().split().is_some_and(|(_, split)| split.is_packed());
            packed && a.layout.gradient() == Gradient::Shared
        };
        let place = self.axes.tp.rank();
        let counted = shared.iter().filter(partly).map(|a| (index(a.name), a.squares(place))).collect();
        let mut entries: Vec<_> = shared.into_iter().map(|a| (index(a.name), a.gradient)).collect();
        entries.extend(experts);
        entries.sort_by_key(|(index, _)| *index);
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
        let counts = vec![digests.len(); self.axes.all.size()];
        let group = self.axes.all.group().channel("replicas");
        let all = group.all_gather_v(Bucket::new(digests), &counts, "replicas").wait()?;
        for (at, &index) in indices.iter().enumerate() {
            let ranks: Vec<usize> =
                (1..self.axes.all.size()).filter(|&r| all.of(r)[at] != all.of(0)[at]).collect();
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
        let counted = |index: usize| !parallel.layout(index).counted(self.axes.all.rank()).is_empty();
        let own = |&(index, all): &(usize, f64)| (index, partly.get(&index).copied().unwrap_or(all));
        let own: Vec<(usize, f64)> = squares.iter().filter(|(index, _)| counted(*index)).map(own).collect();
        let own = self.store.sum_squares(&own)?;
        Ok(self.axes.all.sum_f64(&[own], "gradient norm")?[0])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
