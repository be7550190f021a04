//! Gradients become sums over ranks, and shards where the plan says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use burn::tensor::{Device, FloatDType};
use burnish_comm::{Bucket, CommError, Op, Pending, Reduction, Wire};
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, accumulate, accumulate_all, on_host};
use burnish_optim::{Gradients, Reduced};
use burnish_tensor_comm::tensor;

use super::typed::{Number, by_dtype, shared};
use super::{ShardedParams, transfer};
use crate::plan::IN_FLIGHT;
use crate::rows::rows_shape;
use crate::{ParamStorageMode, Plan, ZeroError};

/// Sums of a parameter's gradients that are added together, as a GPU's launch takes them.
const TOGETHER: usize = 8;
/// Elements of one that waits for others at most: a larger one takes a launch's time, and memory.
const SMALL: usize = 1 << 18;

/// A bucket: unit and number within it.
type Key = (usize, usize);

/// A reduction under way, whatever its wire type; sums come back flat, in f32.
trait InFlight: Send {
    fn ready(&self) -> bool;
    fn wait(self: Box<Self>, device: &Device) -> Result<AnyTensor, CommError>;
}

impl<E: Number> InFlight for Pending<Bucket<E>> {
    fn ready(&self) -> bool {
        Self::ready(self)
    }

    fn wait(self: Box<Self>, device: &Device) -> Result<AnyTensor, CommError> {
        let sums = Pending::wait(*self)?;
        let elements = sums.len();
        let sums = tensor(sums, &[elements], device);
        Ok(if sums.dtype() == Some(Dtype::F32) { sums } else { sums.cast(FloatDType::F32) })
    }
}

/// Gradients of a step, on their way from whole to summed.
pub(super) struct Sums {
    /// What backward gave and nobody summed yet, in f32.
    whole: Vec<Option<AnyTensor>>,
    /// Of parameters whose place in `whole` is empty: the sum so far, and what is still to be added.
    pending: Vec<(usize, AnyTensor, AnyTensor)>,
    /// This rank's parts of summed buckets.
    parts: BTreeMap<Key, AnyTensor>,
    in_flight: VecDeque<(Key, Box<dyn InFlight>)>,
    order: Vec<usize>,
    /// Units of `order` that this micro-batch has posted.
    posted: usize,
    /// Parameters that have a gradient in this micro-batch, and in this step.
    arrived: Vec<bool>,
    touched: Vec<bool>,
    /// Parameters with a gradient that came after their unit was posted.
    late: Vec<bool>,
    /// Units whose parameters are used more than once: posted when the micro-batch ends, as roots.
    deferred: BTreeSet<usize>,
    open: bool,
    /// Whether this micro-batch sums, and whether one of this step did.
    summing: bool,
    summed: bool,
}

impl Sums {
    pub(super) fn new(plan: &Plan) -> Self {
        let parameters = plan.registry().len();
        let order = plan.reduce_order();
        Self {
            whole: vec![None; parameters],
            pending: Vec::new(),
            parts: BTreeMap::new(),
            in_flight: VecDeque::new(),
            posted: 0,
            arrived: vec![false; parameters],
            touched: vec![false; parameters],
            late: vec![false; parameters],
            deferred: order.iter().copied().filter(|&u| plan.units()[u].root).collect(),
            order,
            open: false,
            summing: false,
            summed: false,
        }
    }

    pub(super) fn begin(&mut self, plan: &Plan, last: bool) -> Result<(), ZeroError> {
        if self.open {
            return Err(ZeroError::Open);
        }
        self.open = true;
        self.posted = 0;
        self.arrived.fill(false);
        self.summing = plan.reduces_in(last);
        self.summed |= self.summing;
        Ok(())
    }

    /// The state before a step. What is known of deferred units stays.
    pub(super) fn forget(&mut self) {
        self.whole.fill(None);
        self.pending.clear();
        self.parts.clear();
        self.in_flight.clear();
        self.arrived.fill(false);
        self.touched.fill(false);
        self.late.fill(false);
        (self.open, self.summing, self.summed) = (false, false, false);
    }

    /// Adds a gradient in f32: on a device that is not the host's a small one with others.
    fn add(&mut self, index: usize, gradient: AnyTensor, device: &Device) {
        if self.pending.iter().any(|(pending, ..)| *pending == index) {
            self.settle();
        }
        match self.whole[index].take() {
            None => self.whole[index] = Some(gradient),
            Some(sum) if on_host(device) || gradient.shape().iter().product::<usize>() > SMALL => {
                self.whole[index] = Some(accumulate(Some(sum), gradient));
            }
            Some(sum) => {
                self.pending.push((index, sum, gradient));
                if self.pending.len() == TOGETHER {
                    self.settle();
                }
            }
        }
    }

