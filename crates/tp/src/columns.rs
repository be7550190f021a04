//! Columns of activations: all of them on every rank, or each rank's own.

use std::ops::Range;

use burnish_core::Split;
use burnish_ops::{AnyTensor, Elements, OpsError, apply};
use burnish_tensor_comm::{bucket, tensors};

use crate::Tp;
use crate::handle::{expect_f32, expect_shape, zeros};
use crate::index_select::{lines, matrix, select, shaped};

impl Tp {
    /// Every rank's columns, put together: the output of a column-parallel layer, whole. In backward each rank's columns
    /// of the gradient, which is the same on every rank.
    ///
    /// # Shapes
    /// - x: `[…, split.len(rank)]` in f32, output: `[…, split.length()]`. Forward: one all-gather of the output.
    ///
    /// # Errors
    /// If `x` has other columns, or is not f32.
    pub fn gather_columns(&self, x: &AnyTensor, split: &Split, what: &str) -> Result<AnyTensor, OpsError> {
        const OP: &str = "gather_columns";
        self.expect_columns(OP, x, split, split.len(self.rank().min(split.ranks() - 1)))?;
        if self.size() == 1 {
            return Ok(x.clone());
        }
        apply(OP, std::slice::from_ref(x), |plain, _| {
            let out = self.put_together(&plain[0], split, &format!("{what}: output"));
            let (rank, split) = (self.rank(), split.clone());
            // of what ranks share, one rank has the gradient: addends of it make it whole
            let backward = move |upstream: AnyTensor| vec![Some(cut(&upstream, &split, rank, true))];
            Ok((out, Box::new(backward)))
        })
    }

    /// This rank's columns of what every rank has whole: the input of a row-parallel layer. In backward every rank's
    /// gradients, put together (added, where ranks share columns).
    ///
    /// # Shapes
    /// - x: `[…, split.length()]` in f32, output: `[…, split.len(rank)]`. Backward: one all-gather of the input.
    ///
    /// # Errors
    /// If `x` has other columns, or is not f32.
    pub fn scatter_columns(&self, x: &AnyTensor, split: &Split, what: &str) -> Result<AnyTensor, OpsError> {
        const OP: &str = "scatter_columns";
        self.expect_columns(OP, x, split, split.length())?;
        if self.size() == 1 {
            return Ok(x.clone());
        }
        apply(OP, std::slice::from_ref(x), |plain, _| {
            let out = cut(&plain[0], split, self.rank(), false);
            let (tp, split, what) = (self.clone(), split.clone(), format!("{what}: gradient of the input"));
            let backward = move |upstream: AnyTensor| {
                vec![Some(if split.overlaps() {
                    tp.summed(&embed(&upstream, &split, tp.rank()), &what)
                } else {
                    tp.put_together(&upstream, &split, &what)
                })]
            };
            Ok((out, Box::new(backward)))
        })
    }

    fn expect_columns(
        &self,
        op: &'static str,
        x: &AnyTensor,
        split: &Split,
        columns: usize,
    ) -> Result<(), OpsError> {
        expect_f32(op, "x", x)?;
        expect_shape(op, "ranks of the split", vec![split.ranks()], &[self.size()])?;
        expect_shape(op, "x", x.shape(), &with_columns(&x.shape(), columns))
    }

    /// All columns from each rank's.
    fn put_together(&self, x: &AnyTensor, split: &Split, what: &str) -> AnyTensor {
        let (shape, device) = (x.shape(), x.device());
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let all = with_columns(&shape, split.length());
        let counts: Vec<usize> = (0..split.ranks()).map(|rank| rows * split.len(rank)).collect();
        let Some(parts) = bucket(x).and_then(|part| self.gathered(part, &counts, what)) else {
            return zeros(&all, &device);
        };
        if !x.is_on_host() {
            let parts = tensors(&parts, &device).into_iter().enumerate();
            let parts = parts.filter(|(rank, _)| counts[*rank] > 0);
            let parts: Vec<_> = parts.map(|(rank, part)| matrix(&part, split.len(rank))).collect();
            if parts.is_empty() {
                return zeros(&all, &device);
            }
            return shaped(select(parts, 1, &places(split, 0..split.ranks())), &all);
        }
        let mut out = vec![0.0; rows * split.length()];
        for (rank, part) in parts.iter().enumerate() {
            let own = split.len(rank);
            if own == 0 {
                continue;
            }
            for (to, mut from) in out.chunks_exact_mut(split.length()).zip(part.chunks_exact(own)) {
                for piece in split.pieces(rank) {
                    let (now, rest) = from.split_at(piece.len());
                    to[piece.clone()].copy_from_slice(now);
                    from = rest;
                }
            }
        }
        AnyTensor::from_elements(out, &all, &device)
    }
}

