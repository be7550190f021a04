//! The order in which sampled completions train.

use burnish_data::{Cursor, DataError, GroupSampler, Order, Sampler};

/// The order of prompts, and how the completions of a generation batch follow each other in the loop's rows: an epoch
/// has the completions of all its generation batches, of each as often as it is trained on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    prompts: GroupSampler,
    /// Completions of a generation batch.
    batch: usize,
    /// How often it is trained on.
    iterations: usize,
}

/// A row of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Which generation batch of the run, from 0.
    pub(super) generation: u64,
    /// How often it has been trained on before.
    pub(super) iteration: usize,
    /// The completion's place in it.
    pub(super) place: usize,
}

impl Rounds {
    /// Over `rows` prompts: generation batches of `batch` completions, `group` of each prompt.
    pub(super) fn new(
        (rows, order, seed): (usize, Order, u64),
        batch: usize,
        group: usize,
        iterations: usize,
    ) -> Result<Self, DataError> {
        let prompts = GroupSampler::new(rows, order, seed).prompts(batch / group.max(1)).generations(group);
        prompts.check()?;
        Ok(Self { prompts, batch, iterations })
    }

    /// Completions of a generation batch.
    pub(super) const fn batch(&self) -> usize {
        self.batch
    }

    /// Rows of an epoch.
    pub(super) const fn rows_per_epoch(&self) -> usize {
        self.prompts.batches_per_epoch() * self.rows_per_generation()
    }

    const fn rows_per_generation(&self) -> usize {
        self.batch * self.iterations
    }

    /// The loop's rows in their order; one row a micro-batch and one rank until set.
    pub(super) const fn sampler(&self, seed: u64) -> Sampler {
        Sampler::new(self.rows_per_epoch(), Order::Sequential, seed)
    }

    /// What a row of an epoch is.
    pub(super) const fn turn(&self, epoch: u64, row: usize) -> Turn {
        let before = epoch * self.prompts.batches_per_epoch() as u64;
        let within = row % self.rows_per_generation();
        Turn {
            generation: before + (row / self.rows_per_generation()) as u64,
            iteration: within / self.batch,
            place: within % self.batch,
        }
    }

    /// Whether nothing follows of a generation batch.
    pub(super) const fn ends(&self, turn: Turn) -> bool {
        turn.iteration + 1 == self.iterations && turn.place + 1 == self.batch
    }

    /// The data set's row of every completion of a generation batch: a prompt's completions lie one after another.
    pub(super) fn rows(&self, generation: u64) -> Result<Vec<usize>, DataError> {
        let per_epoch = self.prompts.batches_per_epoch();
        let (epoch, index) = (generation / per_epoch as u64, (generation % per_epoch as u64) as usize);
        let cursor = Cursor { epoch, index: index * (self.prompts.rows_per_epoch() / per_epoch) };
        let batch = self.prompts.batches(cursor)?.next().expect("invariant: epochs do not end");
        Ok(batch.rows().collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_epoch_are_generation_batches_one_after_another() {
        // Seven prompts, two a batch: the seventh is left out. Three completions each, every batch twice.
        let rounds = Rounds::new((7, Order::Random, 5), 6, 3, 2).unwrap();
        assert_eq!((rounds.batch(), rounds.rows_per_epoch()), (6, 36));
        assert_eq!(rounds.turn(0, 0), Turn { generation: 0, iteration: 0, place: 0 });
        assert_eq!(rounds.turn(0, 11), Turn { generation: 0, iteration: 1, place: 5 });
        assert_eq!(rounds.turn(2, 13), Turn { generation: 7, iteration: 0, place: 1 });
        let sampler = GroupSampler::new(7, Order::Random, 5).prompts(2).generations(3).repeats(2);
        for epoch in 0..2 {
            let theirs = sampler.epoch(epoch);
            for (row, &prompt) in theirs.iter().enumerate() {
                let turn = rounds.turn(epoch, row);
                assert_eq!(rounds.rows(turn.generation).unwrap()[turn.place], prompt);
            }
        }
    }
}
