//! Ranks as threads of this process: an [`MatrixGather`] over matrices that are cut by rows or by columns.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Barrier, Mutex};

use burn::tensor::Device;
use burnish_core::Registry;
use burnish_ops::AnyTensor;
use burnish_optim::MatrixGather;

/// What a rank holds of each parameter, of `[rows, columns]`.
pub(crate) type Cuts = Vec<(Range<usize>, Range<usize>)>;

/// Tensors' values by parameter index.
type Laid = Vec<(usize, Vec<f32>)>;

/// What the ranks lay down for one another.
pub(crate) struct Board {
    places: Vec<Mutex<Laid>>,
    barrier: Barrier,
    cuts: Vec<Cuts>,
    shapes: Vec<Vec<usize>>,
}

impl Board {
    pub(crate) fn new(global: &Registry, cuts: Vec<Cuts>) -> Self {
        Self {
            places: cuts.iter().map(|_| Mutex::default()).collect(),
            barrier: Barrier::new(cuts.len()),
            cuts,
            shapes: global.iter().map(|p| p.shape.clone()).collect(),
        }
    }

    pub(crate) fn columns(&self, index: usize) -> usize {
        *self.shapes[index].last().unwrap()
    }

    /// The elements that a rank holds, by their place in the whole.
    pub(crate) fn elements(&self, rank: usize, index: usize) -> Vec<usize> {
        let (rows, columns) = self.cuts[rank][index].clone();
        let width = self.columns(index);
        rows.flat_map(|r| columns.clone().map(move |c| r * width + c)).collect()
    }

    /// The shape of what a rank holds.
    pub(crate) fn shape(&self, rank: usize, index: usize) -> Vec<usize> {
        let (rows, columns) = self.cuts[rank][index].clone();
        match self.shapes[index][..] {
            [_] => vec![columns.len()],
            [_, out, _] => vec![rows.len() / out, out, columns.len()],
            _ => vec![rows.len(), columns.len()],
        }
    }

    /// Which rank makes the whole matrix.
    pub(crate) fn owner(&self, index: usize) -> usize {
        (index * 7 + 1) % self.cuts.len()
    }
}

pub(crate) struct Rank<'a> {
    pub(crate) board: &'a Board,
    pub(crate) rank: usize,
}

impl Rank<'_> {
    fn lay(&self, tensors: Vec<(usize, AnyTensor)>) {
        *self.board.places[self.rank].lock().unwrap() =
            tensors.into_iter().map(|(i, t)| (i, t.to_f32())).collect();
        self.board.barrier.wait();
    }
}

impl MatrixGather for Rank<'_> {
    type Error = Infallible;

    fn gather(&mut self, pieces: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, Infallible> {
        assert!(pieces.windows(2).all(|w| w[0].0 < w[1].0), "ascending");
        self.lay(pieces);
        let board = self.board;
        let mut whole = Vec::new();
        for (index, shape) in board.shapes.iter().enumerate().filter(|&(i, _)| board.owner(i) == self.rank) {
            let mut values = vec![f32::NAN; shape.iter().product()];
            for rank in 0..board.places.len() {
                let place = board.places[rank].lock().unwrap();
                if let Some((_, piece)) = place.iter().find(|(i, _)| *i == index) {
                    let elements = board.elements(rank, index);
                    assert_eq!(elements.len(), piece.len());
                    elements.into_iter().zip(piece).for_each(|(at, &v)| values[at] = v);
                }
            }
            if values.iter().any(|v| !v.is_nan()) {
                assert!(values.iter().all(|v| !v.is_nan()), "all pieces or none");
                whole.push((index, AnyTensor::from_elements(values, shape, &Device::flex())));
            }
        }
        board.barrier.wait();
        Ok(whole)
    }

    fn scatter(&mut self, whole: Vec<(usize, AnyTensor)>) -> Result<Vec<(usize, AnyTensor)>, Infallible> {
        self.lay(whole);
        let board = self.board;
        let mut pieces = Vec::new();
        for index in 0..board.shapes.len() {
            let place = board.places[board.owner(index)].lock().unwrap();
            let elements = board.elements(self.rank, index);
            if let Some((_, values)) = place.iter().find(|(i, _)| *i == index)
                && !elements.is_empty()
            {
                let piece = elements.into_iter().map(|at| values[at]).collect();
                let shape = board.shape(self.rank, index);
                pieces.push((index, AnyTensor::from_elements(piece, &shape, &Device::flex())));
            }
        }
        board.barrier.wait();
        Ok(pieces)
    }

    fn held(&self, index: usize) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let (rows, columns) = self.board.cuts[self.rank][index].clone();
        (std::iter::once(rows).collect(), std::iter::once(columns).collect())
    }
}
