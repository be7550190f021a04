//! One rank of a run: its group, its part of the parameters, its model.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::{Group, World};
use burnish_config::{RankOptions, ReduceWhen};
use burnish_core::{Parameter, Registry};
use burnish_models::{Exporter, Model, ModelError, Parallel, Reloaded, RowSource, to_device, to_host};
use burnish_ops::AnyTensor;
use burnish_store::HostTensor;
use burnish_tp::Tp;
use burnish_zero::{Plan, Policy, Stage, Store, Unit, Work};

use crate::TrainError;
use crate::checkpointing::Resumed;
use crate::optimizer::{muon, work};
use crate::qk_clip::LogitClip;
use crate::ranks::axes;
use crate::setup::Setup;

/// A rank with everything that it trains.
pub(crate) struct Rank<'a> {
    pub(crate) setup: &'a Setup,
    /// What it computes on, and its place among this process's devices.
    pub(crate) device: Device,
    pub(crate) place: usize,
    /// All ranks; the order of the scalars that travel once a step.
    pub(crate) world: Group,
    /// The ranks that take other rows of the batch.
    pub(crate) dp: Group,
    /// The ranks that share each layer.
    pub(crate) tp: Tp,
    pub(crate) parallel: Option<Arc<Parallel>>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: Arc<Store>,
    pub(crate) model: Model,
    pub(crate) exporter: Exporter,
    pub(crate) logit_clip: Option<LogitClip>,
}

impl<'a> Rank<'a> {
    /// Reads this rank's part of the parameters: from `resumed` what trains, from the model's folder the rest.
    pub(crate) fn new(
        setup: &'a Setup,
        world: &World,
        resumed: Option<&Resumed>,
    ) -> Result<Self, TrainError> {
        let size = setup.options.ranks.tp_size;
        let (place, device) = setup.devices.of(world.rank());
        let device = device.clone();
        let (dp, tp) = axes(world, size)?;
        let planned = setup.planned_over(&tp, dp.size())?;
        let registry = planned.local_registry();
        let muon = muon(&setup.options.training, &setup.options.muon);
        let work = |index: usize, _: &Parameter| work(muon.as_ref(), planned.registry().at(index));
        let plan = Arc::new(plan(&registry, planned.units(), dp.size(), &setup.options.ranks, work)?);
        plan.agree(&dp)?;
        let exporter = planned.exporter();
        let files = resumed.map(|r| Reloaded::open(&exporter, r.checkpoint.path())).transpose()?;
        let parallel = planned.parallel().cloned();
        let load = |index: usize, rows: Range<usize>| -> Result<AnyTensor, TrainError> {
            let parameter = planned.registry().at(index);
            if let (Some(resumed), Some(files), true) = (resumed, &files, parameter.trainable) {
                let read = |rows: Range<usize>| resumed.value(parameter, files, rows);
                return Ok(to_device(planned.local(index, rows, read)?, &device));
            }
            let whole = size == 1 && rows.len() == parameter.shape.first().copied().unwrap_or(1);
            if parameter.trainable || !whole {
                return Ok(to_device(planned.local_rows(index, rows)?, &device));
            }
            setup.frozen.get(place, index, || Ok(to_device(planned.local_rows(index, rows)?, &device)))
        };
        let store = Arc::new(Store::new(plan.clone(), &dp, &device, load)?);
        planned.make_initial()?;
        let world = world.group().channel("loop");
        let clip =
            setup.options.muon.muon_qk_clip.map(|tau| Ok::<_, ModelError>((planned.qk_clip()?, tau as f32)));
        let clip = clip.transpose()?;
        let model = planned.into_model(store.clone());
        let peaks = || model.decoder.logit_peaks();
        let logit_clip = clip.map(|(clip, tau)| LogitClip { clip, peaks: peaks(), tau });
        Ok(Self { setup, device, place, world, dp, tp, parallel, plan, store, model, exporter, logit_clip })
    }

    /// Whether this rank speaks and writes for all.
    pub(crate) fn leads(&self) -> bool {
        self.world.rank() == 0
    }

