//! [`SequenceRows`]: a few rows of each sequence that is being generated.

use burn::tensor::{Int, Tensor, TensorData};

#[cfg(feature = "cube")]
use crate::AnyTensor;
use crate::OpsError;
#[cfg(feature = "cube")]
use crate::cube;

/// As many rows of each sequence, one behind the other; zeros where nothing was said. In a step that is recorded they stay where
/// they are, with rows of nobody behind them (`rest`).
#[derive(Clone, Debug)]
pub struct SequenceRows {
    op: &'static str,
    sequences: usize,
    each: usize,
    /// `[sequences * each, width]`; `None` before the first token.
    rows: Option<Tensor<2>>,
    /// Sequences that there are rows for where they rest.
    resting: Option<usize>,
}

impl SequenceRows {
    pub(crate) fn new(op: &'static str, sequences: usize, each: usize) -> Self {
        Self { op, sequences, each, rows: None, resting: None }
    }

    /// Sequences that the next tokens are of, nobody's too.
    pub(crate) fn count(&self) -> usize {
        self.resting.unwrap_or(self.sequences)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.dtype().size() * rows.shape().num_elements())
    }

    /// Sequence `i` becomes what `order[i]` was.
    ///
    /// # Errors
    /// If `order` names a sequence that is not held; all is then as before.
    pub(crate) fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        if let Some(&got) = order.iter().find(|&&o| o >= self.sequences) {
            return Err(OpsError::Index { op: self.op, got, limit: self.sequences });
        }
        let same = order.len() == self.sequences && order.iter().enumerate().all(|(i, &o)| i == o);
        self.sequences = order.len();
        if same {
            return Ok(());
        }
        let each = self.each;
        let own = |rows: &Tensor<2>| {
            let from = order.iter().flat_map(|&o| (o * each..(o + 1) * each).map(|row| row as i32));
            let from: Vec<i32> = from.collect();
            let data = TensorData::new(from, [order.len() * each]);
            rows.clone().select(0, Tensor::<1, Int>::from_data(data, &rows.device()))
        };
        let Some(rows) = self.rows.as_ref().map(own) else { return Ok(()) };
        if self.resting.is_none_or(|count| order.len() > count) || !self.written(0, &rows) {
            (self.rows, self.resting) = (Some(rows), None);
        }
        Ok(())
    }

    /// The sequences of `other` follow those that are here.
    pub(crate) fn append(&mut self, mut other: Self) {
        other.settle();
        let (each, all) = (self.each, self.sequences + other.sequences);
        let fits = self.resting.is_some_and(|count| all <= count);
        let empty = |like: &Tensor<2>, sequences: usize| {
            Tensor::zeros([sequences * each, like.dims()[1]], (&like.device(), like.dtype()))
        };
        if let (true, Some(own)) = (fits, &self.rows) {
            let more = other.rows.clone().unwrap_or_else(|| empty(own, other.sequences));
            if self.written(self.sequences, &more) {
                self.sequences = all;
                return;
            }
        }
        self.settle();
        let both = match (self.rows.take(), other.rows) {
            (None, None) => None,
            (Some(own), Some(more)) => Some([own, more]),
            (Some(own), None) => Some([own.clone(), empty(&own, other.sequences)]),
            (None, Some(more)) => Some([empty(&more, self.sequences), more]),
        };
        (self.rows, self.sequences) = (both.map(|both| Tensor::cat(both.to_vec(), 0)), all);
    }

    /// Takes out the sequences from `at` on.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.sequences, "{}: sequence {at} is outside 0..={}", self.op, self.sequences);
        self.settle();
        let sequences = std::mem::replace(&mut self.sequences, at) - at;
        let rows = self.rows.take();
        let part = |first, count| {
            rows.as_ref().map(|rows| rows.clone().narrow(0, first * self.each, count * self.each))
        };
        let other = part(at, sequences).filter(|_| sequences > 0);
        self.rows = part(0, at);
        Self { sequences, rows: other, resting: None, ..*self }
    }

    /// The rows of [`Self::count`] sequences, or such as `empty` makes of so many rows.
    pub(crate) fn held(&self, empty: impl FnOnce(usize) -> Tensor<2>) -> Tensor<2> {
        self.rows.clone().unwrap_or_else(|| empty(self.count() * self.each))
    }

    /// What the next tokens read.
    pub(crate) fn keep(&mut self, rows: Tensor<2>) {
        if self.resting.is_none() || !self.written(0, &rows) {
            (self.rows, self.resting) = (Some(rows), None);
        }
    }

    /// Leaves rows of nobody behind where the next tokens are of so many sequences.
    pub(crate) fn settle_for(&mut self, sequences: usize) {
        if self.count() != sequences {
            self.settle();
        }
    }

    fn settle(&mut self) {
        if self.resting.take().is_some_and(|count| count > self.sequences) {
            self.rows = self.rows.take().map(|rows| rows.narrow(0, 0, self.sequences * self.each));
        }
    }

    /// Writes rows from a sequence's on to where all of them rest; whether they could be.
    #[cfg(feature = "cube")]
    fn written(&self, first: usize, rows: &Tensor<2>) -> bool {
        let Some(home) = &self.rows else { return false };
        cube::overwrite(&AnyTensor::new(home.clone()), first * self.each * home.dims()[1], rows)
    }

    #[cfg(not(feature = "cube"))]
    fn written(&self, _: usize, _: &Tensor<2>) -> bool {
        false
    }

    /// Has rows for `count` sequences from now on, that the next tokens' are written over, and says where: a number that changes when
    /// they move. `None` where they cannot rest.
    ///
    /// # Panics
    /// If there are more sequences.
    #[cfg(feature = "cube")]
    #[must_use]
    pub fn rest(&mut self, count: usize) -> Option<usize> {
        assert!(self.sequences <= count, "{}: rows for each sequence", self.op);
        if self.resting != Some(count) {
            self.settle();
            let own = self.rows.clone()?;
            let nobody = [(count - self.sequences) * self.each, own.dims()[1]];
            let nobody = Tensor::zeros(nobody, (&own.device(), own.dtype()));
            let all = if nobody.dims()[0] == 0 { own } else { Tensor::cat(vec![own, nobody], 0) };
            let home = cube::duplicate(&AnyTensor::new(all))?;
            (self.rows, self.resting) = (Some(home.rank().ok()?), Some(count));
        }
        cube::memory_of(&AnyTensor::new(self.rows.clone()?))
    }

    /// What rests, elsewhere.
    #[cfg(feature = "cube")]
    #[must_use]
    pub fn duplicate(&self) -> Option<AnyTensor> {
        cube::duplicate(&AnyTensor::new(self.rows.clone()?))
    }

    /// Writes what was [duplicated](Self::duplicate) over what rests.
    ///
    /// # Panics
    /// If that is of no two dimensions.
    #[cfg(feature = "cube")]
    pub fn restore(&mut self, rows: &AnyTensor) {
        let rows = rows.rank().expect("invariant: two dimensions were duplicated");
        self.keep(rows);
    }
}
