//! Rotations on the tape: orthogonal matrices of what trains, and a weight turned by them.

use burn::tensor::{Int, Tensor, TensorData};
use burnish_ops::{AnyTensor, OpsError, apply};
use burnish_peft::{butterfly, inverse, neumann};

/// The orthogonal matrices `[blocks, n, n]` of triangles `[blocks, n (n - 1) / 2]`.
pub(super) fn rotations(triangles: Tensor<2>, n: usize, terms: Option<usize>) -> Result<Tensor<3>, OpsError> {
    let ([blocks, _], device) = (triangles.dims(), triangles.device());
    let (mut from, mut signs) = (vec![0_i64; n * n], vec![0.0_f32; n * n]);
    let pairs = (0..n).flat_map(|row| (row + 1..n).map(move |column| (row, column)));
    for (at, (row, column)) in pairs.enumerate() {
        (from[row * n + column], signs[row * n + column]) = (at as i64, 1.0);
        (from[column * n + row], signs[column * n + row]) = (at as i64, -1.0);
    }
    let from = Tensor::<1, Int>::from_data(TensorData::new(from, [n * n]), &device);
    let signs = Tensor::<2>::from_data(TensorData::new(signs, [1, n * n]), &device);
    let skew = (triangles.select(1, from) * signs).reshape([blocks, n, n]);
    orthogonal(skew, terms)
}

/// The orthogonal matrices of the skew-symmetric halves of matrices `[blocks, n, n]`.
pub(super) fn of_halves(matrices: Tensor<3>) -> Result<Tensor<3>, OpsError> {
    orthogonal((matrices.clone() - matrices.swap_dims(1, 2)) * 0.5, None)
}

/// The orthogonal matrices of skew-symmetric ones, by Cayley's form or a series.
fn orthogonal(skew: Tensor<3>, terms: Option<usize>) -> Result<Tensor<3>, OpsError> {
    let ([blocks, n, _], device) = (skew.dims(), skew.device());
    let unit: Tensor<3> = Tensor::<2>::eye(n, &device).unsqueeze_dim(0);
    let Some(coefficients) = terms.map(neumann) else {
        return Ok(inverses(skew + unit.clone())? * 2.0 - unit);
    };
    let (mut sum, mut power) = (unit.repeat_dim(0, blocks), None::<Tensor<3>>);
    for coefficient in coefficients {
        let next = match power {
            Some(power) => power.matmul(skew.clone()),
            None => skew.clone(),
        };
        sum = sum + next.clone() * coefficient;
        power = Some(next);
    }
    Ok(sum)
}

/// The inverses of matrices `[count, n, n]`, made on the host in f64.
fn inverses(matrices: Tensor<3>) -> Result<Tensor<3>, OpsError> {
    let inverses = apply("inverses", &[AnyTensor::new(matrices)], |plain, _| {
        let shape = plain[0].shape();
        let (each, n) = (shape[1] * shape[2], shape[1]);
        let values = plain[0].to_f32();
        let wide = |block: &[f32]| block.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let inverted = values.chunks_exact(each.max(1)).flat_map(|block| inverse(wide(block), n));
        let out: Vec<f32> = inverted.map(|x| x as f32).collect();
        let out = AnyTensor::from_elements(out, &shape, &plain[0].device());
        let turned = out.rank::<3>()?.swap_dims(1, 2);
        // d(X^-1) = -X^-1 dX X^-1.
        let backward = move |upstream: AnyTensor| {
            let upstream = upstream.rank::<3>().expect("invariant: of the rank of the output");
            vec![Some(AnyTensor::new(turned.clone().matmul(upstream).matmul(turned).neg()))]
        };
        Ok((out, Box::new(backward)))
    })?;
    inverses.rank::<3>()
}

/// `W (P R P^T)^T` with the order `P` of a butterfly's factor in each group of columns.
pub(super) fn rotated_among(weight: Tensor<2>, turns: Tensor<3>, factor: usize) -> Tensor<2> {
    let ([_, input], [_, n, _], device) = (weight.dims(), turns.dims(), weight.device());
    if factor == 0 {
        return rotated(weight, turns);
    }
    let group = butterfly(n, factor);
    let (mut to, mut from) = (vec![0_i64; input], vec![0_i64; input]);
    for at in 0..input {
        let there = at - at % group.len() + group[at % group.len()];
        (to[at], from[there]) = (there as i64, at as i64);
    }
    let order = |at: Vec<i64>| Tensor::<1, Int>::from_data(TensorData::new(at, [input]), &device);
    rotated(weight.select(1, order(from)), turns).select(1, order(to))
}

/// `W R^T`, block by block; one `R` turns all blocks.
pub(super) fn rotated(weight: Tensor<2>, turns: Tensor<3>) -> Tensor<2> {
    let ([out, input], [blocks, n, _]) = (weight.dims(), turns.dims());
    let turned = turns.swap_dims(1, 2);
    if blocks == 1 {
        return weight.reshape([out * input / n, n]).matmul(turned.reshape([n, n])).reshape([out, input]);
    }
    let parts = weight.reshape([out, blocks, n]).swap_dims(0, 1);
    parts.matmul(turned).swap_dims(0, 1).reshape([out, input])
}
