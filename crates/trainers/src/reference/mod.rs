//! The reference, whose log-probabilities a policy is compared with: the model as it is at the start of the run, or
//! another one.

pub(crate) mod ref_log_probs_cache;
pub(crate) mod reference_state;

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use burnish_config::groups::ReferenceOptions;
use burnish_core::Dtype;
use burnish_models::{Decoder, ForwardContext, Mode, ModelPlan, to_device};
use burnish_ops::{AnyTensor, Parameters};
use burnish_weight_files::HostTensor;
use burnish_zero::{Kept, Plan, ShardedParams};

use crate::forward::log_probs::log_probs;
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::setup::reference_folder::{ReferenceFolder, is_base};
use crate::setup::sharding::sharding_plan;
use crate::{MicroBatch, TrainError};

/// Where the reference's values are.
pub enum Reference {
    /// In the model, whose adapter is left out: it is fresh, and the base stands still.
    Base,
    /// In a store of their own, sharded as the model; what is frozen in it is shared.
    Copy(Box<Copied>),
}

/// Parameters as they were at the start, or as they were last moved; or another model's.
pub struct Copied {
    store: Arc<ShardedParams>,
    decoder: Decoder,
}

impl Reference {
    /// The reference of a run that begins, or goes on.
    ///
    /// A fresh adapter is left out, unless its start is made of the base (PiSSA, OLoRA, LoftQ) or rounds otherwise (DoRA), or parts
    /// of the base train along (biases): then, as with an adapter that was there before and with the whole model, what
    /// trains is copied. Another model is frozen and in its own dtypes, unless it moves.
    pub(crate) fn start(rank: &Rank<'_>, resumed: Option<&Resumed>) -> Result<Self, TrainError> {
        let other = rank.setup.reference.as_ref();
        if let Some(other) = other.filter(|other| !other.moves) {
            return Ok(Self::Copy(Box::new(Copied::frozen(rank, other)?)));
        }
        if other.is_none() && is_base(rank.model.plan.as_ref(), rank.setup.adapter.is_some()) {
            return Ok(Self::Base);
        }
        let load = |planned: &ModelPlan<'_>, index: usize, rows: Range<usize>| {
            let parameter = planned.registry().at(index);
            match resumed {
                None if other.is_some() => {
                    Ok(to_device(planned.local_rows(index, rows)?, &rank.device).into())
                }
                // What the model starts from is in it; an update does not change it in this copy.
                None => rank.read_kept(&rank.store, index, rows),
                Some(_) if !parameter.trainable => rank.read_kept(&rank.store, index, rows),
                Some(resumed) => {
                    let read = |rows: Range<usize>| -> Result<HostTensor, TrainError> {
                        match resumed.reference(parameter, rows.clone())? {
                            Some(moved) => Ok(moved),
                            None => Ok(planned.rows(index, rows)?),
                        }
                    };
                    Ok(to_device(planned.local(index, rows, read)?, &rank.device).into())
                }
            }
        };
        Ok(Self::Copy(Box::new(Copied::like(rank, load)?)))
    }

    /// The reference's log-probabilities of a micro-batch's targets.
    pub(crate) fn log_probs(
        &self,
        rank: &Rank<'_>,
        batch: &MicroBatch,
        temperature: f32,
    ) -> Result<Vec<f32>, TrainError> {
        let stats = match self {
            Self::Base => {
                let decoder = &rank.model.decoder;
                let pass = ForwardContext::new(decoder.parameters().clone(), Mode::Score, false);
                log_probs(decoder, batch, &pass, temperature)?.1
            }
            Self::Copy(copied) => {
                let decoder = &copied.decoder;
                let stats = log_probs(decoder, batch, &decoder.pass(Mode::Score), temperature)?.1;
                copied.store.check()?;
                stats
            }
        };
        rank.axes.all.check()?;
        Ok(stats.log_prob)
    }

    /// Drops what passes have gathered.
    pub(crate) fn release(&self, rank: &Rank<'_>) {
        rank.store.release();
        if let Self::Copy(copied) = self {
            copied.store.release();
        }
    }

    /// After `done` steps: moves towards the policy when that is due (TR-DPO, Gorbatovski et al., arXiv:2404.09656).
    pub(crate) fn moved(
        &mut self,
        rank: &Rank<'_>,
        options: &ReferenceOptions,
        done: u64,
    ) -> Result<(), TrainError> {
        let due = options.sync_ref_model && done.is_multiple_of(options.ref_model_sync_steps as u64);
        let Self::Copy(copied) = self else { return Ok(()) };
        if !due {
            return Ok(());
        }
        let alpha = options.ref_model_mixup_alpha;
        let load = |_: &ModelPlan<'_>, index: usize, rows: Range<usize>| {
            let old = rank.read_kept(&copied.store, index, rows.clone())?;
            match (old, rank.read_kept(&rank.store, index, rows)?) {
                (Kept::Tensor(old), Kept::Tensor(new)) if rank.plan.registry().at(index).trainable => {
                    Ok(mixed(&old, &new, alpha, &rank.device)?.into())
                }
                (old, _) => Ok(old),
            }
        };
        **copied = Copied::like(rank, load)?;
        Ok(())
    }

    /// What a checkpoint has to hold of it.
    pub(crate) fn store(&self, options: &ReferenceOptions) -> Option<&ShardedParams> {
        match self {
            Self::Copy(copied) if options.sync_ref_model => Some(&copied.store),
            _ => None,
        }
    }
}

