//! Sharded weights become whole when they are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use burnish_comm::Bucket;
use burnish_core::Dtype;
use burnish_ops::AnyTensor;

use super::typed::{Number, by_dtype, shared};
use super::{ShardedParams, lock, transfer};
use crate::bucket::BucketPlan;
use crate::prefetch::Window;
use crate::{Plan, ZeroError};

/// Whole values of one bucket, when they are there.
type Arriving = Box<dyn FnOnce() -> Result<Vec<(usize, AnyTensor)>, ZeroError> + Send>;

/// What is gathered at the moment.
pub(super) struct Gathered {
    window: Window,
    units: BTreeMap<usize, BTreeMap<usize, AnyTensor>>,
    ahead: Option<Vec<Arriving>>,
}

impl Gathered {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { window: plan.window(), units: BTreeMap::new(), ahead: None }
    }

    /// Drops everything; a gather under way is completed by the transport.
    pub(super) fn clear(&mut self) {
        self.window.clear();
        self.units.clear();
        self.ahead = None;
    }
}

impl ShardedParams {
    /// A sharded parameter, whole: its unit is gathered unless it is.
    pub(super) fn gathered_value(&self, unit: usize, index: usize) -> Result<AnyTensor, ZeroError> {
        let mut gathered = self.gathered();
        let moves = gathered.window.read(unit);
        let waiting = if moves.take { gathered.ahead.take() } else { None };
        if moves.forget.is_some() {
            gathered.ahead = None;
        }
        if let Some(old) = moves.drop {
            gathered.units.remove(&old);
        }
        let arriving = match waiting {
            None if moves.gather => Some(self.start(unit)?),
            waiting => waiting,
        };
        if let Some(next) = moves.start {
            gathered.ahead = Some(self.start(next)?);
        }
        if let Some(arriving) = arriving {
            let mut values = BTreeMap::new();
            for bucket in arriving {
                values.extend(bucket()?);
            }
            gathered.units.insert(unit, values);
        }
        let value = gathered.units.get(&unit).and_then(|values| values.get(&index)).cloned();
        Ok(value
            .expect("invariant: what the window holds is gathered, with every sharded parameter of the unit"))
    }

    /// Starts the gathers of a unit.
    fn start(&self, unit: usize) -> Result<Vec<Arriving>, ZeroError> {
        let start = |number: usize| match self.plan.gathers(unit)[number].dtype {
            Dtype::U8 => self.start_packed(unit, number),
            dtype => by_dtype!(dtype, E => self.start_bucket::<E>(unit, number)),
        };
        (0..self.plan.gathers(unit).len()).map(start).collect()
    }

    /// Starts the gather of a bucket whose parameters go as they rest, in fewer bits.
    fn start_packed(&self, unit: usize, number: usize) -> Result<Arriving, ZeroError> {
        let bucket = &self.plan.gathers(unit)[number];
        let mut part = Vec::with_capacity(bucket.counts()[self.rank]);
        for piece in &bucket.pieces {
            part.extend(self.stored(piece.parameter, "gathered")?.to_bytes());
        }
        let pending = self.gather.all_gather_v(Bucket::new(part), &bucket.counts(), &bucket.name);
        let (plan, device) = (Arc::clone(&self.plan), self.device.clone());
        Ok(Box::new(move || {
            let parts = pending.wait()?;
            transfer::packed_wholes(&plan, &plan.gathers(unit)[number], &parts, &device)
        }))
    }

    fn start_bucket<E: Number>(&self, unit: usize, number: usize) -> Result<Arriving, ZeroError> {
        let bucket = &self.plan.gathers(unit)[number];
        let part = self.part::<E>(bucket)?;
        let pending = self.gather.all_gather_v(part, &bucket.counts(), &bucket.name);
        let (plan, device) = (Arc::clone(&self.plan), self.device.clone());
        Ok(Box::new(move || {
            let parts = pending.wait()?;
            Ok(transfer::wholes(&plan, &plan.gathers(unit)[number], &parts, &device))
        }))
    }

    /// This rank's part of a bucket of weights: its rows of every piece, of values that are whole or sharded here.
    pub(super) fn part<E: Number>(&self, bucket: &BucketPlan) -> Result<Bucket<E>, ZeroError> {
        if let [only] = &bucket.pieces[..]
            && self.plan.sharded(only.parameter)
        {
            return Ok(shared(&self.kept(only.parameter, "gathered")?));
        }
        let mut pieces = Vec::with_capacity(bucket.pieces.len());
        for piece in &bucket.pieces {
            let value = self.kept(piece.parameter, "gathered")?;
            let own = piece.layout.elements(self.rank);
            let range = if self.plan.sharded(piece.parameter) { 0..own.len() } else { own };
            pieces.push((value, range));
        }
        Ok(transfer::part(pieces, &self.device))
    }

    /// Forgets gathered values of weights that have changed.
    pub(super) fn forget_gathered(&self) {
        lock(&self.gathered).clear();
    }
}
