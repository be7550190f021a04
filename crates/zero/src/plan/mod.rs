//! `Plan`: owners of rows, buckets and their order, fixed before anything is allocated.

mod agree;
mod describe;
mod memory;
mod settle;
mod traffic;

use std::collections::BTreeSet;
use std::ops::Range;

use burnish_core::{Dtype, Layout, Parameter, Region, Registry, Split};
use burnish_quant::Quantized;
use serde::{Deserialize, Serialize};

pub use describe::{BucketRow, Description, TrafficLine, UnitRow};
pub(crate) use memory::IN_FLIGHT;
pub use memory::Memory;

use self::settle::{settle, targets};
use crate::bucket::{BucketPlan, Purpose, fill};
use crate::owners::owners;
use crate::prefetch::{UnitInfo, Window};
use crate::rows::{by_rows, bytes_of, rows_shape, whole};
use crate::{AllToAllPlan, Matrix, OrthoCost, PlanError, Policy, ReduceWhen, Stage, Unit};

/// What a rank keeps of a parameter between uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamStorageMode {
    /// All of it.
    Whole,
    /// Its own rows.
    Sharded,
}

/// How a parameter's gradient is summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradReduction {
    /// It has none: the parameter is frozen.
    Never,
    /// Every rank gets all of it (also: there is one rank).
    Everywhere,
    /// Every rank gets its own rows.
    ByRows,
}

/// Where one parameter is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The registry index whose storage this is: its own, or that of the parameter it is tied to.
    pub target: usize,
    /// The unit it belongs to.
    pub unit: usize,
    /// What a rank keeps.
    pub residency: ParamStorageMode,
    /// How its gradient is summed.
    pub summed: GradReduction,
    /// Whose rows (of what the registry's ranks hold) are whose.
    pub layout: Layout,
}

/// Who owns what, and what travels when.
///
/// A plan is a pure function of the registry, the units, the world size and the policy, so every rank makes the same;
/// [`Plan::agree`] verifies that they did.
#[derive(Clone, Debug)]
pub struct Plan {
    registry: Registry,
    units: Vec<Unit>,
    /// Units that the caller listed; the ones behind hold what nobody reads in a step.
    listed: usize,
    /// Per unit, the other units in which the targets of its tied parameters are.
    tied: Vec<Vec<usize>>,
    world: usize,
    policy: Policy,
    placements: Vec<Placement>,
    /// What orthogonalising costs, of the matrices that are orthogonalised.
    works: Vec<Option<OrthoCost>>,
    /// How these come together, where they are dealt by rows.
    routes: Option<AllToAllPlan>,
    gathers: Vec<Vec<BucketPlan>>,
    reduces: Vec<Vec<BucketPlan>>,
    publishes: Vec<BucketPlan>,
}

impl Plan {
    /// The plan of a model over `world` ranks. Allocates no tensors. A parameter that no unit lists is not expected to be
    /// read in a step and gets a unit of its own behind the others.
    ///
    /// # Errors
    /// If two units list a parameter, a dtype cannot travel, or there are no ranks.
    pub fn new(
        registry: &Registry,
        units: Vec<Unit>,
        world: usize,
        policy: Policy,
    ) -> Result<Self, PlanError> {
        Self::with_owners(registry, units, world, policy, |_, _| None)
    }

