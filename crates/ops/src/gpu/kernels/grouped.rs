//! Grouped products: rows in groups, as tokens by their experts, each by the matrix of its own.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, client, float, launch};

pub(in crate::gpu) use kernels::GROUP_ROWS;

/// How many rows of a tensor each group has, filled up to a multiple of [`GROUP_ROWS`], one group after the other.
#[derive(Clone)]
pub(in crate::gpu) struct Groups {
    /// For each [`GROUP_ROWS`] rows their group, or their number for nobody's.
    of_rows: Tensor<1, Int>,
    /// For each group, and once more, where its rows begin.
    starts: Tensor<1, Int>,
    /// Those of which there are matrices.
    own: Range<usize>,
}

impl Groups {
    /// Of so many groups.
    pub(in crate::gpu) fn new(of_rows: Tensor<1, Int>, starts: Tensor<1, Int>, count: usize) -> Self {
        Self { of_rows, starts, own: 0..count }
    }

    /// The same rows to one who has the matrices of some groups alone.
    pub(in crate::gpu) fn of(&self, own: Range<usize>) -> Self {
        Self { own, ..self.clone() }
    }

    /// The rows, filled up.
    fn rows(&self) -> usize {
        self.of_rows.dims()[0] * GROUP_ROWS
    }
}

/// The matrices of all groups, `[groups, depth, columns]`, or `[groups, columns, depth]` if they are turned.
#[derive(Clone)]
pub(in crate::gpu) struct Stack {
    pub(in crate::gpu) all: Tensor<3>,
    pub(in crate::gpu) turned: bool,
}

impl Stack {
    /// Factors of a sum, and columns.
    fn sizes(&self) -> [usize; 2] {
        let [_, depth, columns] = self.all.dims();
        if self.turned { [columns, depth] } else { [depth, columns] }
    }

    /// How they lie in memory.
    fn form(&self) -> impl Fn(kernels::Buffer) -> kernels::Matrices + use<> {
        let ([_, rows, columns], turned) = (self.all.dims(), self.turned);
        move |buffer| {
            let matrices = kernels::Matrices::rows(buffer, rows, columns);
            if turned { matrices.transpose() } else { matrices }
        }
    }
}

/// What is added to a product of rows in groups.
#[derive(Default)]
pub(in crate::gpu) struct Beside<'a> {
    /// `p q` of another product, turned as the first one.
    pub(in crate::gpu) more: Option<(&'a Tensor<2>, Stack)>,
    /// `[groups, columns]` in f32.
    pub(in crate::gpu) bias: Option<Tensor<2>>,
}

/// `scale (a b + p q) + bias` of factors rounded to `factors`, each row by the matrices of its group; in `out`. Rows whose group
/// has no matrix are as they are in `into`, or anything.
pub(in crate::gpu) fn multiply_groups(
    a: &Tensor<2>,
    b: &Stack,
    beside: Beside<'_>,
    groups: &Groups,
    into: Option<Tensor<2>>,
    (factors, scale, out): (DType, f32, DType),
) -> Option<Tensor<2>> {
    let [depth, columns] = b.sizes();
    let rows = groups.rows();
    let any = |t: &Tensor<2>| AnyTensor::new(t.clone());
    let Beside { more, bias } = beside;
    let mut tensors = vec![any(a), AnyTensor::new(b.all.clone())];
    tensors.extend(more.iter().flat_map(|(p, q)| [any(p), AnyTensor::new(q.all.clone())]));
    let mut at = |tensor: Option<Tensor<2>>| {
        tensor.map(|tensor| {
            tensors.push(AnyTensor::new(tensor));
            tensors.len() - 1
        })
    };
    let (of_bias, of_into) = (at(bias), at(into));
    let gemm = kernels::Gemm::new(&client(&tensors[0])?, float(factors)?)?;
    let inputs = Inputs::of(&tensors.iter().collect::<Vec<_>>())?.and_integers(groups.of_rows.clone());
    let (right, more) = (b.form(), more.map(|(_, q)| (q.sizes()[0], q.form())));
    let (first, count, to) = (groups.own.start, groups.own.len(), float(out)?);
    drop(tensors);
    let [y] = launch(inputs, [(&[rows, columns], out)], |client, buffers| {
        let of = kernels::Product { batches: 1, rows, columns, depth };
        let left = |at: usize, depth| kernels::Matrices::rows(buffers[at].clone(), rows, depth);
        let more = more.as_ref().map(|(depth, right)| kernels::More {
            a: left(2, *depth),
            b: right(buffers[3].clone()),
            depth: *depth,
        });
        let of_rows = kernels::Groups::Rows { of: buffers[buffers.len() - 1].clone(), first, count };
        let bias = of_bias.map(|at| buffers[at].clone());
        let finish = kernels::Finish { more, scale, bias, ..kernels::Finish::default() };
        let d = match of_into {
            Some(at) => buffers[at].clone(),
            None => kernels::Buffer::empty(client, rows * columns, to),
        };
        let operands = [&left(0, depth), &right(buffers[1].clone())];
        gemm.multiply_groups(client, of, operands, &of_rows, &d, &finish);
        [d]
    });
    Some(of_rank(&y))
}

/// `a^T b` of each group's rows, of factors rounded to `factors`: `[groups, columns of a, columns of b]` in `out`.
pub(in crate::gpu) fn sum_groups(
    a: &Tensor<2>,
    b: &Tensor<2>,
    groups: &Groups,
    (factors, out): (DType, DType),
) -> Option<Tensor<3>> {
    let (rows, columns, depth, count) = (a.dims()[1], b.dims()[1], groups.rows(), groups.own.len());
    let tensors = [a, b].map(|t| AnyTensor::new(t.clone()));
    let gemm = kernels::Gemm::new(&client(&tensors[0])?, float(factors)?)?;
    let inputs = Inputs::of(&tensors.each_ref())?.and_integers(groups.starts.clone());
    let to = float(out)?;
    drop(tensors);
    let [y] = launch(inputs, [(&[count, rows, columns], out)], |client, buffers| {
        let of = kernels::Product { batches: count, rows, columns, depth };
        let a = kernels::Matrices::rows(buffers[0].clone(), depth, rows).transpose();
        let b = kernels::Matrices::rows(buffers[1].clone(), depth, columns);
        let groups = kernels::Groups::Depth(buffers[2].clone());
        let d = kernels::Buffer::empty(client, count * rows * columns, to);
        gemm.multiply_groups(client, of, [&a, &b], &groups, &d, &kernels::Finish::default());
        [d]
    });
    Some(of_rank(&y))
}