/// The columns of `rank`; with `primary`, zeros in those that a lower rank has too.
fn cut(x: &AnyTensor, split: &Split, rank: usize, primary: bool) -> AnyTensor {
    let shape = with_columns(&x.shape(), split.len(rank));
    if !x.is_on_host() && split.len(rank) > 0 {
        return shaped(select(vec![matrix(x, split.length())], 1, &numbers(split, rank, primary)), &shape);
    }
    let mut out = Vec::with_capacity(shape.iter().product());
    let values = values(x);
    if split.length() > 0 {
        for row in values.chunks_exact(split.length()) {
            for piece in split.pieces(rank) {
                out.extend_from_slice(&row[piece.clone()]);
            }
        }
    }
    if primary && split.overlaps() {
        let counted = split.local(rank, &split.primary(rank));
        for row in out.chunks_exact_mut(split.len(rank).max(1)) {
            for (column, value) in row.iter_mut().enumerate() {
                if !counted.iter().any(|range| range.contains(&column)) {
                    *value = 0.0;
                }
            }
        }
    }
    AnyTensor::from_elements(out, &shape, &x.device())
}

/// The columns of `rank` among all, the others zero.
fn embed(x: &AnyTensor, split: &Split, rank: usize) -> AnyTensor {
    let shape = with_columns(&x.shape(), split.length());
    if !x.is_on_host() && split.len(rank) > 0 {
        return shaped(select(vec![matrix(x, split.len(rank))], 1, &places(split, rank..rank + 1)), &shape);
    }
    let mut out = vec![0.0; shape.iter().product()];
    let values = values(x);
    if split.len(rank) > 0 {
        for (to, mut from) in out.chunks_exact_mut(split.length()).zip(values.chunks_exact(split.len(rank))) {
            for piece in split.pieces(rank) {
                let (now, rest) = from.split_at(piece.len());
                to[piece.clone()].copy_from_slice(now);
                from = rest;
            }
        }
    }
    AnyTensor::from_elements(out, &shape, &x.device())
}

/// Which columns of all are those of `rank`; with `primary`, none in place of those that a lower rank has too.
fn numbers(split: &Split, rank: usize, primary: bool) -> Vec<Option<usize>> {
    let counted = split.primary(rank);
    let own = split.pieces(rank).iter().cloned().flatten();
    own.map(|column| (!primary || counted.iter().any(|range| range.contains(&column))).then_some(column))
        .collect()
}

/// Where each of all columns is among those of `ranks`, side by side; of what several have, the last one's.
fn places(split: &Split, ranks: Range<usize>) -> Vec<Option<usize>> {
    let columns = ranks.flat_map(|rank| split.pieces(rank)).cloned().flatten().enumerate();
    lines(split.length(), columns.map(|(at, column)| (column, at)))
}

fn values(x: &AnyTensor) -> Elements<f32> {
    x.elements::<f32>().expect("invariant: f32, as the input of the operation")
}

/// `shape` with another last dimension.
fn with_columns(shape: &[usize], columns: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    shape
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "tests")]

    use burn::tensor::Device;

    use super::*;

    /// What a device does by numbers is what the host does by slices.
    #[test]
    fn columns_by_number_are_columns_by_slice() {
        let device = Device::flex();
        // the second rank has columns of the first, and the third has two pieces
        let split = Split::of(7, [vec![0..3], vec![1..4], vec![4..5, 6..7], vec![5..6]]);
        let tensor = |columns: usize| {
            let values = (0..3 * columns).map(|i| i as f32 + 1.0).collect();
            AnyTensor::from_elements(values, &[3, columns], &device)
        };
        let x = tensor(split.length());
        for rank in 0..split.ranks() {
            for primary in [false, true] {
                let by_number = select(vec![matrix(&x, split.length())], 1, &numbers(&split, rank, primary));
                let by_slice = cut(&x, &split, rank, primary);
                assert_eq!(shaped(by_number, &by_slice.shape()).to_f32(), by_slice.to_f32());
            }
            let own = tensor(split.len(rank));
            let by_number = select(vec![matrix(&own, split.len(rank))], 1, &places(&split, rank..rank + 1));
            let by_slice = embed(&own, &split, rank);
            assert_eq!(shaped(by_number, &by_slice.shape()).to_f32(), by_slice.to_f32());
        }
        let parts = (0..split.ranks()).map(|r| matrix(&cut(&x, &split, r, false), split.len(r))).collect();
        let together = select(parts, 1, &places(&split, 0..split.ranks()));
        assert_eq!(shaped(together, &x.shape()).to_f32(), x.to_f32());
    }
}
