//! A rank's part of a model, by a plan.

mod gather;
mod guard;
mod kept;
mod masters;
mod reduce;
mod transfer;
mod typed;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use burn::tensor::Device;
use burnish_comm::Group;
use burnish_core::{Dtype, Parameter, Registry};
use burnish_ops::{AnyTensor, Parameters};

use crate::rows::rows_shape;
use crate::{GradReduction, Plan, ZeroError};
use gather::Gathered;
pub use guard::WriteGuard;
pub use kept::Kept;
use reduce::Sums;

/// A model's parameters on one rank of a plan: whole or this rank's rows, gathered when they are read, with gradients
/// summed over ranks as backward finds them.
///
/// What a step does, on every rank alike:
///
/// 1. per micro-batch [`begin_micro_batch`](Self::begin_micro_batch), forward and backward (which read and
///    accumulate), [`end_micro_batch`](Self::end_micro_batch);
/// 2. [`gradients`](Self::gradients) gives this rank's rows of the sums over ranks;
/// 3. the optimizer measures them with [`sum_squares`](Self::sum_squares) and updates this rank's rows
///    ([`burnish_optim::ParamStorage`]);
/// 4. [`all_gather_params`](Self::all_gather_params) makes the updated rows everybody's.
///
/// A world of one rank runs the same calls and communicates nothing.
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
///
/// use burn::tensor::Device;
/// use burnish_comm::local;
/// use burnish_core::{Dtype, Parameter, Registry, Role};
/// use burnish_ops::{AnyTensor, Parameters};
/// use burnish_optim::{AdamW, AdamWOptions, Unscale};
/// use burnish_zero::{Plan, Policy, Stage, ShardedParams, Unit, ZeroError};
///
/// // One trained matrix over two ranks: three rows and two.
/// let mut registry = Registry::new();
/// let mut matrix = Parameter::new("w", &[5, 2], Role::Matrix, Dtype::F32);
/// matrix.trainable = true;
/// let w = registry.add(matrix).unwrap();
/// let policy = Policy { persist_below: 0, ..Policy::new(Stage::Three) };
/// let plan = Arc::new(Plan::new(&registry, vec![Unit::block("block", vec![w])], 2, policy).unwrap());
/// assert_eq!(plan.rows(w, 0), 0..3);
///
/// let weights = local::run(2, |world| {
///     let (group, device) = (world.group(), Device::flex());
///     plan.agree(&group)?;
///     let ones = |_, rows: std::ops::Range<usize>| {
///         Ok::<_, Infallible>(AnyTensor::from_elements(vec![1.0_f32; 2 * rows.len()], &[rows.len(), 2], &device))
///     };
///     let store = ShardedParams::new(plan.clone(), &group, &device, ones)?;
///     let mut optimizer = AdamW::new(&store.local_registry(), AdamWOptions::default());
///
///     store.begin_micro_batch(true);
///     let gradient = store.read(w); // forward and backward of 0.5 * w * w
///     store.accumulate(w, gradient);
///     store.end_micro_batch()?;
///     if let Unscale::Finite(gradients) = store.gradients()?.unscale(1.0, |s| store.sum_squares(s))? {
///         assert_eq!(gradients.norm(), 40_f64.sqrt()); // ten elements, of two ranks each
///         optimizer.step(gradients.clip(Some(1.0)), &store, 0.1);
///     }
///     store.all_gather_params()?;
///     Ok::<_, ZeroError>(store.read(w).to_f32())
/// });
/// for weights in weights {
///     assert!(weights.unwrap().unwrap().iter().all(|w| (w - 0.9).abs() < 1e-6));
/// }
/// ```
pub struct ShardedParams {
    plan: Arc<Plan>,
    rank: usize,
    device: Device,
    /// Three independent orders of calls: weights, gradients, scalars.
    gather: Group,
    reduce: Group,
    step: Group,
    /// What this rank keeps, by registry index; empty for tied parameters and while an update has a value.
    values: Vec<RwLock<Option<Kept>>>,
    gathered: Mutex<Gathered>,
    sums: Mutex<Sums>,
    failure: Mutex<Option<ZeroError>>,
    uncommitted: Mutex<Vec<String>>,
}

