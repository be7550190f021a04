//! `GroupSampler`: the prompts of each generation batch, repeated `num_generations` times (TRL's `RepeatSampler`).

use super::{Cursor, Order};
use crate::error::DataError;

/// The order in which prompts are sampled from and trained on: chunks of unique prompts, a prompt's completions one
/// after another, and the whole chunk again for every step and iteration on it. TRL's `RepeatSampler`; as there, the
/// last rows of an epoch are left out when they do not fill a chunk.
///
/// ```
/// use burnish_data::{Cursor, GroupSampler, Order};
///
/// // Two prompts a batch, three completions each.
/// let sampler = GroupSampler::new(5, Order::Sequential, 42).prompts(2).generations(3);
/// let batches: Vec<_> = sampler.batches(Cursor::default()).unwrap().take(3).map(|b| b.prompts).collect();
/// assert_eq!(batches, [[0, 1], [2, 3], [0, 1]]);
/// assert_eq!(sampler.epoch(0), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSampler {
    rows: usize,
    prompts: usize,
    generations: usize,
    repeats: usize,
    order: Order,
    seed: u64,
}

impl GroupSampler {
    /// Over `rows` rows in `order`; one prompt a batch, one completion a prompt, each batch once until set.
    #[must_use]
    pub const fn new(rows: usize, order: Order, seed: u64) -> Self {
        Self { rows, prompts: 1, generations: 1, repeats: 1, order, seed }
    }

    /// Unique prompts of a generation batch: `generation_batch_size / num_generations`.
    #[must_use]
    pub const fn prompts(self, prompts: usize) -> Self {
        Self { prompts, ..self }
    }

    /// `num_generations`: completions of a prompt.
    #[must_use]
    pub const fn generations(self, generations: usize) -> Self {
        Self { generations, ..self }
    }

    /// How often a batch comes in a row: `num_iterations * steps_per_generation`.
    #[must_use]
    pub const fn repeats(self, repeats: usize) -> Self {
        Self { repeats, ..self }
    }

    /// Checks the shape: sizes of at least 1 and at least one batch in an epoch.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<(), DataError> {
        for (option, size) in [
            ("generation_batch_size", self.prompts),
            ("num_generations", self.generations),
            ("num_iterations * steps_per_generation", self.repeats),
        ] {
            if size == 0 {
                return Err(DataError::Range { option, got: 0.0, expected: "at least 1" });
            }
        }
        if self.batches_per_epoch() == 0 {
            return Err(DataError::Options {
                what: "an epoch has no generation batch: there are fewer prompts than one takes",
                mend: "use a smaller `generation_batch_size` (or `per_device_train_batch_size`), or a larger \
                       `num_generations`",
            });
        }
        Ok(())
    }

    /// Generation batches in an epoch.
    #[must_use]
    pub const fn batches_per_epoch(&self) -> usize {
        match self.rows.checked_div(self.prompts) {
            Some(batches) => batches,
            None => 0,
        }
    }

    /// Rows of an epoch that are in a batch.
    #[must_use]
    pub const fn rows_per_epoch(&self) -> usize {
        self.batches_per_epoch() * self.prompts
    }

    /// The rows of an epoch as a data loader would be given them: each chunk `repeats` times, each of its rows
    /// `generations` times.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Vec<usize> {
        let order = self.order.of(self.rows, self.seed, epoch);
        let mut out = Vec::with_capacity(self.rows_per_epoch() * self.repeats * self.generations);
        for chunk in order.chunks_exact(self.prompts.max(1)) {
            for _ in 0..self.repeats {
                out.extend(chunk.iter().flat_map(|&row| std::iter::repeat_n(row, self.generations)));
            }
        }
        out
    }

    /// The generation batches from a cursor on, endlessly through epochs; each once, whatever is repeated of it.
    ///
    /// # Errors
    /// When the cursor is not at a batch of an epoch, or the shape is not usable.
    pub fn batches(self, cursor: Cursor) -> Result<GroupBatches, DataError> {
        self.check()?;
        if cursor.index > self.rows_per_epoch() || !cursor.index.is_multiple_of(self.prompts) {
            return Err(DataError::Cursor { index: cursor.index, rows: self.rows_per_epoch() });
        }
        Ok(GroupBatches { sampler: self, cursor, order: None })
    }
}

/// The generation batches of a run; see [`GroupSampler::batches`].
#[derive(Clone, Debug)]
pub struct GroupBatches {
    sampler: GroupSampler,
    cursor: Cursor,
    order: Option<(u64, Vec<usize>)>,
}

impl GroupBatches {
    /// Where the next batch begins, in prompts: what a checkpoint stores.
    #[must_use]
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }
}

impl Iterator for GroupBatches {
    type Item = GroupBatch;

    fn next(&mut self) -> Option<GroupBatch> {
        let sampler = self.sampler;
        if self.cursor.index >= sampler.rows_per_epoch() {
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, index: 0 };
        }
        let Cursor { epoch, index } = self.cursor;
        if self.order.as_ref().is_none_or(|(e, _)| *e != epoch) {
            self.order = Some((epoch, sampler.order.of(sampler.rows, sampler.seed, epoch)));
        }
        let order = self.order.as_ref().map(|(_, order)| order.as_slice()).unwrap_or_default();
        let end = index + sampler.prompts;
        let prompts = order[index..end].to_vec();
        let ends_epoch = end == sampler.rows_per_epoch();
        self.cursor =
            if ends_epoch { Cursor { epoch: epoch + 1, index: 0 } } else { Cursor { epoch, index: end } };
        Some(GroupBatch { prompts, generations: sampler.generations, ends_epoch })
    }
}

/// The prompts of one generation batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupBatch {
    /// Indices into the data set, each once.
    pub prompts: Vec<usize>,
    generations: usize,
    /// Whether the epoch ends with this batch.
    pub ends_epoch: bool,
}

impl GroupBatch {
    /// Number of completions.
    #[must_use]
    pub fn completions(&self) -> usize {
        self.prompts.len() * self.generations
    }

    /// The data set's row of each completion: a prompt's completions lie one after another.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.prompts.iter().flat_map(|&row| std::iter::repeat_n(row, self.generations))
    }
}