    /// The same for an optimizer that needs whole matrices: `work` says by registry index which trained parameters those
    /// are, and what each costs.
    ///
    /// At stages 0 to 2 they have one owner each ([`owners`](crate::owners)), so that nothing travels beyond what [`Self::new`] moves;
    /// the other parameters' remaining rows then go where least is. At stage 3 they are dealt by rows as all others, and
    /// meet at their owners in the step ([`MatrixAllToAll`](crate::MatrixAllToAll)).
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_owners(
        registry: &Registry,
        units: Vec<Unit>,
        world: usize,
        policy: Policy,
        work: impl Fn(usize, &Parameter) -> Option<OrthoCost>,
    ) -> Result<Self, PlanError> {
        if world == 0 {
            return Err(PlanError::NoRanks);
        }
        let targets = targets(registry)?;
        let (listed, given) = (units.len(), units.clone());
        let (units, unit_of) = settle(registry, units, &targets)?;
        let others = |(number, unit): (usize, &Unit)| -> Vec<usize> {
            let of: BTreeSet<usize> = unit.parameters.iter().map(|&i| unit_of[i]).collect();
            of.into_iter().filter(|&other| other != number).collect()
        };
        let tied = given.iter().enumerate().map(others).collect();
        // What trains is balanced by itself: its share of the optimizer's state counts most.
        // What tensor parallelism shards is dealt without regard to sizes, which differ between its ranks: they must find
        // the rows of what they replicate, or share, on the same data-parallel ranks.
        let (mut trained, mut frozen) = (vec![0; world], vec![0; world]);
        let trains = |(index, parameter): (usize, &Parameter)| {
            (parameter.trainable && targets[index] == index).then(|| work(index, parameter)).flatten()
        };
        let works: Vec<Option<OrthoCost>> = registry.iter().enumerate().map(trains).collect();
        let mut owner_of = vec![None; registry.len()];
        if policy.stage != Stage::Three {
            let some: Vec<(usize, OrthoCost)> =
                works.iter().enumerate().filter_map(|(i, w)| w.map(|w| (i, w))).collect();
            let dealt = owners(&some.iter().map(|(_, w)| *w).collect::<Vec<_>>(), world);
            for ((index, work), owner) in some.into_iter().zip(dealt) {
                owner_of[index] = Some(owner);
                trained[owner] += work.elements;
            }
        }
        let mut placements: Vec<Placement> = Vec::with_capacity(registry.len());
        for (index, parameter) in registry.iter().enumerate() {
            let target = targets[index];
            if target != index {
                placements.push(placements[target].clone());
                continue;
            }
            let loads = if parameter.trainable { &mut trained } else { &mut frozen };
            let logical = parameter.layout.as_ref().is_none_or(Layout::is_replicated);
            let layout = by_rows(&parameter.shape, |rows, row| match owner_of[index] {
                Some(owner) => Split::owned(rows, world, owner),
                None if logical => Split::by_load(rows, row, loads).expect("invariant: at least one rank"),
                None => Split::from_rank(rows, world, index).expect("invariant: at least one rank"),
            });
            let alone = world == 1;
            let large = parameter.elements() >= policy.persist_below.max(1);
            let sharded = !alone && policy.stage == Stage::Three && large;
            let summed = match (parameter.trainable, alone || policy.stage == Stage::Zero) {
                (false, _) => GradReduction::Never,
                (true, true) => GradReduction::Everywhere,
                (true, false) => GradReduction::ByRows,
            };
            let residency = if sharded { ParamStorageMode::Sharded } else { ParamStorageMode::Whole };
            placements.push(Placement { target, unit: unit_of[index], residency, summed, layout });
        }
        let mut plan = Self {
            registry: registry.clone(),
            units,
            listed,
            tied,
            world,
            policy,
            placements,
            works,
            routes: None,
            gathers: Vec::new(),
            reduces: Vec::new(),
            publishes: Vec::new(),
        };
        plan.fill();
        if plan.world > 1 && plan.policy.stage == Stage::Three && plan.works.iter().any(Option::is_some) {
            let holdings: Vec<Vec<Matrix>> = (0..world).map(|rank| plan.matrices(rank)).collect();
            let routes = AllToAllPlan::new(&holdings, plan.policy.bucket_elements);
            plan.routes = Some(routes.expect("invariant: the rows of all ranks are those of the matrix"));
        }
        Ok(plan)
    }

    fn fill(&mut self) {
        let cap = self.policy.bucket_elements;
        let store = |&i: &usize| self.registry.at(i).precision.store;
        let reduce = |&i: &usize| self.registry.at(i).precision.reduce;
        let (mut gathers, mut reduces) = (Vec::new(), Vec::new());
        for unit in &self.units {
            let own = |i: &usize| self.placements[*i].layout.clone();
            let sharded = unit.parameters.iter().filter(|&&i| self.sharded(i));
            let gathered = |i: &usize| match self.packed_row(*i) {
                Some(bytes) => (*i, Dtype::U8, bytes_of(&self.placements[*i].layout, bytes)),
                None => (*i, store(i), own(i)),
            };
            gathers.push(fill(&unit.name, Purpose::Gather, cap, sharded.map(gathered)));
            // An all-reduce has one part: everything.
            let part = |i: &usize| match self.placements[*i].summed {
                GradReduction::ByRows => own(i),
                _ => whole(&self.registry.at(*i).shape),
            };
            let summed = unit.parameters.iter().filter(|&&i| self.trains(i) && self.world > 1);
            reduces.push(fill(&unit.name, Purpose::Reduce, cap, summed.map(|i| (*i, reduce(i), part(i)))));
        }
        let published = self.units.iter().flat_map(|u| &u.parameters).filter(|&&i| self.published(i));
        let publishes = fill(
            "weights",
            Purpose::Publish,
            cap,
            published.map(|i| (*i, store(i), self.placements[*i].layout.clone())),
        );
        (self.gathers, self.reduces, self.publishes) = (gathers, reduces, publishes);
    }

