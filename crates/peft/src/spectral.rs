//! The decompositions that initialise adapters: leading singular triplets and orthonormal columns, in f64.
//!
//! Only the rank asked for is computed: block Krylov spaces with Rayleigh-Ritz restarts (Golub & Van Loan, *Matrix
//! Computations*, section 10.3; Musco & Musco 2015), from a start that is counted, not drawn. Sums run in one order, so
//! the bits do not depend on threads.

use rayon::prelude::*;

use crate::cholesky::Cholesky;

/// A stored matrix, row-major.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// Vectors of one length.
type Columns = Vec<Vec<f64>>;

/// `W ~ sum_i s_i u_i v_i^T`, largest first. The largest element of each `u_i` is positive (the first of equals).
pub(crate) struct Triplets {
    pub(crate) left: Columns,
    pub(crate) values: Vec<f64>,
    pub(crate) right: Columns,
}

/// Columns beyond the rank: they make the last wanted one converge sooner.
const SPARE: usize = 8;
/// Widest Krylov space, where the rank allows it.
const WIDEST: usize = 256;
/// Residual of an eigenvector at which it is done, of the largest eigenvalue.
const DONE: f64 = 1e-11;
/// The same of the inverse's eigenvectors, which are what rounding leaves of them.
const NEARLY: f64 = 1e-8;
/// A singular value, of the largest, that is rounding in f32.
const NOTHING: f64 = 1e-7;
/// Restarts at most; what is left then is a rotation among nearly equal singular values.
const RESTARTS: usize = 100;