    /// What this rank writes of the model's own files, as it is now: later updates do not change it.
    ///
    /// # Errors
    /// If an update has taken a value.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, TrainError> {
        let registry = self.plan.registry();
        let mut values = Vec::with_capacity(registry.len());
        for (index, parameter) in registry.iter().enumerate() {
            let exported = !self.exporter.is_adapter() || parameter.trainable;
            values.push(if exported && parameter.alias_of.is_none() {
                let (rows, value) = self.store.saved_rows(index)?;
                self.written(index, rows, value)?
            } else {
                Vec::new()
            });
        }
        Ok(Snapshot { values })
    }
}

impl Rank<'_> {
    /// The rows of the whole parameter that this rank writes, from its rows of its part: none when another rank has
    /// them, several ranges of a matrix that packs blocks. Every rank calls it with what it holds, parameter by parameter.
    pub(crate) fn written(
        &self,
        index: usize,
        rows: Range<usize>,
        value: AnyTensor,
    ) -> Result<Vec<(Range<usize>, AnyTensor)>, TrainError> {
        let Some(parallel) = &self.parallel else { return Ok(vec![(rows, value)]) };
        let placement = parallel.placement(index);
        let (rank, name) = (self.tp.rank(), &self.plan.registry().at(index).name);
        if let (Some(1..), Some(split)) = (placement.dim(), placement.split()) {
            return Ok(vec![self.tp.columns_to_rows(&value, rows, split, name)?]);
        }
        let row: usize = value.shape().iter().skip(1).product();
        let piece = |(own, whole): (Range<usize>, Range<usize>)| {
            if own == rows {
                return (whole, value.clone());
            }
            let mut shape = value.shape();
            shape[0] = own.len();
            let elements = (own.start - rows.start) * row..(own.end - rows.start) * row;
            (whole, value.piece(elements, &shape))
        };
        Ok(placement.saved_rows(rank, &rows).into_iter().map(piece).collect())
    }
}

/// A rank's rows of what goes into a model's files, by parameter.
pub(crate) struct Snapshot {
    values: Vec<Vec<(Range<usize>, AnyTensor)>>,
}

impl Snapshot {
    /// This rank's rows of a parameter, range by range.
    pub(crate) fn pieces(&self, index: usize) -> &[(Range<usize>, AnyTensor)] {
        &self.values[index]
    }
}

impl RowSource for Snapshot {
    fn rows(&self, index: usize) -> Vec<Range<usize>> {
        self.values[index].iter().map(|(rows, _)| rows.clone()).collect()
    }

    fn read(&self, index: usize) -> Result<HostTensor, ModelError> {
        let mut pieces = self.values[index].iter().map(|(_, piece)| to_host(piece));
        let mut all = pieces.next().expect("invariant: only what has rows is read");
        for more in pieces {
            all.shape[0] += more.shape[0];
            all.bytes.extend(more.bytes);
        }
        Ok(all)
    }
}

/// The plan that options describe, for the parameters and units of a model.
///
/// # Errors
/// If a dtype cannot travel.
pub(crate) fn plan(
    registry: &Registry,
    units: Vec<(String, Vec<usize>)>,
    ranks: usize,
    options: &RankOptions,
    work: impl Fn(usize, &Parameter) -> Option<Work>,
) -> Result<Plan, TrainError> {
    let last = units.len().saturating_sub(1);
    let unit = |(at, (name, parameters)): (usize, (String, Vec<usize>))| {
        // The embedding and the head: used outside the blocks, or at both ends when tied.
        if at == 0 || at == last { Unit::root(name, parameters) } else { Unit::block(name, parameters) }
    };
    let units = units.into_iter().enumerate().map(unit).collect();
    let stage = Stage::try_from(options.zero_stage.0).unwrap_or_default();
    let mut policy = Policy::new(stage);
    policy.reduce = match options.zero_reduce {
        ReduceWhen::Auto => policy.reduce,
        ReduceWhen::Step => burnish_zero::ReduceWhen::Step,
        ReduceWhen::MicroBatch => burnish_zero::ReduceWhen::MicroBatch,
    };
    policy.persist_below = options.stage3_param_persistence_threshold;
    policy.keep_root = options.stage3_keep_root;
    policy.bucket_elements = options.reduce_bucket_size;
    policy.prefetch = options.stage3_prefetch;
    Ok(Plan::with_owners(registry, units, ranks, policy, work)?)
}