    /// The parameters.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The units, with every parameter in exactly one, tied ones as their target.
    #[must_use]
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.world
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Where the parameter at `index` is; a tied one is where its target is.
    ///
    /// # Panics
    /// If there is no such parameter.
    #[must_use]
    pub fn placement(&self, index: usize) -> &Placement {
        &self.placements[index]
    }

    /// What the matrix at `index` costs its owner, if [`Self::with_owners`] was told that it is one.
    #[must_use]
    pub fn work(&self, index: usize) -> Option<OrthoCost> {
        self.works[index]
    }

    /// How matrices come together at stage 3, and what that moves beside [`Self::traffic`]; `None` where nothing does.
    ///
    /// Under tensor parallelism they come together over more ranks than this plan's: there it is an estimate.
    #[must_use]
    pub fn routes(&self) -> Option<&AllToAllPlan> {
        self.routes.as_ref()
    }

    /// What `rank` holds of every matrix that [`Self::with_owners`] was told of, of the shapes in this plan's registry: where
    /// they come together.
    #[must_use]
    pub fn matrices(&self, rank: usize) -> Vec<Matrix> {
        self.matrices_within(rank, |parameter| Region::whole(&parameter.shape))
    }

    /// The same of the logical matrices, where the registry is that of one rank of other axes (tensor parallelism):
    /// `outer`, in the layouts of its parameters.
    #[must_use]
    pub fn logical_matrices(&self, rank: usize, outer: usize) -> Vec<Matrix> {
        self.matrices_within(rank, |parameter| match &parameter.layout {
            Some(layout) => layout.region(outer),
            None => Region::whole(&parameter.shape),
        })
    }

    fn matrices_within(&self, rank: usize, outer: impl Fn(&Parameter) -> Region) -> Vec<Matrix> {
        let matrix = |index: usize| {
            let (parameter, work) = (self.registry.at(index), self.works[index]?);
            let held = outer(parameter).along(0, &[self.rows(index, rank)]);
            Some(Matrix::new(index, &parameter.name, work.flops, &held))
        };
        self.own().filter_map(matrix).collect()
    }

    /// The rows of the parameter at `index` whose gradient, masters and moments `rank` has.
    #[must_use]
    pub fn rows(&self, index: usize, rank: usize) -> Range<usize> {
        let placement = &self.placements[index];
        match placement.summed {
            GradReduction::Everywhere => 0..placement.layout.all_rows(),
            _ => placement.layout.rows(rank),
        }
    }

    /// The rows of the parameter at `index` that `rank` writes to a checkpoint: every row is one rank's, at every stage.
    #[must_use]
    pub fn saved_rows(&self, index: usize, rank: usize) -> Range<usize> {
        self.placements[index].layout.rows(rank)
    }

    /// The rows of the parameter at `index` that `rank` keeps in memory.
    #[must_use]
    pub fn kept_rows(&self, index: usize, rank: usize) -> Range<usize> {
        let placement = &self.placements[index];
        match placement.residency {
            ParamStorageMode::Whole => 0..placement.layout.all_rows(),
            ParamStorageMode::Sharded => placement.layout.rows(rank),
        }
    }

    /// The registry with the shapes of what `rank` updates: what an optimizer's state is made from.
    #[must_use]
    pub fn local_registry(&self, rank: usize) -> Registry {
        let mut local = self.registry.clone();
        for (index, parameter) in local.iter_mut().enumerate() {
            parameter.shape = match self.placements[index].summed {
                GradReduction::ByRows => rows_shape(&parameter.shape, self.rows(index, rank).len()),
                _ => parameter.shape.clone(),
            };
        }
        local
    }

