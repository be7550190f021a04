//! `Sampler`: the rows of each step as a function of (seed, epoch, position), so that any rank can take its slice and
//! a run can stop and resume anywhere. Step and epoch arithmetic as Transformers 5.23.

mod by_length;
mod group;

use std::ops::Range;
use std::sync::Arc;

use burnish_core::choices;
use burnish_core::random::Stream;
use serde::{Deserialize, Serialize};

use crate::error::DataError;

pub use group::{GroupBatch, GroupBatches, GroupSampler};

choices! {
    /// The order of rows in an epoch (`train_sampling_strategy`).
    #[derive(Default)]
    pub enum Order: "train_sampling_strategy", DataError {
        /// A new permutation every epoch.
        #[default]
        Random = "random",
        /// As they are in the file.
        Sequential = "sequential",
        /// A new permutation every epoch, in which rows of like length are beside one another.
        GroupByLength = "group_by_length",
    }
}

impl Order {
    /// The rows of an epoch, in this order.
    pub(crate) fn of(self, rows: usize, seed: u64, epoch: u64) -> Vec<usize> {
        match self {
            Self::Sequential => (0..rows).collect(),
            Self::Random | Self::GroupByLength => {
                Stream::new(seed, "data.sampler").at(epoch).permutation(rows)
            }
        }
    }
}

/// Where in the data a run is: the next row to take is number `index` of epoch `epoch`. Part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Epochs completed.
    pub epoch: u64,
    /// Rows taken from this epoch.
    pub index: usize,
}

/// The shape of steps over a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    rows: usize,
    per_device: usize,
    ranks: usize,
    accumulation: usize,
    global: Option<usize>,
    order: Order,
    seed: u64,
    drop_last: bool,
}

impl Sampler {
    /// Steps over `rows` rows in `order`; one row a micro-batch, one rank, no accumulation until set.
    #[must_use]
    pub const fn new(rows: usize, order: Order, seed: u64) -> Self {
        Self { rows, per_device: 1, ranks: 1, accumulation: 1, global: None, order, seed, drop_last: false }
    }

    /// `per_device_train_batch_size`: rows of a micro-batch.
    #[must_use]
    pub const fn per_device(self, per_device: usize) -> Self {
        Self { per_device, ..self }
    }

    /// Number of data-parallel ranks.
    #[must_use]
    pub const fn ranks(self, ranks: usize) -> Self {
        Self { ranks, ..self }
    }

    /// `gradient_accumulation_steps`: micro-batches of a rank in a step.
    #[must_use]
    pub const fn accumulation(self, accumulation: usize) -> Self {
        Self { accumulation, ..self }
    }

    /// `global_batch_size`: rows of a step on all ranks together; ranks then run as many micro-batches as that takes,
    /// whatever [`accumulation`](Self::accumulation) says.
    #[must_use]
    pub const fn global(self, global: Option<usize>) -> Self {
        Self { global, ..self }
    }

    /// `dataloader_drop_last`: leave out an epoch's last rows when they do not fill a micro-batch on every rank.
    #[must_use]
    pub const fn drop_last(self, drop_last: bool) -> Self {
        Self { drop_last, ..self }
    }

    /// Checks the shape: sizes of at least 1 and at least one step in an epoch.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), DataError> {
        let sizes = [
            ("per_device_train_batch_size", self.per_device),
            ("nproc", self.ranks),
            ("gradient_accumulation_steps", self.accumulation),
            ("global_batch_size", self.global_batch()),
        ];
        for (option, size) in sizes {
            if size == 0 {
                return Err(DataError::Range { option, got: 0.0, expected: "at least 1" });
            }
        }
        if self.rows_per_epoch() == 0 {
            return Err(DataError::Options {
                what: "an epoch has no step: there are fewer rows than one micro-batch on every rank needs and \
                       `dataloader_drop_last` leaves out the rest",
                mend: "turn it off or use a smaller `per_device_train_batch_size`",
            });
        }
        Ok(())
    }

    /// Rows of a full step: the global batch.
    #[must_use]
    pub const fn global_batch(&self) -> usize {
        match self.global {
            Some(rows) => rows,
            None => self.per_device * self.ranks * self.accumulation,
        }
    }

    /// Rows used in an epoch.
    #[must_use]
    pub const fn rows_per_epoch(&self) -> usize {
        let micro = self.per_device * self.ranks;
        if self.drop_last && micro > 0 { self.rows / micro * micro } else { self.rows }
    }

    /// Micro-batches of a rank in an epoch.
    #[must_use]
    pub const fn micro_steps_per_epoch(&self) -> usize {
        self.rows_per_epoch().div_ceil(self.per_device * self.ranks)
    }

    /// Optimizer steps in an epoch; the last may have fewer rows.
    #[must_use]
    pub const fn steps_per_epoch(&self) -> usize {
        let steps = self.rows_per_epoch().div_ceil(self.global_batch());
        if steps == 0 { 1 } else { steps }
    }

    /// Optimizer steps of a run: `max_steps` when positive, else `num_train_epochs` (a fraction is a part of an epoch).
    #[must_use]
    pub fn total_steps(&self, num_train_epochs: f64, max_steps: i64) -> usize {
        match usize::try_from(max_steps) {
            Ok(steps) if steps > 0 => steps,
            _ => (num_train_epochs * self.steps_per_epoch() as f64).ceil().max(0.0) as usize,
        }
    }

    /// The cursor after `steps` optimizer steps from the start.
    #[must_use]
    pub const fn after(&self, steps: usize) -> Cursor {
        let per_epoch = self.steps_per_epoch();
        Cursor { epoch: (steps / per_epoch) as u64, index: steps % per_epoch * self.global_batch() }
    }

    /// Epochs done at a cursor, as Transformers logs them (counted in micro-batches; with a
    /// [global batch](Self::global) in rows, so that the number of ranks does not show).
    #[must_use]
    pub fn epochs(&self, cursor: Cursor) -> f64 {
        if self.global.is_some() {
            return cursor.epoch as f64 + cursor.index as f64 / self.rows_per_epoch() as f64;
        }
        let micro = cursor.index.div_ceil(self.per_device * self.ranks);
        cursor.epoch as f64 + micro as f64 / self.micro_steps_per_epoch() as f64
    }

    /// The rows of an epoch, in order.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Vec<usize> {
        self.order.of(self.rows, self.seed, epoch)
    }

    /// The steps from a cursor on, endlessly through epochs.
    ///
    /// # Errors
    /// When the cursor lies beyond an epoch, or the shape is not usable.
    pub fn steps(self, cursor: Cursor) -> Result<Steps, DataError> {
        self.check()?;
        if cursor.index > self.rows_per_epoch() {
            return Err(DataError::Cursor { index: cursor.index, rows: self.rows_per_epoch() });
        }
        Ok(Steps { sampler: self, cursor, order: None, lengths: None })
    }
}

