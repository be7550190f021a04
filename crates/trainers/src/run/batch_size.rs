//! `auto_find_batch_size`: rows of a micro-batch that memory has room for.

use burnish_config::TrainerOptions;

use crate::plan::RunPlan;
use crate::rank::resumed::resumed_state;
use crate::run::Trainer;
use crate::{Ranks, TrainError};

/// How many rows a micro-batch may have, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FittingBatch {
    /// Rows per micro-batch on each rank.
    pub rows: usize,
    /// Bytes that all ranks hold then, by their plan.
    pub needs: u64,
    /// Whether that fits; where it does not, `rows` is 1.
    pub fits: bool,
}

/// The rows that are tried after `rows` did not fit: nine tenths, as Accelerate's `find_executable_batch_size`; 0 ends it.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
pub fn fewer(rows: usize) -> usize {
    (rows as f64 * 0.9) as usize
}

/// The most rows per micro-batch, from `per_device_train_batch_size` down, with which all ranks hold at most `room` bytes by
/// their plan.
///
/// # Errors
/// As [`Trainer::plan`].
pub fn fitting_batch<T: Trainer>(
    options: &T::Options,
    ranks: &Ranks,
    room: u64,
) -> Result<FittingBatch, TrainError> {
    let mut rows = options.run_options().training.per_device_train_batch_size;
    loop {
        let mut run = options.run_options();
        run.training.per_device_train_batch_size = rows;
        // As many as there are, whoever started them.
        run.ranks.nproc = ranks.size();
        let sharing = run.ranks.model_parallel_size() as u64;
        let plan = RunPlan::of_step(run, &T::step(options)?)?;
        let held = (0..plan.memory.len()).map(|at| plan.tensors_at_most(at));
        let needs = held.sum::<u64>() * sharing;
        if needs <= room || rows <= 1 {
            return Ok(FittingBatch { rows, needs, fits: needs <= room });
        }
        rows = fewer(rows).max(1);
    }
}

/// The rows per micro-batch of the checkpoint that the run goes on from, if it goes on from one.
///
/// # Errors
/// If that cannot be read.
pub fn resumed_batch(options: &impl TrainerOptions) -> Result<Option<usize>, TrainError> {
    let rows = resumed_state(&options.run_options().training)?.and_then(|state| state.train_batch_size);
    Ok(rows.and_then(|rows| usize::try_from(rows).ok()))
}

/// Runs with `rows` per micro-batch, and where memory was full with [`fewer`], which `said` hears of, as long as ranks can
/// start again.
///
/// # Errors
/// What `run` returns otherwise; memory that is full with one row.
pub fn until_it_fits<O>(
    mut rows: usize,
    ranks: &Ranks,
    mut said: impl FnMut(usize, &TrainError),
    mut run: impl FnMut(usize) -> Result<O, TrainError>,
) -> Result<O, TrainError> {
    loop {
        match run(rows) {
            // Processes, and GPUs with a communicator each, have lost each other.
            Err(error @ TrainError::OutOfMemory { .. })
                if matches!(ranks, Ranks::Threads { .. }) && fewer(rows) > 0 =>
            {
                rows = fewer(rows);
                said(rows, &error);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn full() -> TrainError {
        TrainError::OutOfMemory { bytes: 1, held: None, table: String::new(), mends: Vec::new() }
    }

    #[test]
    fn fewer_rows_until_one() {
        let (mut tried, mut heard) = (Vec::new(), Vec::new());
        let found = until_it_fits(
            12,
            &Ranks::alone(),
            |rows, _| heard.push(rows),
            |rows| {
                tried.push(rows);
                if rows > 7 { Err(full()) } else { Ok(rows) }
            },
        );
        assert_eq!((found.unwrap(), &tried[..], &heard[..]), (7, &[12, 10, 9, 8, 7][..], &[10, 9, 8, 7][..]));
        let never = until_it_fits(2, &Ranks::threads(2), |_, _| {}, |_| Err::<(), _>(full()));
        assert!(matches!(never, Err(TrainError::OutOfMemory { .. })));
        let other = until_it_fits(
            2,
            &Ranks::alone(),
            |_, _| panic!("not asked"),
            |_| Err::<(), _>(TrainError::NothingTrains),
        );
        assert!(matches!(other, Err(TrainError::NothingTrains)));
    }
}
