//! `MatrixGather`: the exchange that makes sharded matrices whole at their owner for Newton-Schulz.

use std::convert::Infallible;
use std::ops::Range;

use burnish_core::Registry;
use burnish_ops::AnyTensor;

/// Brings the pieces of matrices to one owner each, and what the owner makes of them back.
///
/// A matrix is as its parameter is stored, `[out, in]` or `[in, out]`, of experts `[experts, ..]`; pieces and whole
/// matrices are f32. Every rank calls [`gather`](Self::gather) and [`scatter`](Self::scatter) once per step and in this
/// order, also with nothing to bring.
pub trait MatrixGather {
    /// What can go wrong on the way.
    type Error;

    /// Takes this rank's pieces by parameter index, ascending (empty ones may be left out), and returns the whole
    /// matrices that this rank owns, ascending.
    ///
    /// # Errors
    /// If a rank cannot be reached, or brings a piece of another shape.
    fn gather(&mut self, pieces: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, Self::Error>;

    /// Takes the whole matrices of the last [`gather`](Self::gather), changed, and returns this rank's pieces of all
    /// matrices, ascending (empty ones may be left out).
    ///
    /// # Errors
    /// If a rank cannot be reached.
    fn scatter(&mut self, whole: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, Self::Error>;

    /// Which rows and columns of the stored matrix this rank's piece is, ascending; `[experts, rows, columns]` counts as
    /// `experts * rows` rows. Randomness goes by these positions, so that it is the same on every layout.
    fn held(&self, index: usize) -> (Vec<Range<usize>>, Vec<Range<usize>>);
}

/// Every matrix is whole on this rank already.
///
/// ```
/// use burnish_core::{Dtype, Parameter, Registry, Role};
/// use burnish_optim::{MatrixGather, LocalMatrices};
/// let mut registry = Registry::new();
/// registry.add(Parameter::new("experts", &[4, 3, 2], Role::Expert, Dtype::F32)).unwrap();
/// assert_eq!(LocalMatrices::new(&registry).held(0), (vec![0..12], vec![0..2]));
/// ```
#[derive(Clone, Debug)]
pub struct LocalMatrices {
    /// Rows and columns by parameter index.
    sizes: Vec<[usize; 2]>,
}

impl LocalMatrices {
    /// For the parameters of `global`.
    #[must_use]
    pub fn new(global: &Registry) -> Self {
        Self { sizes: global.iter().map(|p| rows_and_columns(&p.shape)).collect() }
    }
}

impl MatrixGather for LocalMatrices {
    type Error = Infallible;

    fn gather(&mut self, pieces: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, Infallible> {
        Ok(pieces)
    }

    fn scatter(&mut self, whole: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, Infallible> {
        Ok(whole)
    }

    fn held(&self, index: usize) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let [rows, columns] = self.sizes[index];
        let all = |n| std::iter::once(0..n).collect();
        (all(rows), all(columns))
    }
}

/// The last dimension, and the product of those before it.
pub(crate) fn rows_and_columns(shape: &[usize]) -> [usize; 2] {
    match shape.split_last() {
        Some((&columns, rows)) => [rows.iter().product(), columns],
        None => [0, 0],
    }
}
