//! `RankAllocation`: which singular values of AdaLoRA's modules are left, by what a run's steps say of their importance.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use burnish_comm::{Bucket, Op, Reduction, Traffic};
use burnish_core::{Dtype, Registry};
use burnish_models::{Orthogonality, to_device};
use burnish_ops::AnyTensor;
use burnish_optim::{Clipped, Gradients, ParamStorage};
use burnish_peft::{
    Allotment, AllottedRanks, Change, ChangeSite, LoraConfig, LoraPlan, PeftError, PeftMethod, RankAllocator,
    RankPattern,
};
use burnish_weight_files::HostTensor;

use crate::TrainError;
use crate::rank::Rank;
use crate::rank::resumed::{Resumed, SENSITIVITY, UNCERTAINTY};

/// What a run keeps of importance, of this rank's rows.
pub(crate) struct RankAllocation {
    allocator: RankAllocator,
    modules: Vec<Module>,
    averages: BTreeMap<usize, Averages>,
}

/// A module's parameters: A, B and its singular values.
struct Module {
    values: String,
    parts: [usize; 3],
    rank: usize,
}

/// A parameter's gradient, and what it is multiplied by.
pub(crate) struct Found {
    index: usize,
    gradient: AnyTensor,
    factor: f32,
}

/// Moving averages of a parameter's importance, and of how far it was from them.
struct Averages {
    sensitivity: AnyTensor,
    uncertainty: AnyTensor,
}

impl RankAllocation {
    /// Of a run of so many steps, if its adapter's ranks are allocated.
    pub(crate) fn of(
        rank: &Rank<'_>,
        total: u64,
        resumed: Option<&Resumed>,
    ) -> Result<Option<Self>, TrainError> {
        let Some(plan) = &rank.model.plan else { return Ok(None) };
        let Some(PeftMethod::AdaLora(own)) = &plan.config.method else { return Ok(None) };
        let modules = modules(plan, rank);
        let allocator = RankAllocator::new(own, own.total_step.unwrap_or(total), modules.len())?;
        *rank.allotted() = Some(AllottedRanks { total_step: allocator.total_step(), pattern: None });
        let mut allocation = Self { allocator, modules, averages: BTreeMap::new() };
        if let Some(resumed) = resumed {
            allocation.restore(rank, resumed)?;
        }
        Ok(Some(allocation))
    }

    fn restore(&mut self, rank: &Rank<'_>, resumed: &Resumed) -> Result<(), TrainError> {
        let pattern = serde_json::from_value(resumed.ours()["rank_pattern"].clone()).ok().flatten();
        rank.set_rank_pattern(pattern);
        for index in self.modules.iter().flat_map(|module| module.parts) {
            let name = &rank.plan.registry().at(index).name;
            let rows = rank.held_rows(index);
            if rows.is_empty() || !resumed.checkpoint.contains(name, SENSITIVITY) {
                continue;
            }
            let shape = rank.whole_shape(index);
            let read = |slot| -> Result<AnyTensor, TrainError> {
                let of = |rows| resumed.checkpoint.read_rows_as(name, slot, Dtype::F32, &shape, rows);
                Ok(to_device(rank.local(index, rows.clone(), of)?, &rank.device))
            };
            let averages = Averages { sensitivity: read(SENSITIVITY)?, uncertainty: read(UNCERTAINTY)? };
            self.averages.insert(index, averages);
        }
        Ok(())
    }

    /// What a step counted from 0 will be measured by: the gradients with which the optimizer is about to step.
    pub(crate) fn gradients(&self, gradients: &Gradients<Clipped>, step: u64) -> Vec<Found> {
        if !self.allocator.measures(step) {
            return Vec::new();
        }
        let found = |index: usize| {
            let (gradient, factor) = gradients.of(index)?;
            Some(Found { index, gradient: gradient.clone(), factor })
        };
        self.modules.iter().flat_map(|module| module.parts).filter_map(found).collect()
    }

