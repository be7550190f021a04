//! One rank of a run: its group, its part of the parameters, its model.

pub(crate) mod optimizer;
pub(crate) mod qk_clip;
pub(crate) mod rank_allocation;
pub(crate) mod resumed;
pub(crate) mod tp_gradients;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_comm::{Group, World};
use burnish_core::Split;
use burnish_data::Step;
use burnish_models::{
    Decoder, Exporter, Model, ModelAxes, ModelError, Parallel, Reloaded, RowSource, to_device, to_host,
};
use burnish_ops::AnyTensor;
use burnish_peft::AllottedRanks;
use burnish_weight_files::HostTensor;
use burnish_zero::{Kept, Plan, ShardedParams};

use crate::TrainError;
use crate::rank::qk_clip::LogitClip;
use crate::rank::resumed::Resumed;
use crate::ranks::Axes;
use crate::setup::Setup;

/// A rank with everything that it trains.
pub struct Rank<'a> {
    pub(crate) setup: &'a Setup,
    /// What it computes on, and its place among this process's devices.
    pub(crate) device: Device,
    pub(crate) place: usize,
    /// All ranks; the order of the scalars that travel once a step.
    pub(crate) world: Group,
    /// The ranks that take other rows of the batch.
    pub(crate) data: Group,
    /// Of those, the ones that have the same parts of the model; ZeRO's.
    pub(crate) dp: Group,
    /// The ranks that have one model between them: parts of each layer, or of experts alone.
    pub(crate) axes: ModelAxes,
    pub(crate) parallel: Option<Arc<Parallel>>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) store: Arc<ShardedParams>,
    pub(crate) model: Model,
    pub(crate) exporter: Exporter,
    pub(crate) logit_clip: Option<LogitClip>,
    /// What training has made of an adapter's ranks, where it allocates them.
    pub(crate) allotted: Mutex<Option<AllottedRanks>>,
}

impl<'a> Rank<'a> {
    /// Reads this rank's part of the parameters: from `resumed` what trains, from the model's folder the rest.
    pub(crate) fn new(
        setup: &'a Setup,
        world: &World,
        resumed: Option<&Resumed>,
    ) -> Result<Self, TrainError> {
        let (place, device) = setup.devices.of(world.rank());
        let device = device.clone();
        let Axes { data, dp, model: axes } = Axes::new(world, &setup.options.ranks)?;
        let planned = setup.planned_over(&axes, data.size())?;
        let registry = planned.local_registry();
        let plan = Arc::new(setup.sharding(&planned, &registry, dp.size())?);
        plan.agree(&dp)?;
        let exporter = planned.exporter();
        let files = resumed.map(|r| Reloaded::open(&exporter, r.checkpoint.path())).transpose()?;
        let parallel = planned.parallel().cloned();
        let work = planned.loading();
        let load = |index: usize, rows: Range<usize>| -> Result<Kept, TrainError> {
            work.advance(1);
            let parameter = planned.registry().at(index);
            if let (Some(resumed), Some(files), true) = (resumed, &files, parameter.trainable) {
                let read = |rows: Range<usize>| resumed.value(parameter, files, rows);
                return Ok(to_device(planned.local(index, rows, read)?, &device).into());
            }
            if parameter.trainable {
                return Ok(to_device(planned.local_rows(index, rows)?, &device).into());
            }
            setup.frozen.rows((place, &device), &planned, index, rows)
        };
        let store = Arc::new(ShardedParams::new(plan.clone(), &dp, &device, load)?);
        planned.make_initial()?;
        drop(work);
        let world = world.group().channel("loop");
        let clip =
            setup.options.muon.muon_qk_clip.map(|tau| Ok::<_, ModelError>((planned.qk_clip()?, tau as f32)));
        let clip = clip.transpose()?;
        let model = planned.into_model(store.clone());
        let peaks = || model.decoder.logit_peaks();
        let logit_clip = clip.map(|(clip, tau)| LogitClip { clip, peaks: peaks(), tau });
        let allotted = Mutex::default();
        Ok(Self {
            setup,
            device,
            place,
            world,
            data,
            dp,
            axes,
            parallel,
            plan,
            store,
            model,
            exporter,
            logit_clip,
            allotted,
        })
    }