impl ShardedParams {
    /// A store by `plan` for this rank of `group`. `load` gives rows of a parameter (by registry index) in its stored
    /// dtype, on `device`, or in the fewer bits that the registry declares: all rows of what is whole here, this rank's
    /// rows of what is sharded. It is not asked for tied parameters.
    ///
    /// # Errors
    /// If the plan is for another number of ranks, `load` fails, or what it gives has another shape or dtype.
    pub fn new<V: Into<Kept>, E: std::error::Error + Send + Sync + 'static>(
        plan: Arc<Plan>,
        group: &Group,
        device: &Device,
        mut load: impl FnMut(usize, Range<usize>) -> Result<V, E>,
    ) -> Result<Self, ZeroError> {
        if group.size() != plan.world() {
            return Err(ZeroError::World { plan: plan.world(), group: group.size() });
        }
        let rank = group.rank();
        let mut values: Vec<RwLock<Option<Kept>>> = Vec::new();
        values.resize_with(plan.registry().len(), || RwLock::new(None));
        for index in plan.own() {
            let rows = plan.kept_rows(index, rank);
            let parameter = plan.registry().at(index);
            let value: Kept = load(index, rows.clone()).map(Into::into).map_err(|e| ZeroError::Load {
                parameter: parameter.name.clone(),
                rows: rows.clone(),
                source: Arc::new(e),
            })?;
            value.expect(parameter, rows.len())?;
            values[index] = RwLock::new(Some(value.plain()));
        }
        let gathered = Mutex::new(Gathered::new(&plan));
        let sums = Mutex::new(Sums::new(&plan));
        Ok(Self {
            rank,
            device: device.clone(),
            gather: group.channel("gather"),
            reduce: group.channel("reduce"),
            step: group.channel("step"),
            values,
            gathered,
            sums,
            failure: Mutex::new(None),
            uncommitted: Mutex::new(Vec::new()),
            plan,
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Where the values lie.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The rows of the parameter at `index` that this rank updates.
    #[must_use]
    pub fn rows(&self, index: usize) -> Range<usize> {
        self.plan.rows(index, self.rank)
    }

    /// The registry with the shapes of what this rank updates: what an optimizer is made from.
    #[must_use]
    pub fn local_registry(&self) -> Registry {
        self.plan.local_registry(self.rank)
    }

    /// The rows of the parameter at `index` that this rank writes to a checkpoint (every row is one rank's, at every
    /// stage), and their values.
    ///
    /// # Errors
    /// If an update has taken the value.
    pub fn saved_rows(&self, index: usize) -> Result<(Range<usize>, AnyTensor), ZeroError> {
        let index = self.plan.placement(index).target;
        let rows = self.plan.saved_rows(index, self.rank);
        let value = self.kept(index, "saved")?;
        if rows == self.plan.kept_rows(index, self.rank) {
            return Ok((rows, value));
        }
        let shape = rows_shape(&self.plan.registry().at(index).shape, rows.len());
        Ok((
            rows,
            typed::cut(&value, self.plan.placement(index).layout.elements(self.rank), &shape, &self.device),
        ))
    }

    /// Of an optimizer's slot, which has the rows that this rank updates, those that it writes to a checkpoint.
    #[must_use]
    pub fn saved_slot(&self, index: usize, slot: AnyTensor) -> (Range<usize>, AnyTensor) {
        let (rows, held) = (self.plan.saved_rows(index, self.rank), self.rows(index));
        if rows == held {
            return (rows, slot);
        }
        let mut shape = slot.shape();
        let row: usize = shape.iter().skip(1).product();
        shape[0] = rows.len();
        let elements = (rows.start - held.start) * row..(rows.end - held.start) * row;
        (rows, slot.piece(elements, &shape))
    }

    /// Begins a micro-batch; `last` if the step follows it.
    pub fn begin_micro_batch(&self, last: bool) {
        if let Err(error) = self.sums().begin(&self.plan, last) {
            self.fail(error);
        }
    }

    /// Ends a micro-batch: what it has to sum over ranks is summed, and what it has gathered is dropped.
    ///
    /// # Errors
    /// The first error of this store.
    pub fn end_micro_batch(&self) -> Result<(), ZeroError> {
        self.release();
        if self.check_failure().is_ok()
            && let Err(error) = self.finish_sums()
        {
            self.fail(error);
        }
        self.check()
    }

    /// Gives up the step: gradients, and whatever was gathered. Every rank calls it, in the same micro-batch; the store
    /// is then as before the step.
    ///
    /// # Errors
    /// The first error of this store.
    pub fn discard(&self) -> Result<(), ZeroError> {
        self.end_micro_batch()?;
        self.sums().forget();
        Ok(())
    }

    /// Drops what is gathered, after reading outside a micro-batch.
    pub fn release(&self) {
        self.gathered().clear();
    }

    /// Adds this rank's sums of squares, by parameter, to those of the ranks that have other rows. Where gradients are whole on every
    /// rank it is the sum already.
    ///
    /// # Errors
    /// If a rank fails; the first error of this store.
    pub fn sum_squares(&self, squares: &[(usize, f64)]) -> Result<f64, ZeroError> {
        self.check_failure()?;
        let squares = squares.iter().map(|(_, sum)| sum).sum();
        let by_rows = self.plan.own().any(|i| self.plan.placement(i).summed == GradReduction::ByRows);
        if !by_rows {
            return Ok(squares);
        }
        Ok(self.kept_error(self.step.sum_f64(&[squares], "gradient norm"))?[0])
    }

    /// The first error of reading or accumulating, and writes that were dropped (once).
    ///
    /// # Errors
    /// Those.
    pub fn check(&self) -> Result<(), ZeroError> {
        self.check_failure()?;
        match lock(&self.uncommitted).pop() {
            Some(parameter) => Err(ZeroError::Uncommitted { parameter }),
            None => Ok(()),
        }
    }

    fn check_failure(&self) -> Result<(), ZeroError> {
        match &*lock(&self.failure) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Keeps an error of a pass, where none can be returned.
    pub(crate) fn report(&self, error: ZeroError) {
        self.fail(error);
    }

    /// Keeps the first error.
    fn fail(&self, error: ZeroError) {
        lock(&self.failure).get_or_insert(error);
    }

    /// The same result, its error kept.
    fn kept_error<T, E: Into<ZeroError>>(&self, result: Result<T, E>) -> Result<T, ZeroError> {
        result.map_err(|error| {
            let error = error.into();
            self.fail(error.clone());
            error
        })
    }

    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        lock(&self.gathered)
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        lock(&self.sums)
    }

    /// What this rank keeps of a parameter that has storage.
    fn kept(&self, index: usize, what: &'static str) -> Result<AnyTensor, ZeroError> {
        Ok(self.stored(index, what)?.read(self.plan.registry().at(index), &self.device))
    }

    /// The same, as it is kept.
    fn stored(&self, index: usize, what: &'static str) -> Result<Kept, ZeroError> {
        let value = self.values[index].read().unwrap_or_else(PoisonError::into_inner).clone();
        value.ok_or_else(|| ZeroError::Taken { parameter: self.name(index), what })
    }

    /// The rows of the parameter at `index` that this rank keeps, as it keeps them.
    ///
    /// # Errors
    /// If an update has taken the value.
    pub fn kept_rows(&self, index: usize) -> Result<(Range<usize>, Kept), ZeroError> {
        let index = self.plan.placement(index).target;
        Ok((self.plan.kept_rows(index, self.rank), self.stored(index, "copied")?))
    }

    fn keep(&self, index: usize, value: AnyTensor) {
        *self.values[index].write().unwrap_or_else(PoisonError::into_inner) = Some(value.into());
    }

    fn take_kept(&self, index: usize) -> Option<AnyTensor> {
        let value = self.values[index].write().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(value.read(self.plan.registry().at(index), &self.device))
    }

    fn name(&self, index: usize) -> String {
        self.plan.registry().at(index).name.clone()
    }

    /// A whole value, and an error instead of one.
    fn value(&self, index: usize) -> Result<AnyTensor, ZeroError> {
        let placement = self.plan.placement(index);
        self.check_failure()?;
        if self.plan.sharded(placement.target) {
            self.gathered_value(placement.unit, placement.target)
        } else {
            self.kept(placement.target, "read")
        }
    }
}

impl Parameters for ShardedParams {
    fn registry(&self) -> &Registry {
        self.plan.registry()
    }

    fn read(&self, index: usize) -> AnyTensor {
        self.value(index).unwrap_or_else(|error| {
            self.fail(error);
            typed::zeros(self.plan.registry().at(index), &self.device)
        })
    }

    /// Unit by unit, so that each is gathered once whatever the order of the indices.
    fn read_all(&self, indices: &[usize]) -> Vec<AnyTensor> {
        let mut values: Vec<Option<AnyTensor>> = vec![None; indices.len()];
        for &first in indices {
            let unit = self.plan.placement(first).unit;
            for (value, &index) in values.iter_mut().zip(indices) {
                if value.is_none() && self.plan.placement(index).unit == unit {
                    *value = Some(self.read(index));
                }
            }
        }
        values.into_iter().flatten().collect()
    }

    fn gathers(&self, index: usize) -> bool {
        self.plan.sharded(self.plan.placement(index).target)
    }

    fn accumulate(&self, index: usize, gradient: AnyTensor) {
        let placement = self.plan.placement(index);
        if placement.summed == GradReduction::Never || self.check_failure().is_err() {
            return;
        }
        if let Err(error) = self.add(placement.target, gradient) {
            self.fail(error);
        }
    }
}

impl std::fmt::Debug for ShardedParams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ShardedParams(rank {} of {}, stage {}",
            self.rank,
            self.plan.world(),
            self.plan.policy().stage
        )?;
        write!(f, ", {} parameters)", self.plan.registry().len())
    }
}

/// Fails unless `value` is `rows` rows of a parameter in its stored dtype.
fn expect(
    parameter: &Parameter,
    what: &'static str,
    value: &AnyTensor,
    rows: usize,
) -> Result<(), ZeroError> {
    let (got, dtype) = (value.shape(), value.dtype());
    if got == rows_shape(&parameter.shape, rows) && dtype == Some(parameter.precision.store) {
        return Ok(());
    }
    Err(unexpected(parameter, what, (got, dtype), rows))
}

/// A value, by its shape and dtype, that is not `rows` rows of a parameter.
fn unexpected(
    parameter: &Parameter,
    what: &'static str,
    (got, dtype): (Vec<usize>, Option<Dtype>),
    rows: usize,
) -> ZeroError {
    ZeroError::Value {
        parameter: parameter.name.clone(),
        what,
        got,
        dtype,
        expected: rows_shape(&parameter.shape, rows),
        declared: parameter.precision.store,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