impl Matrix<'_> {
    /// `W x` for each `x`.
    fn times(&self, x: &[Vec<f64>]) -> Columns {
        let (b, by_row) = (x.len(), interleaved(x));
        let mut y = vec![0.0; self.rows * b];
        y.par_chunks_mut(b.max(1)).zip(self.values.par_chunks(self.columns)).for_each(|(y, w)| {
            for (&w, x) in w.iter().zip(by_row.chunks_exact(b)) {
                y.iter_mut().zip(x).for_each(|(y, x)| *y += f64::from(w) * x);
            }
        });
        columns(&y, b)
    }

    /// `W^T y` for each `y`.
    fn transposed_times(&self, y: &[Vec<f64>]) -> Columns {
        /// Input features of a task.
        const BLOCK: usize = 64;
        let (b, by_row) = (y.len(), interleaved(y));
        let mut x = vec![0.0; self.columns * b];
        x.par_chunks_mut(BLOCK * b.max(1)).enumerate().for_each(|(block, x)| {
            let first = block * BLOCK;
            for (w, y) in self.values.chunks_exact(self.columns).zip(by_row.chunks_exact(b)) {
                for (&w, x) in w[first..].iter().zip(x.chunks_exact_mut(b)) {
                    x.iter_mut().zip(y).for_each(|(x, y)| *x += f64::from(w) * y);
                }
            }
        });
        columns(&x, b)
    }

    /// The `rank` leading triplets. `start(i)` are standard normal values.
    pub(crate) fn leading(&self, rank: usize, start: impl Fn(usize) -> f64) -> Triplets {
        let wide = self.columns > self.rows;
        let n = self.rows.min(self.columns);
        // Eigenvectors of the smaller of W^T W and W W^T.
        let square = |x: &[Vec<f64>]| {
            if wide { self.times(&self.transposed_times(x)) } else { self.transposed_times(&self.times(x)) }
        };
        let block = leading_eigenvectors(n, rank, DONE, square, &start);
        let mut other = if wide { self.transposed_times(&block) } else { self.times(&block) };
        let values: Vec<f64> = other.iter_mut().map(|v| normalise(v)).collect();
        let (left, right) = if wide { (block, other) } else { (other, block) };
        Triplets { left, values, right }.with_signs()
    }

    /// The `rank` triplets of the smallest singular values among the `min(rows, columns)` there are, largest first as everywhere.
    /// Where a value is rounding, the left vector is any that is orthogonal to all columns.
    pub(crate) fn trailing(&self, rank: usize, start: impl Fn(usize) -> f64) -> Triplets {
        let wide = self.columns > self.rows;
        let n = self.rows.min(self.columns);
        let across: Vec<Vec<f64>> = if wide {
            self.values
                .chunks_exact(self.columns)
                .map(|row| row.iter().map(|&x| x.into()).collect())
                .collect()
        } else {
            let column = |c: usize| self.values.iter().skip(c).step_by(self.columns).map(|&x| x.into());
            (0..n).map(|c| column(c).collect()).collect()
        };
        // The smaller of W W^T and W^T W, lifted by less than what is lost in f32.
        let mut gram = vec![0.0; n * n];
        gram.par_chunks_exact_mut(n).enumerate().for_each(|(i, row)| {
            row[..=i].iter_mut().zip(&across).for_each(|(to, other)| *to = dot(&across[i], other));
        });
        let largest = (0..n).map(|i| gram[i * n + i]).fold(f64::MIN_POSITIVE, f64::max);
        let lift = largest * NOTHING * NOTHING;
        (0..n).for_each(|i| gram[i * n + i] += lift);
        let inverse = Cholesky::new(gram, n).expect("invariant: a lifted Gram matrix is positive definite");
        let mut block = leading_eigenvectors(n, rank, NEARLY, |x| inverse.solve_all(x), &start);
        block.reverse();
        let mut other = if wide { self.transposed_times(&block) } else { self.times(&block) };
        let values: Vec<f64> = other.iter_mut().map(|v| normalise(v)).collect();
        if wide {
            return Triplets { left: block, values, right: other }.with_signs();
        }
        let none = |value: f64| value <= 10.0 * NOTHING * largest.sqrt();
        let mut known: Columns =
            other.iter().zip(&values).filter(|(_, value)| !none(**value)).map(|(v, _)| v.clone()).collect();
        for (at, left) in other.iter_mut().enumerate().filter(|(at, _)| none(values[*at])) {
            let mut vector: Vec<f64> = (0..self.rows).map(|i| start((n + at) * self.rows + i)).collect();
            for _ in 0..2 {
                let within = inverse.solve_all(&self.transposed_times(std::slice::from_ref(&vector)));
                let within = self.times(&within).remove(0);
                vector.iter_mut().zip(within).for_each(|(v, w)| *v -= w);
            }
            let Some(vector) = orthonormal(vector, &known) else { continue };
            known.push(vector.clone());
            *left = vector;
        }
        Triplets { left: other, values, right: block }.with_signs()
    }

    /// Approximate leading triplets by `iterations` of a randomised subspace iteration (Halko et al. 2009, algorithm
    /// 5.1, as `torch.svd_lowrank`). `start(i)` are standard normal values.
    pub(crate) fn randomised(&self, rank: usize, iterations: u32, start: impl Fn(usize) -> f64) -> Triplets {
        let n = self.columns;
        let random: Columns = (0..rank).map(|c| (0..n).map(|i| start(c * n + i)).collect()).collect();
        let mut basis = all_orthonormal(self.times(&random));
        for _ in 0..iterations {
            basis = all_orthonormal(self.times(&all_orthonormal(self.transposed_times(&basis))));
        }
        // The rows of Q^T W, and their Gram matrix.
        let rows = self.transposed_times(&basis);
        let m = rows.len();
        let gram = (0..m * m).map(|i| dot(&rows[i / m], &rows[i % m])).collect();
        let (_, vectors) = eigen(gram, m);
        let mix = |of: &Columns, c: usize, len: usize| {
            let mut sum = vec![0.0; len];
            for (k, vector) in of.iter().enumerate() {
                sum.iter_mut().zip(vector).for_each(|(s, v)| *s += vectors[k * m + c] * v);
            }
            sum
        };
        let left = (0..m).map(|c| mix(&basis, c, self.rows)).collect();
        let mut right: Columns = (0..m).map(|c| mix(&rows, c, n)).collect();
        let values = right.iter_mut().map(|v| normalise(v)).collect();
        Triplets { left, values, right }.with_signs()
    }

    /// `Q` of the first `rank` columns and the rows of `R = Q^T W`: the leading part of a QR decomposition with a
    /// positive diagonal.
    pub(crate) fn leading_qr(&self, rank: usize) -> (Columns, Columns) {
        let column =
            |c: usize| (0..self.rows).map(|i| f64::from(self.values[i * self.columns + c])).collect();
        let q = all_orthonormal((0..rank).map(column).collect());
        let r = self.transposed_times(&q);
        (q, r)
    }
}