    /// After the optimizer has stepped, and before others hear of it: importance, and singular values that fall. Every rank
    /// calls it.
    pub(crate) fn after_step(
        &mut self,
        rank: &Rank<'_>,
        gradients: Vec<Found>,
        step: u64,
    ) -> Result<(), TrainError> {
        for found in gradients {
            if !rank.held_rows(found.index).is_empty() {
                self.measure(rank, &found)?;
            }
        }
        match self.allocator.at(step) {
            Allotment::All => return Ok(()),
            Allotment::Of(budget) => {
                let scores = self.scores(rank)?;
                let mut kept = self.allocator.kept(&scores, budget).into_iter();
                let of = |module: &Module| (module.values.clone(), kept.by_ref().take(module.rank).collect());
                let pattern = self.modules.iter().map(of).collect();
                rank.set_rank_pattern(Some(pattern));
                if !self.allocator.measures(step) {
                    self.averages.clear();
                }
            }
            Allotment::AsBefore => {}
        }
        self.mask(rank)
    }

    /// Moves the averages of a parameter by its value times its gradient.
    fn measure(&mut self, rank: &Rank<'_>, found: &Found) -> Result<(), TrainError> {
        let Found { index, gradient, factor } = found;
        let index = *index;
        let value = rank.store.take(index);
        rank.store.put(index, value.clone());
        let now = (value.rank::<2>()? * (gradient.rank::<2>()? * *factor)).abs();
        let [sensitivity, uncertainty] = self.allocator.smoothing();
        let known = match self.averages.get(&index) {
            Some(known) => [known.sensitivity.rank::<2>()?, known.uncertainty.rank::<2>()?],
            None => [now.zeros_like(), now.zeros_like()],
        };
        let [mean, spread] = known;
        let mean = mean * sensitivity as f32 + now.clone() * (1.0 - sensitivity) as f32;
        let apart = (now - mean.clone()).abs();
        let spread = spread * uncertainty as f32 + apart * (1.0 - uncertainty) as f32;
        let averages = Averages { sensitivity: AnyTensor::new(mean), uncertainty: AnyTensor::new(spread) };
        self.averages.insert(index, averages);
        Ok(())
    }

    /// The importance of each singular value of all modules: its own, and the means of its vectors'. The same on all ranks.
    fn scores(&self, rank: &Rank<'_>) -> Result<Vec<f32>, TrainError> {
        let mut scores = vec![0.0_f64; self.modules.iter().map(|module| module.rank).sum()];
        let mut first = 0;
        for module in &self.modules {
            let own = &mut scores[first..first + module.rank];
            for (part, &index) in module.parts.iter().enumerate() {
                let Some(known) = self.averages.get(&index) else { continue };
                let score = known.sensitivity.rank::<2>()? * known.uncertainty.rank::<2>()?;
                // Every row is one rank's.
                let (rows, piece) = rank.store.saved_slot(index, AnyTensor::new(score));
                if rows.is_empty() {
                    continue;
                }
                let (piece, of_b) = (piece.to_f32(), part == 1);
                let width = piece.len() / rows.len();
                let all = rank.whole_shape(index)[usize::from(!of_b)] as f64;
                // What ranks that share layers have both is one's to count.
                let counted = rank.parallel.as_ref().map(|p| p.layout(index).counted(rank.axes.all.rank()));
                let counts = |dim: usize, at: usize| {
                    counted.as_ref().is_none_or(|own| own.ranges(dim).iter().any(|own| own.contains(&at)))
                };
                let columns: Vec<usize> = (0..width).filter(|&column| counts(1, column)).collect();
                for (row, values) in rows.zip(piece.chunks_exact(width)).filter(|(row, _)| counts(0, *row)) {
                    for &column in &columns {
                        own[if of_b { column } else { row }] += f64::from(values[column]) / all;
                    }
                }
            }
            first += module.rank;
        }
        // In the precision of the gradients that they are of.
        let own = Bucket::new(scores.into_iter().map(|score| score as f32).collect());
        let all = rank.world.all_reduce(own, Reduction::Sum, "importance of singular values").wait()?;
        rank.axes.all.check()?;
        Ok(all.into_vec())
    }

    /// Makes singular values zero that are not left.
    fn mask(&self, rank: &Rank<'_>) -> Result<(), TrainError> {
        let Some(pattern) = rank.rank_pattern() else { return Ok(()) };
        for module in &self.modules {
            let index = module.parts[2];
            let rows = rank.held_rows(index);
            let Some(kept) = pattern.get(&module.values).filter(|_| !rows.is_empty()) else { continue };
            let values = rank.store.take(index).to_f32();
            let masked = values.iter().zip(&kept[rows.clone()]).map(|(x, &kept)| if kept { *x } else { 0.0 });
            let masked = HostTensor::from_f32(&masked.collect::<Vec<_>>(), &[rows.len(), 1], Dtype::F32)
                .map_err(PeftError::from)?;
            rank.store.put(index, to_device(masked, &rank.device));
        }
        Ok(())
    }