/// The steps of a run; see [`Sampler::steps`].
#[derive(Clone, Debug)]
pub struct Steps {
    sampler: Sampler,
    cursor: Cursor,
    order: Option<(u64, Vec<usize>)>,
    /// Of rows, where they decide the order.
    lengths: Option<Arc<[usize]>>,
}

impl Steps {
    /// The same steps where the rows' lengths are known, which [`Order::GroupByLength`] asks for.
    ///
    /// # Errors
    /// If it asks and there are none.
    pub fn with_lengths(self, lengths: impl FnOnce() -> Option<Vec<usize>>) -> Result<Self, DataError> {
        if self.sampler.order != Order::GroupByLength {
            return Ok(self);
        }
        let lengths = lengths().ok_or(DataError::Options {
            what: "`train_sampling_strategy` is group_by_length, and this trainer's rows have no one length",
            mend: "set it to random or sequential",
        })?;
        Ok(Self { lengths: Some(lengths.into()), ..self })
    }

    /// Where the next step begins: what a checkpoint stores.
    #[must_use]
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let sampler = self.sampler;
        if self.cursor.index >= sampler.rows_per_epoch() {
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, index: 0 };
        }
        let Cursor { epoch, index } = self.cursor;
        if self.order.as_ref().is_none_or(|(e, _)| *e != epoch) {
            let order = sampler.epoch(epoch);
            let order = match &self.lengths {
                Some(lengths) => by_length::grouped(&order, lengths, sampler.global_batch()),
                None => order,
            };
            self.order = Some((epoch, order));
        }
        let order = self.order.as_ref().map(|(_, order)| order.as_slice()).unwrap_or_default();
        let end = (index + sampler.global_batch()).min(sampler.rows_per_epoch());
        let rows = order[index..end].to_vec();
        self.cursor.index = end;
        let ends_epoch = end == sampler.rows_per_epoch();
        if ends_epoch {
            self.cursor = Cursor { epoch: epoch + 1, index: 0 };
        }
        let done = Cursor { epoch, index: end };
        Some(Step {
            rows,
            epoch,
            per_device: sampler.per_device,
            ranks: sampler.ranks,
            ends_epoch,
            epochs: sampler.epochs(done),
        })
    }
}

/// The rows of one optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Indices into the data set, the step's global batch in order.
    pub rows: Vec<usize>,
    /// The epoch they are of, from 0.
    pub epoch: u64,
    per_device: usize,
    ranks: usize,
    /// Whether the epoch ends with this step.
    pub ends_epoch: bool,
    /// Epochs done after this step, as Transformers logs them.
    pub epochs: f64,
}

impl Step {
    /// Micro-batches that every rank runs; fewer in the last step of an epoch.
    #[must_use]
    pub const fn micro_steps(&self) -> usize {
        self.rows.len().div_ceil(self.per_device * self.ranks)
    }

    /// The places in [`Step::rows`] of one rank's micro-batch, possibly empty in the last step of an epoch.
    ///
    /// Micro-batch m of rank r is slice number m * ranks + r, so the step's rows do not depend on how they are cut.
    #[must_use]
    pub fn slice(&self, rank: usize, micro_step: usize) -> Range<usize> {
        let slice = micro_step * self.ranks + rank;
        let start = (slice * self.per_device).min(self.rows.len());
        start..(start + self.per_device).min(self.rows.len())
    }
}

#[cfg(test)]
mod tests;
