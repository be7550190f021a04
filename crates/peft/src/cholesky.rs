//! `Cholesky`: a symmetric positive definite matrix as `L L^T`, in f64, for what is solved with it (Golub & Van Loan, *Matrix
//! Computations*, section 4.2). Sums run in one order, so the bits do not depend on threads.

use rayon::prelude::*;

use crate::spectral::dot;

/// Rows below which a column is not worth several threads.
const ALONE: usize = 256;

/// The lower factor, `[n, n]` row-major.
pub(crate) struct Cholesky {
    lower: Vec<f64>,
    n: usize,
}

impl Cholesky {
    /// The factor of a symmetric `[n, n]` matrix, whose lower half is read; `None` where it is not positive definite.
    pub(crate) fn new(mut matrix: Vec<f64>, n: usize) -> Option<Self> {
        for j in 0..n {
            let (above, below) = matrix.split_at_mut((j + 1) * n);
            let own = &mut above[j * n..];
            let square = own[j] - dot(&own[..j], &own[..j]);
            if square <= 0.0 || !square.is_finite() {
                return None;
            }
            own[j] = square.sqrt();
            let own = &own[..=j];
            let one = |row: &mut [f64]| row[j] = (row[j] - dot(&row[..j], &own[..j])) / own[j];
            if n - j > ALONE {
                below.par_chunks_exact_mut(n).for_each(one);
            } else {
                below.chunks_exact_mut(n).for_each(one);
            }
        }
        Some(Self { lower: matrix, n })
    }

    /// `x` with `L L^T x = y`.
    pub(crate) fn solve(&self, y: &[f64]) -> Vec<f64> {
        let (n, mut x) = (self.n, y.to_vec());
        for i in 0..n {
            let row = &self.lower[i * n..=i * n + i];
            x[i] = (x[i] - dot(&row[..i], &x[..i])) / row[i];
        }
        for i in (0..n).rev() {
            let row = &self.lower[i * n..=i * n + i];
            x[i] /= row[i];
            let (before, own) = x.split_at_mut(i);
            before.iter_mut().zip(&row[..i]).for_each(|(x, l)| *x -= own[0] * l);
        }
        x
    }

    /// [`Self::solve`] of each.
    pub(crate) fn solve_all(&self, ys: &[Vec<f64>]) -> Vec<Vec<f64>> {
        ys.par_iter().map(|y| self.solve(y)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_is_solved_multiplies_back() {
        for n in [1, 7, 300] {
            let x: Vec<Vec<f64>> =
                (0..n).map(|i| (0..n).map(|j| ((i * 31 + j * 17) % 23) as f64 / 23.0).collect()).collect();
            let element = |i: usize, j: usize| dot(&x[i], &x[j]) + if i == j { 1.0 } else { 0.0 };
            let matrix: Vec<f64> = (0..n * n).map(|at| element(at / n, at % n)).collect();
            let y: Vec<f64> = (0..n).map(|i| (i as f64).sin()).collect();
            let solved =
                Cholesky::new(matrix.clone(), n).unwrap().solve_all(std::slice::from_ref(&y)).remove(0);
            for i in 0..n {
                let got = dot(&matrix[i * n..(i + 1) * n], &solved);
                assert!((got - y[i]).abs() < 1e-9, "{n}: {i}: {got} is not {}", y[i]);
            }
        }
        assert!(Cholesky::new(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
    }
}
