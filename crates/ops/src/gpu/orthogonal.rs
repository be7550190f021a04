//! Newton–Schulz by batched products of matrices.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use crate::orthogonal::{NewtonSchulz, Stacked};
use crate::{AnyTensor, OpsError};

/// Elements of a batch of equal shapes.
const BATCH: usize = 1 << 26;

/// See [`crate::orthogonalize`].
pub fn orthogonalize(stacks: Vec<Stacked>, iteration: &NewtonSchulz) -> Result<Vec<AnyTensor>, OpsError> {
    // By shape: (stack, block, first row).
    let mut equal: BTreeMap<[usize; 2], Vec<(usize, usize, usize)>> = BTreeMap::new();
    let mut done: Vec<Vec<Option<Tensor<2>>>> = Vec::with_capacity(stacks.len());
    for (s, stack) in stacks.iter().enumerate() {
        let [_, columns] = stack.size();
        let mut row = 0;
        for (b, &rows) in stack.blocks.iter().enumerate() {
            if rows * columns > 0 {
                equal.entry([rows, columns]).or_default().push((s, b, row));
            }
            row += rows;
        }
        done.push(vec![None; stack.blocks.len()]);
    }
    for ([rows, columns], places) in equal {
        let size = rows * columns;
        for some in places.chunks((BATCH / size).max(1)) {
            let batch = some
                .iter()
                .map(|&(s, _, row)| {
                    stacks[s]
                        .tensor
                        .piece(row * columns..row * columns + size, &[1, rows, columns])
                        .rank::<3>()
                })
                .collect::<Result<Vec<_>, _>>()?;
            let result = newton_schulz(Tensor::cat(batch, 0), iteration);
            for (i, &(s, b, _)) in some.iter().enumerate() {
                done[s][b] = Some(result.clone().narrow(0, i, 1).reshape([rows, columns]));
            }
        }
    }
    Ok(stacks
        .into_iter()
        .zip(done)
        .map(|(stack, blocks)| {
            let blocks: Vec<_> = blocks.into_iter().flatten().collect();
            if blocks.is_empty() {
                return stack.tensor;
            }
            let shape = stack.tensor.shape();
            AnyTensor::new(Tensor::cat(blocks, 0)).piece(0..shape.iter().product(), &shape)
        })
        .collect())
}

/// `x` is `[batch, rows, columns]`, none of them 0.
fn newton_schulz(x: Tensor<3>, iteration: &NewtonSchulz) -> Tensor<3> {
    let [_, rows, columns] = x.dims();
    let product = |a: Tensor<3>, b: Tensor<3>| super::product::matmul(a, b, iteration.compute);
    let x = if rows > columns { x.swap_dims(1, 2) } else { x };
    // The largest magnitude first, so that no square leaves the range of f32; 1 for a zero matrix.
    let x = x.clone() / positive(x.abs().max_dim(1).max_dim(2));
    let norm = x.clone().powi_scalar(2).sum_dim(2).sum_dim(1).sqrt() * iteration.margin();
    let mut x = x / positive(norm);
    let short = rows.min(columns);
    let one = Tensor::<2>::eye(short, &x.device()).cast(super::float(x.dtype())).unsqueeze::<3>();
    let triples = iteration.triples();
    for leg in iteration.legs(rows, columns) {
        let mut r = product(x.clone(), x.clone().swap_dims(1, 2));
        let mut q: Option<Tensor<3>> = None;
        let last = leg.end - 1;
        for step in leg {
            let [a, b, c] = triples[step];
            let p = r.clone() * b + product(r.clone(), r.clone()) * c + one.clone() * a;
            if step < last {
                r = product(product(p.clone(), r), p.clone());
            }
            q = Some(match q {
                Some(q) => product(p, q),
                None => p,
            });
        }
        if let Some(q) = q {
            x = product(q, x);
        }
    }
    if rows > columns { x.swap_dims(1, 2) } else { x }
}

/// 1 where it is 0.
fn positive(t: Tensor<3>) -> Tensor<3> {
    let zero = t.clone().equal_elem(0.0);
    t.mask_fill(zero, 1.0)
}
