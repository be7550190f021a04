//! The split of rows into those trained on and those held out (`test_split_size`).

use std::collections::HashSet;

use burnish_core::random::Stream;

use crate::error::DataError;

/// Which rows are held out: a choice by (seed, number of rows), the same on every rank and after a resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOut {
    rows: HashSet<usize>,
}

impl HeldOut {
    /// Holds out a fraction of `rows` below 1, or that many rows from 1 on (`test_split_size`); rounded up.
    ///
    /// # Errors
    /// When nothing would be left to train on, or the size is not positive.
    pub fn new(rows: usize, size: f64, seed: u64) -> Result<Self, DataError> {
        let range = |expected| DataError::Range { option: "test_split_size", got: size, expected };
        if size.is_nan() || size <= 0.0 {
            return Err(range("a fraction between 0 and 1, or a number of rows"));
        }
        let count = if size < 1.0 { (size * rows as f64).ceil() } else { size.floor() } as usize;
        if count >= rows {
            return Err(range("fewer rows than the data set has"));
        }
        let order = Stream::new(seed, "data.held_out").permutation(rows);
        Ok(Self { rows: order.into_iter().take(count).collect() })
    }

    /// Whether row `index` (in reading order) is held out.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        self.rows.contains(&index)
    }

    /// Number of rows held out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row is held out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows of one side, in reading order.
    pub fn select<T>(&self, held_out: bool, rows: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        rows.enumerate().filter(move |(i, _)| self.contains(*i) == held_out).map(|(_, row)| row)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn both_sides_together_are_all_rows() {
        for (size, held) in [(0.1, 11), (0.25, 26), (7.0, 7), (7.9, 7)] {
            let split = HeldOut::new(101, size, 3).unwrap();
            assert_eq!(split.len(), held);
            let test: Vec<usize> = split.select(true, 0..101).collect();
            let mut all: Vec<usize> = split.select(false, 0..101).chain(test.iter().copied()).collect();
            assert_eq!(test.len(), held);
            all.sort_unstable();
            assert_eq!(all, (0..101).collect::<Vec<_>>());
        }
        assert_eq!(HeldOut::new(50, 0.2, 3).unwrap(), HeldOut::new(50, 0.2, 3).unwrap());
        assert_ne!(HeldOut::new(50, 0.2, 3).unwrap(), HeldOut::new(50, 0.2, 4).unwrap());
    }

    #[test]
    fn sizes_that_leave_nothing_are_errors() {
        for size in [0.0, -1.0, 10.0, 11.0, f64::NAN, 0.95] {
            let e = HeldOut::new(10, size, 3).unwrap_err().to_string();
            assert!(e.contains("test_split_size"), "{e}");
        }
    }
}
