//! Rotations of a layer's inputs, block by block, and the inverse that Cayley's form asks.

use super::matrix::Matrix;

/// `W R^T`, block by block of so many columns, of which each has its own `R` or all have one.
pub(super) fn rotate(weight: &mut [f32], width: usize, block: usize, turns: &[Vec<f64>]) {
    let mut turned = vec![0.0_f64; block];
    for row in weight.chunks_exact_mut(width) {
        for (number, columns) in row.chunks_exact_mut(block).enumerate() {
            let turn = &turns[number % turns.len()];
            for (k, y) in turned.iter_mut().enumerate() {
                let of = columns.iter().zip(&turn[k * block..(k + 1) * block]);
                *y = of.map(|(&w, r)| f64::from(w) * r).sum();
            }
            columns.iter_mut().zip(&turned).for_each(|(w, &y)| *w = y as f32);
        }
    }
}

/// The orthogonal matrices of triangles: see [`Change::Rotation`](super::Change::Rotation).
pub(super) fn of_triangles(triangles: &Matrix, n: usize, terms: Option<usize>) -> Vec<Vec<f64>> {
    let skew = |triangle: &[f32]| {
        let mut skew = vec![0.0_f64; n * n];
        let mut upper = triangle.iter();
        for row in 0..n {
            for column in row + 1..n {
                let value = upper.next().copied().map_or(0.0, f64::from);
                (skew[row * n + column], skew[column * n + row]) = (value, -value);
            }
        }
        skew
    };
    triangles.values.chunks_exact(triangles.columns).map(|t| orthogonal(&skew(t), n, terms)).collect()
}

/// The orthogonal matrices of matrices `[n, n]`, of each of which the skew-symmetric half counts.
pub(super) fn of_matrices(matrices: &[f32], n: usize) -> Vec<Vec<f64>> {
    let skew = |m: &[f32]| -> Vec<f64> {
        let half = |row: usize, column: usize| {
            0.5 * (f64::from(m[row * n + column]) - f64::from(m[column * n + row]))
        };
        (0..n * n).map(|at| half(at / n, at % n)).collect()
    };
    matrices.chunks_exact(n * n).map(|m| orthogonal(&skew(m), n, None)).collect()
}

/// Where a factor of a butterfly takes each column of a group of `block << factor` from: the halves of blocks by turns, so
/// that a block of the factor joins columns of blocks that the one before it turned apart.
///
/// ```
/// assert_eq!(burnish_peft::butterfly(2, 1), [0, 2, 1, 3]);
/// ```
#[must_use]
pub fn butterfly(block: usize, factor: usize) -> Vec<usize> {
    if factor == 0 {
        return (0..block).collect();
    }
    let (half, pieces) = (block / 2, 2 << factor);
    let order = (0..pieces).step_by(2).chain((1..pieces).step_by(2));
    order.flat_map(|piece| piece * half..(piece + 1) * half).collect()
}

/// `W (P R P^T)^T` with the order `P` of columns of each group.
pub(super) fn rotate_among(
    weight: &mut [f32],
    width: usize,
    block: usize,
    order: &[usize],
    turns: &[Vec<f64>],
) {
    let mut moved = vec![0.0_f32; order.len()];
    let mut each = |weight: &mut [f32], back: bool| {
        for group in weight.chunks_exact_mut(order.len()) {
            for (at, &from) in order.iter().enumerate() {
                if back { moved[at] = group[from] } else { moved[from] = group[at] }
            }
            group.copy_from_slice(&moved);
        }
    };
    each(weight, false);
    rotate(weight, width, block, turns);
    each(weight, true);
}

/// The orthogonal matrix of a skew-symmetric one, by Cayley's form or a series.
fn orthogonal(skew: &[f64], n: usize, terms: Option<usize>) -> Vec<f64> {
    let mut out: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    let Some(coefficients) = terms.map(neumann) else {
        // 2 (I + Q)^-1 - I.
        let one_and_skew: Vec<f64> = out.iter().zip(skew).map(|(i, q)| i + q).collect();
        let inverse = inverse(one_and_skew, n);
        return inverse.iter().zip(&out).map(|(x, i)| 2.0 * x - i).collect();
    };
    let mut power = out.clone();
    for coefficient in coefficients {
        let mut next = vec![0.0; n * n];
        for (row, from) in next.chunks_exact_mut(n).zip(power.chunks_exact(n)) {
            for (f, q) in from.iter().zip(skew.chunks_exact(n)) {
                row.iter_mut().zip(q).for_each(|(y, x)| *y += f * x);
            }
        }
        power = next;
        out.iter_mut().zip(&power).for_each(|(y, p)| *y += coefficient * p);
    }
    out
}

/// The coefficients of Q, Q^2, ... in PEFT's series of so many terms: twos, and from three terms on a last one.
///
/// ```
/// assert_eq!(burnish_peft::neumann(5), [2.0, 2.0, 2.0, 1.0]);
/// assert_eq!(burnish_peft::neumann(3), burnish_peft::neumann(4));
/// ```
#[must_use]
pub fn neumann(terms: usize) -> Vec<f64> {
    match terms {
        0 | 1 => Vec::new(),
        2 => vec![2.0],
        3 => neumann(4),
        _ => [vec![2.0; terms - 2], vec![1.0]].concat(),
    }
}

/// The inverse of an `[n, n]` matrix that has one: Gauss and Jordan, rows exchanged for the largest pivot.
#[must_use]
pub fn inverse(mut matrix: Vec<f64>, n: usize) -> Vec<f64> {
    let mut out: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    for pivot in 0..n {
        let best =
            (pivot..n).max_by(|&a, &b| matrix[a * n + pivot].abs().total_cmp(&matrix[b * n + pivot].abs()));
        let best = best.unwrap_or(pivot);
        for column in 0..n {
            matrix.swap(pivot * n + column, best * n + column);
            out.swap(pivot * n + column, best * n + column);
        }
        let by = matrix[pivot * n + pivot];
        for column in 0..n {
            matrix[pivot * n + column] /= by;
            out[pivot * n + column] /= by;
        }
        for row in (0..n).filter(|&row| row != pivot) {
            let by = matrix[row * n + pivot];
            for column in 0..n {
                matrix[row * n + column] -= by * matrix[pivot * n + column];
                out[row * n + column] -= by * out[pivot * n + column];
            }
        }
    }
    out
}