    /// This rank's part of the model that trains.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.model.decoder
    }

    /// The run's setup: options, tokenizer, folders.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        self.setup
    }

    /// This rank's rows of a micro-batch of a step, as places in [`Step::rows`].
    #[must_use]
    pub fn places(&self, step: &Step, micro: usize) -> Range<usize> {
        step.slice(self.data.rank(), micro)
    }

    /// Whether what this rank finds in its rows counts: of ranks that share layers, and so rows, one's does.
    pub(crate) fn counts(&self) -> bool {
        self.axes.tp.rank() == 0
    }

    /// Whether this rank speaks and writes for all.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.world.rank() == 0
    }

    /// What this rank writes of the model's own files, as it is now: later updates do not change it. Every rank calls it.
    ///
    /// # Errors
    /// If an update has taken a value, or a rank fails.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, TrainError> {
        let registry = self.plan.registry();
        let mut values = Vec::with_capacity(registry.len());
        for (index, parameter) in registry.iter().enumerate() {
            values.push(if self.exporter.writes(parameter) && parameter.alias_of.is_none() {
                let (rows, value) = self.store.saved_rows(index)?;
                self.rows_to_write(index, rows, value)?
            } else {
                Vec::new()
            });
        }
        let names = registry.iter().map(|parameter| parameter.name.clone()).collect();
        let encoded = self.model.decoder.encoded_prompt()?;
        if encoded.is_some() {
            self.store.release();
            self.store.check()?;
        }
        let allotted = self.allotted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Snapshot { names, values, encoded: encoded.filter(|_| self.leads()), allotted })
    }
}

impl Rank<'_> {
    /// The rows of the whole parameter that this rank writes, from its rows of its part: none when another rank has
    /// them, several ranges of a matrix that packs blocks. Every rank calls it with what it holds, parameter by parameter.
    pub(crate) fn rows_to_write(
        &self,
        index: usize,
        rows: Range<usize>,
        value: AnyTensor,
    ) -> Result<Vec<(Range<usize>, AnyTensor)>, TrainError> {
        let Some(parallel) = &self.parallel else { return Ok(vec![(rows, value)]) };
        let layout = parallel.layout(index);
        let (rank, name) = (self.axes.all.rank(), &self.plan.registry().at(index).name);
        if let Some((1, split)) = layout.split().filter(|_| value.shape().len() == 2) {
            return Ok(vec![self.axes.all.columns_to_rows(&value, rows, split, name)?]);
        }
        if let Some((along @ 1.., split)) = layout.split() {
            // A row of a stack is a matrix: its elements one after another, of which a rank has some runs.
            let shape = value.shape();
            let (before, after): (usize, usize) =
                (shape[1..along].iter().product(), shape[along + 1..].iter().product());
            let split = Split::packed(&vec![split.scaled(after); before]).map_err(ModelError::from)?;
            // Of the shape alone: a rank whose rows others write has none.
            let width: usize = shape[1..].iter().product();
            let value = value.piece(0..shape[0] * width, &[shape[0], width]);
            return Ok(vec![self.axes.all.columns_to_rows(&value, rows, &split, name)?]);
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
        Ok(layout.saved_rows(rank, &rows).into_iter().map(piece).collect())
    }
}

impl Rank<'_> {
    /// The rows of a parameter that this rank's optimizer holds.
    pub(crate) fn held_rows(&self, index: usize) -> Range<usize> {
        self.plan.rows(index, self.dp.rank())
    }

    /// This rank's rows of its part of a parameter, from rows of the whole.
    pub(crate) fn local<E>(
        &self,
        index: usize,
        rows: Range<usize>,
        read: impl Fn(Range<usize>) -> Result<HostTensor, E>,
    ) -> Result<HostTensor, E> {
        match &self.parallel {
            Some(parallel) => parallel.read(index, self.axes.all.rank(), rows, read),
            None => read(rows),
        }
    }
}

/// A rank's rows of what goes into a model's files, by parameter.
pub(crate) struct Snapshot {
    names: Vec<String>,
    values: Vec<Vec<(Range<usize>, AnyTensor)>>,
    /// On the lead what an encoder of virtual tokens gave.
    encoded: Option<AnyTensor>,
    allotted: Option<AllottedRanks>,
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
        pieces.for_each(|more| all.append_rows(more));
        finite(all, || self.names[index].clone())
    }

    fn encoded_prompt(&self) -> Result<Option<HostTensor>, ModelError> {
        self.encoded
            .as_ref()
            .map(|values| finite(to_host(values), || "prompt_embeddings".to_owned()))
            .transpose()
    }

    fn allotted(&self) -> Option<&AllottedRanks> {
        self.allotted.as_ref()
    }
}

/// What is written, whose elements have to be numbers.
pub(crate) fn finite(tensor: HostTensor, name: impl FnOnce() -> String) -> Result<HostTensor, ModelError> {
    match tensor.not_finite() {
        None => Ok(tensor),
        Some((at, value)) => Err(ModelError::NotFinite { name: name(), value, at }),
    }
}