    /// Adds what is pending.
    fn settle(&mut self) {
        let (indices, pairs): (Vec<_>, Vec<_>) =
            self.pending.drain(..).map(|(index, sum, gradient)| (index, (sum, gradient))).unzip();
        for (index, sum) in indices.into_iter().zip(accumulate_all(pairs)) {
            self.whole[index] = Some(sum);
        }
    }

    /// Whether every gradient of a unit is there.
    fn complete(&self, plan: &Plan, unit: usize) -> bool {
        let trained = || plan.units()[unit].parameters.iter().filter(|&&i| plan.trains(i));
        !self.deferred.contains(&unit) && trained().all(|&i| self.arrived[i])
    }

    /// Takes in the oldest reduction.
    fn wait(&mut self, device: &Device) -> Result<(), ZeroError> {
        let Some((key, flight)) = self.in_flight.pop_front() else { return Ok(()) };
        let part = flight.wait(device)?;
        let sum = self.parts.remove(&key).filter(|sum| sum.shape() != [0]);
        self.parts.insert(key, accumulate(sum, part));
        Ok(())
    }
}

impl ShardedParams {
    /// Adds a gradient; posts the units that are complete with it.
    pub(super) fn add(&self, index: usize, gradient: AnyTensor) -> Result<(), ZeroError> {
        let parameter = self.plan.registry().at(index);
        let expected = rows_shape(&parameter.shape, self.plan.placement(index).layout.all_rows());
        if gradient.shape() != expected {
            return Err(ZeroError::Value {
                parameter: parameter.name.clone(),
                what: "the gradient",
                got: gradient.shape(),
                dtype: gradient.dtype(),
                expected,
                declared: Dtype::F32,
            });
        }
        let gradient = match gradient.dtype() {
            Some(Dtype::F32) => gradient.plain(),
            _ => gradient.cast(FloatDType::F32),
        };
        let mut sums = self.sums();
        sums.add(index, gradient, &self.device);
        sums.arrived[index] = true;
        sums.touched[index] = true;
        if !sums.summing {
            return Ok(());
        }
        let unit = self.plan.placement(index).unit;
        if sums.order[..sums.posted].contains(&unit) {
            sums.late[index] = true;
            return Ok(());
        }
        while let Some(&unit) = sums.order.get(sums.posted).filter(|&&u| sums.complete(&self.plan, u)) {
            sums.posted += 1;
            self.post(&mut sums, unit, false)?;
        }
        Ok(())
    }

    /// Starts the reductions of a unit: zeros where no gradient came.
    ///
    /// Waiting for a reduction is safe where nothing else of a micro-batch communicates, or when it is over: every rank
    /// posts units in one order. In stage 3 a rank that lacks a gradient posts later and needs this rank's gathers
    /// first, so there only what is ready is taken in.
    fn post(&self, sums: &mut Sums, unit: usize, over: bool) -> Result<(), ZeroError> {
        sums.settle();
        let gathers = self.plan.own().any(|i| self.plan.placement(i).residency == ParamStorageMode::Sharded);
        for number in 0..self.plan.reduces(unit).len() {
            while sums.in_flight.len() >= IN_FLIGHT
                && (over || !gathers || sums.in_flight.front().is_some_and(|(_, flight)| flight.ready()))
            {
                sums.wait(&self.device)?;
            }
            let flight =
                by_dtype!(self.plan.reduces(unit)[number].dtype, E => self.launch::<E>(sums, unit, number));
            sums.in_flight.push_back(((unit, number), flight));
        }
        Ok(())
    }

    fn launch<E: Number>(&self, sums: &mut Sums, unit: usize, number: usize) -> Box<dyn InFlight> {
        let bucket = &self.plan.reduces(unit)[number];
        let whole: Vec<Option<AnyTensor>> =
            bucket.pieces.iter().map(|piece| sums.whole[piece.parameter].take()).collect();
        let payload: Bucket<E> = match &whole[..] {
            // One parameter's rows lie in rank order as they are.
            [Some(only)] if <E as Wire>::DTYPE == Dtype::F32 => shared::<E>(only),
            _ => transfer::gradients(bucket, &whole, &self.device),
        };
        drop(whole);
        match self.plan.sum_of(bucket) {
            Op::ReduceScatter => {
                let counts = bucket.counts();
                Box::new(self.reduce.reduce_scatter_v(payload, &counts, Reduction::Sum, &bucket.name))
            }
            _ => Box::new(self.reduce.all_reduce(payload, Reduction::Sum, &bucket.name)),
        }
    }