impl Triplets {
    /// Left and right with `left right^T` the sum of the triplets over `scale`, half of it on either side.
    pub(crate) fn halved(mut self, scale: f64) -> (Columns, Columns) {
        for (at, value) in self.values.iter().enumerate() {
            let root = (value / scale).sqrt();
            self.left[at].iter_mut().chain(self.right[at].iter_mut()).for_each(|x| *x *= root);
        }
        (self.left, self.right)
    }

    fn with_signs(mut self) -> Self {
        for (left, right) in self.left.iter_mut().zip(&mut self.right) {
            let largest = left.iter().fold(0.0_f64, |top, &x| if x.abs() > top.abs() { x } else { top });
            if largest < 0.0 {
                left.iter_mut().chain(right.iter_mut()).for_each(|x| *x = -*x);
            }
        }
        self
    }
}

/// The `rank` leading eigenvectors of a symmetric operator on `n` dimensions, to a residual of `done`.
fn leading_eigenvectors(
    n: usize,
    rank: usize,
    done: f64,
    operator: impl Fn(&[Vec<f64>]) -> Columns,
    start: &dyn Fn(usize) -> f64,
) -> Columns {
    let width = (rank + SPARE).min(n);
    let mut block: Columns = (0..width).map(|c| (0..n).map(|i| start(c * n + i)).collect()).collect();
    for _ in 0..RESTARTS {
        let (mut basis, mut images): (Columns, Columns) = (Vec::new(), Vec::new());
        while !block.is_empty()
            && basis.len() < n
            && (basis.is_empty() || basis.len() + width <= WIDEST.max(3 * width))
        {
            let known = basis.len();
            for vector in block {
                if let Some(vector) = orthonormal(vector, &basis) {
                    basis.push(vector);
                }
            }
            block = operator(&basis[known..]);
            images.extend(block.iter().cloned());
        }
        let m = basis.len();
        let mut small: Vec<f64> = vec![0.0; m * m];
        for i in 0..m {
            for j in 0..=i {
                let value = (dot(&basis[i], &images[j]) + dot(&basis[j], &images[i])) / 2.0;
                (small[i * m + j], small[j * m + i]) = (value, value);
            }
        }
        let (values, vectors) = eigen(small, m);
        let mix = |of: &Columns, c: usize| {
            let mut sum = vec![0.0; n];
            for (k, vector) in of.iter().enumerate() {
                let f = vectors[k * m + c];
                sum.iter_mut().zip(vector).for_each(|(s, v)| *s += f * v);
            }
            sum
        };
        let taken = width.min(m);
        block = (0..taken).map(|c| mix(&basis, c)).collect();
        let largest = values.first().copied().unwrap_or(0.0);
        let converged = m == n
            || (0..rank.min(taken)).all(|c| {
                let image = mix(&images, c);
                let residual: f64 =
                    image.iter().zip(&block[c]).map(|(i, x)| (i - values[c] * x).powi(2)).sum();
                residual.sqrt() <= done * largest
            });
        if converged {
            break;
        }
    }
    block.truncate(rank);
    block
}

/// Orthonormal vectors that span the same as the leading ones of `vectors`; where one depends on those before it, zeros.
pub(crate) fn all_orthonormal(vectors: Columns) -> Columns {
    let mut basis: Columns = Vec::with_capacity(vectors.len());
    for vector in vectors {
        let zero = vec![0.0; vector.len()];
        let next = orthonormal(vector, &basis).unwrap_or(zero);
        basis.push(next);
    }
    basis
}

/// The factors `A` `[rank, columns]` and `B` `[rows, rank]` of the product of left and right vectors.
pub(crate) fn factors(left: &Columns, right: &Columns, rows: usize) -> (Vec<f32>, Vec<f32>) {
    let a = right.iter().flatten().map(|&x| x as f32).collect();
    let b = (0..rows).flat_map(|row| left.iter().map(move |l| l[row] as f32)).collect();
    (a, b)
}

/// What of `vector` is orthogonal to `basis`, normalised; `None` if that is rounding.
fn orthonormal(mut vector: Vec<f64>, basis: &[Vec<f64>]) -> Option<Vec<f64>> {
    let before = dot(&vector, &vector).sqrt();
    // Twice is enough (Kahan, in Parlett, *The Symmetric Eigenvalue Problem*, section 6.9).
    for _ in 0..2 {
        for known in basis {
            let f = dot(&vector, known);
            vector.iter_mut().zip(known).for_each(|(v, k)| *v -= f * k);
        }
    }
    let left = normalise(&mut vector);
    (left > 1e-13 * before).then_some(vector)
}

