//! The optimizer's view of sharded parameters: fp32 masters of own rows, and their all-gather after the update.

use std::collections::VecDeque;

use burnish_comm::{Gathered, Pending};
use burnish_ops::{AnyTensor, on_host};
use burnish_optim::ParamStorage;

use super::typed::{self, Number, by_dtype};
use super::{ShardedParams, transfer};
use crate::ZeroError;
use crate::bucket::BucketPlan;
use crate::plan::IN_FLIGHT;
use crate::rows::rows_shape;

/// Values that wait to be written.
type Arriving<'a> = Box<dyn FnOnce() -> Result<(), ZeroError> + 'a>;

impl ParamStorage for ShardedParams {
    fn take(&self, index: usize) -> AnyTensor {
        let index = self.plan.placement(index).target;
        let value = self.take_kept(index).unwrap_or_else(|| {
            self.fail(ZeroError::Taken { parameter: self.name(index), what: "taken" });
            typed::zeros(self.plan.registry().at(index), &self.device)
        });
        let rows = self.rows(index);
        if rows == self.plan.kept_rows(index, self.rank) {
            return value;
        }
        // Whole here, and this rank updates its rows of it.
        let shape = rows_shape(&self.plan.registry().at(index).shape, rows.len());
        let own = self.plan.placement(index).layout.elements(self.rank);
        let cut = typed::cut(&value, own, &shape, &self.device);
        self.keep(index, value);
        cut
    }

    fn put(&self, index: usize, value: AnyTensor) {
        let index = self.plan.placement(index).target;
        let rows = self.rows(index);
        if let Err(error) = super::expect(self.plan.registry().at(index), "the update", &value, rows.len()) {
            return self.fail(error);
        }
        if rows == self.plan.kept_rows(index, self.rank) {
            return self.keep(index, value);
        }
        let Some(whole) = self.take_kept(index) else {
            return self.fail(ZeroError::Taken { parameter: self.name(index), what: "updated" });
        };
        let own = self.plan.placement(index).layout.elements(self.rank);
        by_dtype!(self.plan.registry().at(index).precision.store, E => {
            self.keep(index, transfer::written::<E>(whole, own, &value));
        });
    }
}

impl ShardedParams {
    /// After an update: sends the rows of this rank, of what is whole everywhere, and takes the others'.
    ///
    /// # Errors
    /// If a rank fails; the first error of this store.
    pub fn all_gather_params(&self) -> Result<(), ZeroError> {
        self.check_failure()?;
        self.forget_gathered();
        self.kept_error(self.exchange())
    }

    fn exchange(&self) -> Result<(), ZeroError> {
        let mut flying: VecDeque<Arriving<'_>> = VecDeque::new();
        for bucket in self.plan.publishes() {
            if flying.len() >= IN_FLIGHT
                && let Some(oldest) = flying.pop_front()
            {
                oldest()?;
            }
            flying.push_back(by_dtype!(bucket.dtype, E => {
                let part = self.part::<E>(bucket)?;
                let pending = self.gather.all_gather_v(part, &bucket.counts(), &bucket.name);
                Box::new(move || self.write_rows::<E>(bucket, pending))
            }));
        }
        flying.into_iter().try_for_each(|arriving| arriving())
    }

    /// Writes the other ranks' rows over this rank's whole values.
    fn write_rows<E: Number>(
        &self,
        bucket: &BucketPlan,
        pending: Pending<Gathered<E>>,
    ) -> Result<(), ZeroError> {
        let parts = pending.wait()?;
        if !on_host(&self.device) {
            // This rank's rows come back with the others'.
            for (index, whole) in transfer::wholes(&self.plan, bucket, &parts, &self.device) {
                self.keep(index, whole);
            }
            return Ok(());
        }
        for piece in &bucket.pieces {
            let index = piece.parameter;
            let whole = self
                .take_kept(index)
                .ok_or_else(|| ZeroError::Taken { parameter: self.name(index), what: "published" })?;
            let whole = whole.edited::<E>(|whole| {
                for rank in (0..self.plan.world()).filter(|&rank| rank != self.rank) {
                    whole[piece.layout.elements(rank)].copy_from_slice(piece.of(rank, parts.of(rank)));
                }
            });
            self.keep(index, whole);
        }
        Ok(())
    }
}