    /// The buckets that make a unit's sharded weights whole.
    #[must_use]
    pub fn gathers(&self, unit: usize) -> &[BucketPlan] {
        &self.gathers[unit]
    }

    /// The buckets in which a unit's gradients are summed.
    #[must_use]
    pub fn reduces(&self, unit: usize) -> &[BucketPlan] {
        &self.reduces[unit]
    }

    /// The buckets in which updated rows go to every rank after a step.
    #[must_use]
    pub fn publishes(&self) -> &[BucketPlan] {
        &self.publishes
    }

    /// The order in which units are reduced, on every rank: blocks as backward meets them, then roots.
    #[must_use]
    pub fn reduce_order(&self) -> Vec<usize> {
        let of = |root: bool| (0..self.units.len()).rev().filter(move |&u| self.units[u].root == root);
        of(false).chain(of(true)).filter(|&u| !self.reduces[u].is_empty()).collect()
    }

    /// The order in which a micro-batch reads units when blocks are recomputed: all forward, blocks again backward.
    #[must_use]
    pub fn reads(&self, recompute: bool) -> Vec<usize> {
        let backward = (0..self.listed).rev().filter(|&u| recompute && !self.units[u].root);
        (0..self.listed)
            .chain(backward)
            .flat_map(|u| std::iter::once(u).chain(self.tied[u].clone()))
            .collect()
    }

    /// The units that are gathered when a pass reads these parameters, group by group ([`Parameters::read_all`] of each).
    ///
    /// [`Parameters::read_all`]: burnish_ops::Parameters::read_all
    #[must_use]
    pub fn units_of(&self, groups: &[Vec<usize>]) -> Vec<usize> {
        let mut units = Vec::new();
        for group in groups {
            let mut seen = BTreeSet::new();
            let sharded = group.iter().filter(|&&i| self.sharded(self.placements[i].target));
            units.extend(sharded.map(|&i| self.placements[i].unit).filter(|&unit| seen.insert(unit)));
        }
        units
    }

    /// Whether gradients are summed while `last` or another micro-batch runs (otherwise: at the step).
    pub(crate) fn reduces_in(&self, last: bool) -> bool {
        self.world > 1
            && self.policy.stage >= Stage::Two
            && (last || self.policy.reduce == ReduceWhen::MicroBatch)
    }

    pub(crate) fn window(&self) -> Window {
        let panes = self
            .units
            .iter()
            .zip(&self.gathers)
            .enumerate()
            .map(|(number, (unit, buckets))| UnitInfo {
                sharded: !buckets.is_empty(),
                root: unit.root && number < self.listed,
                guessed: number < self.listed,
            })
            .collect();
        Window::new(panes, self.policy.keep_root, self.policy.prefetch)
    }

    pub(crate) fn sharded(&self, index: usize) -> bool {
        self.placements[index].residency == ParamStorageMode::Sharded
    }

    /// Bytes in which a row (dimension 0) of the sharded parameter at `index` is gathered as it rests, in fewer bits; `None`
    /// where rows are gathered as they are read: of a dense parameter, or of one whose rows or columns begin within blocks.
    pub(crate) fn packed_row(&self, index: usize) -> Option<usize> {
        let parameter = self.registry.at(index);
        let quantization = parameter.quantization?;
        let [rows, row] = parameter.as_matrix(1);
        let begins = |held: &Region| match held.ranges(held.shape().len() - 1) {
            [columns] => columns.start.is_multiple_of(quantization.block(row)),
            several => several.is_empty(),
        };
        let layout = parameter.layout.as_ref();
        let whole = layout.is_none_or(|layout| (0..layout.ranks()).all(|rank| begins(&layout.region(rank))));
        let bytes = Quantized::row_bytes(quantization, row).filter(|_| whole && parameter.shape.len() > 1)?;
        Some(rows * bytes)
    }

    pub(crate) fn trains(&self, index: usize) -> bool {
        self.placements[index].summed != GradReduction::Never
    }

    fn published(&self, index: usize) -> bool {
        self.placements[index].summed == GradReduction::ByRows && !self.sharded(index)
    }

    /// The parameters that have storage of their own, in index order.
    pub(crate) fn own(&self) -> impl Iterator<Item = usize> {
        (0..self.placements.len()).filter(|&i| self.placements[i].target == i)
    }
}

#[cfg(test)]
mod tests;