/// Divides by the norm and returns it; zeros stay.
fn normalise(vector: &mut [f64]) -> f64 {
    let norm = dot(vector, vector).sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|v| *v /= norm);
    }
    norm
}

pub(crate) fn dot(x: &[f64], y: &[f64]) -> f64 {
    // Eight sums side by side, so that the compiler may use vectors.
    let mut sums = [0.0; 8];
    let (mut xs, mut ys) = (x.chunks_exact(8), y.chunks_exact(8));
    for (x, y) in (&mut xs).zip(&mut ys) {
        sums.iter_mut().zip(x.iter().zip(y)).for_each(|(s, (x, y))| *s += x * y);
    }
    let tail: f64 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + tail
}

/// Vectors side by side, row-major.
fn interleaved(vectors: &[Vec<f64>]) -> Vec<f64> {
    let n = vectors.first().map_or(0, Vec::len);
    (0..n).flat_map(|i| vectors.iter().map(move |v| v[i])).collect()
}

fn columns(rows: &[f64], b: usize) -> Columns {
    (0..b).map(|c| rows.iter().skip(c).step_by(b).copied().collect()).collect()
}

/// Eigenvalues, largest first, and eigenvectors (column `c` of the result belongs to value `c`) of a symmetric `[n, n]`
/// matrix, by cyclic Jacobi rotations.
pub(crate) fn eigen(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    // Row i is the i-th eigenvector while rotating.
    let mut v: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    let total: f64 = a.iter().map(|x| x * x).sum();
    for _ in 0..60 {
        let off: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i * n + j].powi(2)).sum();
        if off <= 1e-30 * total {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                let apq = a[p * n + q];
                if apq.abs() <= f64::MIN_POSITIVE {
                    continue;
                }
                let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
                let t = theta.signum() / (theta.abs() + theta.hypot(1.0));
                let c = 1.0 / t.hypot(1.0);
                let s = t * c;
                rotate_rows(&mut a, n, p, q, c, s);
                for k in 0..n {
                    let (x, y) = (a[k * n + p], a[k * n + q]);
                    (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
                }
                rotate_rows(&mut v, n, p, q, c, s);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[j * n + j].total_cmp(&a[i * n + i]));
    let values = order.iter().map(|&i| a[i * n + i]).collect();
    let vectors = (0..n * n).map(|i| v[order[i % n] * n + i / n]).collect();
    (values, vectors)
}