impl Copied {
    /// By the policy's plan.
    fn like(
        rank: &Rank<'_>,
        load: impl Fn(&ModelPlan<'_>, usize, Range<usize>) -> Result<Kept, TrainError>,
    ) -> Result<Self, TrainError> {
        let planned = match &rank.setup.reference {
            Some(other) => other.planned_over(rank.setup.trained, &rank.axes)?,
            None => rank.setup.planned_over(&rank.axes, rank.data.size())?,
        };
        Self::new(rank, rank.plan.clone(), planned, load)
    }

    /// Another model, by a plan of its own for the same ranks.
    fn frozen(rank: &Rank<'_>, other: &ReferenceFolder) -> Result<Self, TrainError> {
        let setup = rank.setup;
        let planned = other.planned_over(setup.trained, &rank.axes)?;
        let registry = planned.local_registry();
        let plan =
            sharding_plan(&registry, planned.units(), rank.dp.size(), &setup.options.ranks, |_, _| None)?;
        plan.agree(&rank.dp)?;
        let load = |planned: &ModelPlan<'_>, index: usize, rows: Range<usize>| {
            other.frozen.rows((rank.place, &rank.device), planned, index, rows)
        };
        Self::new(rank, Arc::new(plan), planned, load)
    }

    fn new(
        rank: &Rank<'_>,
        plan: Arc<Plan>,
        planned: ModelPlan<'_>,
        load: impl Fn(&ModelPlan<'_>, usize, Range<usize>) -> Result<Kept, TrainError>,
    ) -> Result<Self, TrainError> {
        let load = |index: usize, rows: Range<usize>| load(&planned, index, rows);
        let store = Arc::new(ShardedParams::new(plan, &rank.dp, &rank.device, load)?);
        let decoder = planned.into_model(store.clone()).decoder;
        Ok(Self { store, decoder })
    }
}

/// A reference that is there from when it is first asked for: where everything it says is on disk, never.
pub(crate) struct LazyReference<'r> {
    rank: &'r Rank<'r>,
    resumed: Option<&'r Resumed>,
    made: OnceCell<Reference>,
}

impl<'r> LazyReference<'r> {
    pub(crate) fn new(rank: &'r Rank<'r>, resumed: Option<&'r Resumed>) -> Self {
        Self { rank, resumed, made: OnceCell::new() }
    }

    /// The reference. Every rank asks at the same places.
    pub(crate) fn get(&self) -> Result<&Reference, TrainError> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let made = Reference::start(self.rank, self.resumed)?;
        Ok(self.made.get_or_init(|| made))
    }
}

impl Rank<'_> {
    /// The rows of a parameter that a store by this rank's plan keeps here.
    fn read_kept(&self, store: &ShardedParams, index: usize, rows: Range<usize>) -> Result<Kept, TrainError> {
        let (kept, value) = store.kept_rows(index)?;
        if kept == rows {
            return Ok(value);
        }
        let (own, value) = store.saved_rows(index)?;
        // What is not sharded is whole here, and reading it moves nothing.
        Ok(if own == rows { value } else { store.read(index) }.into())
    }
}

/// `(1 - alpha) old + alpha new`, in the dtype of the old.
fn mixed(
    old: &AnyTensor,
    new: &AnyTensor,
    alpha: f64,
    device: &burn::tensor::Device,
) -> Result<AnyTensor, TrainError> {
    let mix = |(old, new): (&f32, &f32)| ((1.0 - alpha) * f64::from(*old) + alpha * f64::from(*new)) as f32;
    let values: Vec<f32> = old.to_f32().iter().zip(&new.to_f32()).map(mix).collect();
    let dtype = old.dtype().unwrap_or(Dtype::F32);
    Ok(to_device(HostTensor::from_f32(&values, &old.shape(), dtype)?, device))
}