    /// The end of a micro-batch: posts what is left of it and takes everything in.
    pub(super) fn finish_sums(&self) -> Result<(), ZeroError> {
        let sums = &mut *self.sums();
        if sums.open && sums.summing {
            while let Some(&unit) = sums.order.get(sums.posted) {
                sums.posted += 1;
                self.post(sums, unit, true)?;
            }
            while !sums.in_flight.is_empty() {
                sums.wait(&self.device)?;
            }
        }
        (sums.open, sums.summing) = (false, false);
        Ok(())
    }

    /// The gradients of a step, summed over its micro-batches and the ranks: this rank's rows in f32, in index order.
    /// Rows that this rank does not have, and parameters without a gradient on any rank, are not among them.
    ///
    /// # Errors
    /// If a rank fails; the first error of this store.
    pub fn gradients(&self) -> Result<Gradients<Reduced>, ZeroError> {
        self.end_micro_batch()?;
        let mut sums = self.sums();
        let entries = self.kept_error(self.summed(&mut sums));
        sums.forget();
        Ok(Gradients::summed(entries?))
    }

    fn summed(&self, sums: &mut Sums) -> Result<Vec<(usize, AnyTensor)>, ZeroError> {
        sums.settle();
        if self.plan.world() == 1 {
            let whole = sums.whole.iter_mut().enumerate();
            let there = whole.filter_map(|(index, w)| w.take().map(|gradient| (index, gradient)));
            return Ok(there.filter(|(_, g)| g.shape().iter().product::<usize>() > 0).collect());
        }
        if !sums.summed {
            for unit in sums.order.clone() {
                self.post(sums, unit, true)?;
            }
        }
        let touched = self.everywhere(sums)?;
        while !sums.in_flight.is_empty() {
            sums.wait(&self.device)?;
        }
        let mut entries = Vec::new();
        for ((unit, number), part) in std::mem::take(&mut sums.parts) {
            let bucket = &self.plan.reduces(unit)[number];
            let rank = if bucket.parts() == 1 { 0 } else { self.rank };
            for piece in &bucket.pieces {
                let own = piece.layout.elements(rank).len();
                if own == 0 || !touched[piece.parameter] {
                    continue;
                }
                let shape = &self.plan.registry().at(piece.parameter).shape;
                let shape = rows_shape(shape, piece.layout.rows(rank).len());
                let start = piece.offsets[rank];
                entries.push((piece.parameter, part.piece(start..start + own, &shape)));
            }
        }
        entries.sort_unstable_by_key(|(index, _)| *index);
        Ok(entries)
    }

    /// Whether any rank has a gradient, by parameter. Units with late gradients on any rank are posted once more, and
    /// wait for the end of the micro-batch from now on.
    fn everywhere(&self, sums: &mut Sums) -> Result<Vec<bool>, ZeroError> {
        let trained: Vec<usize> = self.plan.own().filter(|&i| self.plan.trains(i)).collect();
        let mut touched = vec![false; sums.touched.len()];
        if trained.is_empty() {
            return Ok(touched);
        }
        let flag = |&i: &usize| u8::from(sums.touched[i]) + u8::from(sums.late[i]);
        let flags = Bucket::new(trained.iter().map(flag).collect());
        let flags = self.step.all_reduce(flags, Reduction::Max, "which gradients there are").wait()?;
        let mut late = BTreeSet::new();
        for (&index, &flag) in trained.iter().zip(flags.as_slice()) {
            touched[index] = flag > 0;
            if flag > 1 {
                late.insert(self.plan.placement(index).unit);
            }
        }
        for unit in self.plan.reduce_order().into_iter().filter(|u| late.contains(u)) {
            self.post(sums, unit, true)?;
        }
        if !late.is_empty() {
            sums.deferred.extend(late);
            let (now, after): (Vec<usize>, Vec<usize>) =
                self.plan.reduce_order().into_iter().partition(|u| !sums.deferred.contains(u));
            sums.order = now.into_iter().chain(after).collect();
        }
        Ok(touched)
    }
}
