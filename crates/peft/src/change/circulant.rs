//! Circulant blocks: each row is the one above it, moved on by one.

use super::matrix::Matrix;

/// Where each element of a circulant block `[n, n]` is in its kernel `[n]`: that of row `j` and column `t` at
/// `(t - j) mod n`.
///
/// ```
/// assert_eq!(burnish_peft::circulant(3), [0, 1, 2, 2, 0, 1, 1, 2, 0]);
/// ```
#[must_use]
pub fn circulant(n: usize) -> Vec<usize> {
    (0..n * n).map(|at| (at % n + n - at / n) % n).collect()
}

/// Adds to a weight whose rows are so wide the blocks of kernels, over the width.
pub(super) fn add_circulants(weight: &mut [f32], width: usize, n: usize, kernels: &Matrix) {
    let (across, at) = (width / n, circulant(n));
    for (o, row) in weight.chunks_exact_mut(width).enumerate() {
        let (down, j) = (o / n, o % n);
        for (t, w) in row.iter_mut().enumerate() {
            let kernel = (down * across + t / n) * n;
            *w += kernels.values[kernel + at[j * n + t % n]] / width as f32;
        }
    }
}
