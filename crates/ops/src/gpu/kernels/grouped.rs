//! Grouped products: rows in groups, as tokens by their experts, each by the matrix of its own.

use burn::tensor::{DType, Device, Int, Tensor};
use burnish_gpu_kernels as kernels;

use super::{integers, of_rank};
use crate::AnyTensor;
use crate::cube::{Inputs, client, float, launch};

pub(in crate::gpu) use kernels::GROUP_ROWS;

/// How many rows of a tensor each group has, filled up to a multiple of [`GROUP_ROWS`], one group after the other.
#[derive(Clone)]
pub(in crate::gpu) struct Groups {
    /// For each [`GROUP_ROWS`] rows their group.
    of_rows: Tensor<1, Int>,
    /// For each group, and once more, where its rows begin.
    starts: Tensor<1, Int>,
    count: usize,
}

impl Groups {
    /// Of groups with so many times [`GROUP_ROWS`] rows.
    pub(in crate::gpu) fn new(tiles: &[usize], device: &Device) -> Self {
        let of_rows = tiles.iter().enumerate().flat_map(|(group, &tiles)| vec![group as i32; tiles]);
        let mut starts = vec![0];
        starts.extend(tiles.iter().scan(0, |start, tiles| {
            *start += (tiles * GROUP_ROWS) as i32;
            Some(*start)
        }));
        let (of_rows, starts) = (integers(of_rows.collect(), device), integers(starts, device));
        Self { of_rows, starts, count: tiles.len() }
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
    fn form(&self) -> impl Fn(kernels::Buffer) -> kernels::Matrices + Send + Sync + 'static {
        let ([_, rows, columns], turned) = (self.all.dims(), self.turned);
        move |buffer| {
            let matrices = kernels::Matrices::rows(buffer, rows, columns);
            if turned { matrices.transpose() } else { matrices }
        }
    }
}

/// `scale (a b + p q)` of factors rounded to `factors`, each row by the matrices of its group; in `out`. `more` is `p` and
/// `q`, turned as `b` is.
pub(in crate::gpu) fn multiply_groups(
    a: &Tensor<2>,
    b: &Stack,
    more: Option<(&Tensor<2>, &Stack)>,
    groups: &Groups,
    (factors, scale, out): (DType, f32, DType),
) -> Option<Tensor<2>> {
    let [depth, columns] = b.sizes();
    let rows = groups.rows();
    let any = |t: &Tensor<2>| AnyTensor::new(t.clone());
    let mut tensors = vec![any(a), AnyTensor::new(b.all.clone())];
    tensors.extend(more.iter().flat_map(|(p, q)| [any(p), AnyTensor::new(q.all.clone())]));
    let gemm = kernels::Gemm::new(&client(&tensors[0])?, float(factors)?)?;
    let inputs = Inputs::of(&tensors.iter().collect::<Vec<_>>())?.and_integers(groups.of_rows.clone());
    let (right, more) = (b.form(), more.map(|(_, q)| (q.sizes()[0], q.form())));
    let (count, to) = (groups.count, float(out)?);
    drop(tensors);
    let [y] = launch(inputs, [(&[rows, columns], out)], |client, buffers| {
        let of = kernels::Product { batches: 1, rows, columns, depth };
        let left = |at: usize, depth| kernels::Matrices::rows(buffers[at].clone(), rows, depth);
        let more = more.as_ref().map(|(depth, right)| kernels::More {
            a: left(2, *depth),
            b: right(buffers[3].clone()),
            depth: *depth,
        });
        let table = buffers[buffers.len() - 1].clone();
        let finish = kernels::Finish { more, scale, ..kernels::Finish::default() };
        let operands = [&left(0, depth), &right(buffers[1].clone())];
        [gemm.multiply_groups(client, of, operands, &kernels::Groups::Rows(table, count), to, &finish)]
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
    let (rows, columns, depth, count) = (a.dims()[1], b.dims()[1], groups.rows(), groups.count);
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
        [gemm.multiply_groups(client, of, [&a, &b], &groups, to, &kernels::Finish::default())]
    });
    Some(of_rank(&y))
}