/// Rows `p < q`: `(c p - s q, s p + c q)`.
fn rotate_rows(a: &mut [f64], n: usize, p: usize, q: usize, c: f64, s: f64) {
    let (head, tail) = a.split_at_mut(q * n);
    for (x, y) in head[p * n..(p + 1) * n].iter_mut().zip(&mut tail[..n]) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use burnish_core::random::Stream;

    fn random(rows: usize, columns: usize) -> Vec<f32> {
        let s = Stream::new(5, "matrix");
        (0..rows * columns).map(|i| s.normal(i as u64)).collect()
    }

    fn check(rows: usize, columns: usize, rank: usize, t: &Triplets, tolerance: f64) {
        assert_eq!((t.left.len(), t.right.len(), t.values.len()), (rank, rank, rank));
        for i in 0..rank {
            for j in 0..rank {
                let one = if i == j { 1.0 } else { 0.0 };
                assert!(
                    (dot(&t.left[i], &t.left[j]) - one).abs() < tolerance,
                    "{rows} {columns} left {i} {j}"
                );
                assert!((dot(&t.right[i], &t.right[j]) - one).abs() < tolerance, "right {i} {j}");
            }
            let top = t.left[i].iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
            assert!(top > 0.0, "sign of {i}");
            assert!(i == 0 || t.values[i] <= t.values[i - 1] * (1.0 + tolerance));
        }
    }

    /// `W v = s u` and `W^T u = s v`, and no direction outside is larger.
    #[test]
    fn leading_triplets_are_singular() {
        for (rows, columns, rank) in [(1, 1, 1), (40, 40, 7), (12, 90, 12), (300, 120, 5), (200, 700, 3)] {
            let values = random(rows, columns);
            let w = Matrix { values: &values, rows, columns };
            let s = Stream::new(1, "start");
            let t = w.leading(rank, |i| f64::from(s.normal(i as u64)));
            check(rows, columns, rank, &t, 1e-8);
            let (wv, wu) = (w.times(&t.right), w.transposed_times(&t.left));
            for i in 0..rank {
                let worst = |got: &[f64], want: &[f64]| {
                    got.iter().zip(want).map(|(g, w)| (g - t.values[i] * w).abs()).fold(0.0, f64::max)
                };
                assert!(worst(&wv[i], &t.left[i]) < 1e-7 * t.values[0], "{rows} {columns} {i}");
                assert!(worst(&wu[i], &t.right[i]) < 1e-7 * t.values[0], "{rows} {columns} {i}");
            }
            // The sum of squares of all singular values is known; with all of them taken nothing is left.
            if rank == rows.min(columns) {
                let all: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
                let taken: f64 = t.values.iter().map(|s| s * s).sum();
                assert!((all - taken).abs() < 1e-9 * all);
            }
        }
    }

    /// `W v = s u`, orthonormal, and no direction is smaller.
    #[test]
    fn trailing_triplets_are_singular() {
        for (rows, columns, rank) in [(1, 1, 1), (40, 40, 7), (12, 90, 12), (300, 120, 5), (200, 700, 3)] {
            let values = random(rows, columns);
            let w = Matrix { values: &values, rows, columns };
            let s = Stream::new(1, "start");
            let start = |i| f64::from(s.normal(i as u64));
            let t = w.trailing(rank, start);
            check(rows, columns, rank, &t, 1e-6);
            let (wv, wu) = (w.times(&t.right), w.transposed_times(&t.left));
            let all = w.leading(rows.min(columns), start);
            for i in 0..rank {
                let worst = |got: &[f64], want: &[f64]| {
                    got.iter().zip(want).map(|(g, w)| (g - t.values[i] * w).abs()).fold(0.0, f64::max)
                };
                assert!(worst(&wv[i], &t.left[i]) < 1e-6 * all.values[0], "{rows} {columns} {i}");
                assert!(worst(&wu[i], &t.right[i]) < 1e-6 * all.values[0], "{rows} {columns} {i}");
                let want = all.values[rows.min(columns) - rank + i];
                assert!((t.values[i] - want).abs() < 1e-6 * all.values[0], "{rows} {columns} {i}");
            }
        }
        // Five equal columns: of the others nothing is left, and orthogonal vectors fill in.
        let values = vec![1.0; 6 * 5];
        let w = Matrix { values: &values, rows: 6, columns: 5 };
        let s = Stream::new(1, "start");
        let t = w.trailing(3, |i| f64::from(s.normal(i as u64)));
        for (i, left) in t.left.iter().enumerate() {
            assert!(t.values[i] < 1e-6 && left.iter().sum::<f64>().abs() < 1e-6, "{:?}", t.values);
            assert!(
                t.left
                    .iter()
                    .enumerate()
                    .all(|(j, o)| (dot(left, o) - f64::from(u8::from(i == j))).abs() < 1e-6)
            );
        }
    }

    #[test]
    fn the_randomised_ones_approach_them() {
        let (rows, columns, rank) = (60, 90, 4);
        let values = random(rows, columns);
        let w = Matrix { values: &values, rows, columns };
        let s = Stream::new(1, "start");
        let exact = w.leading(rank, |i| f64::from(s.normal(i as u64)));
        let errors: Vec<f64> = [0, 2, 60]
            .map(|n| {
                let t = w.randomised(rank, n, |i| f64::from(s.normal(i as u64)));
                check(rows, columns, rank, &t, 1e-8);
                (exact.values[rank - 1] - t.values[rank - 1]).abs() / exact.values[0]
            })
            .to_vec();
        assert!(errors[0] > errors[1] && errors[1] > errors[2] && errors[2] < 0.01, "{errors:?}");
    }

    #[test]
    fn a_deficient_matrix_has_zero_values() {
        let values = vec![1.0; 6 * 5];
        let w = Matrix { values: &values, rows: 6, columns: 5 };
        let t = w.leading(3, |i| (i as f64 * 0.7).sin());
        assert!((t.values[0] - 30_f64.sqrt()).abs() < 1e-12 && t.values[1] < 1e-7, "{:?}", t.values);
        let (q, r) = w.leading_qr(2);
        assert!(q[1].iter().all(|&x| x == 0.0) && r[1].iter().all(|&x| x == 0.0));
        assert!((r[0][4] - 6_f64.sqrt()).abs() < 1e-12);
    }
}