    /// This rank's rows of all averages.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &'static str, AnyTensor)> {
        self.averages.iter().flat_map(|(&index, known)| {
            let slots = [(SENSITIVITY, &known.sensitivity), (UNCERTAINTY, &known.uncertainty)];
            slots.map(|(slot, tensor)| (index, slot, tensor.clone()))
        })
    }
}

impl Rank<'_> {
    fn allotted(&self) -> MutexGuard<'_, Option<AllottedRanks>> {
        self.allotted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What pulls AdaLoRA's factors towards orthogonal ones in a share of a step, and the weight of all of it.
    pub(crate) fn orthogonality(&self, share: f64) -> Option<(Arc<Orthogonality>, f64)> {
        let plan = self.model.plan.as_ref()?;
        let Some(PeftMethod::AdaLora(own)) = &plan.config.method else { return None };
        let factors = 2 * plan.changes.len();
        let weight = own.orth_reg_weight;
        let pull = Orthogonality::new(factors, (weight * share) as f32);
        let pull = match &self.parallel {
            Some(parallel) => pull.over(&self.axes.tp, parallel),
            None => pull,
        };
        Some((Arc::new(pull), weight))
    }

    /// The shape of a parameter, of which ranks that share layers may have parts.
    fn whole_shape(&self, index: usize) -> Vec<usize> {
        match &self.parallel {
            Some(parallel) => parallel.layout(index).shape().to_vec(),
            None => self.plan.registry().at(index).shape.clone(),
        }
    }

    /// Which singular values are left, once an allotment was made.
    pub(crate) fn rank_pattern(&self) -> Option<RankPattern> {
        self.allotted().as_ref()?.pattern.clone()
    }

    fn set_rank_pattern(&self, pattern: Option<RankPattern>) {
        if let Some(own) = &mut *self.allotted() {
            own.pattern = pattern;
        }
    }

    /// Puts the ranks of a checkpoint's adapter back.
    pub(crate) fn rank_pattern_of(&self, checkpoint: &Path) -> Result<(), TrainError> {
        if self.allotted().is_some()
            && let Some(PeftMethod::AdaLora(own)) = LoraConfig::read(checkpoint)?.method
        {
            self.set_rank_pattern(own.rank_pattern);
        }
        Ok(())
    }
}

/// What is kept of a parameter whose importance is measured, in fp32, beside the optimizer's.
pub(crate) const AVERAGES: [&str; 2] = [SENSITIVITY, UNCERTAINTY];

/// The parameters whose importance is measured.
pub(crate) fn allocated(plan: Option<&LoraPlan>, registry: &Registry) -> BTreeSet<usize> {
    let parts = plan.into_iter().flat_map(singular).flat_map(|site| &site.parts);
    parts.filter_map(|part| registry.index_of(&part.name)).collect()
}

/// The traffic of a step that allots ranks, beside that of every step, over so many ranks.
pub(crate) fn traffic_of_allotment(plan: Option<&LoraPlan>, ranks: usize) -> Traffic {
    let values: usize = plan.into_iter().flat_map(singular).map(|site| site.parts[2].shape[0]).sum();
    let mut traffic = Traffic::default();
    if ranks > 1 && values > 0 {
        traffic.add(Op::AllReduce, Dtype::F32, 1, values as u64);
    }
    traffic
}

/// The modules with singular values.
fn singular(plan: &LoraPlan) -> impl Iterator<Item = &ChangeSite> {
    plan.changes.iter().filter(|site| matches!(site.change, Change::Singular { .. }))
}

/// The modules of a plan.
fn modules(plan: &LoraPlan, rank: &Rank<'_>) -> Vec<Module> {
    let of = |site: &ChangeSite| {
        let index = |at: usize| rank.plan.registry().index_of(&site.parts[at].name);
        let parts = [index(0)?, index(1)?, index(2)?];
        Some(Module { values: site.parts[2].name.clone(), parts, rank: site.parts[2].shape[0] })
    };
    singular(plan).filter_map(of).collect()
}
