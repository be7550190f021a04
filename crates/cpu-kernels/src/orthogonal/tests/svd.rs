//! Singular values and vectors by one-sided Jacobi rotations, in double precision.

/// `X = U Σ Vᵀ`, singular values in falling order; `short` vectors of each side.
#[derive(Clone, Debug)]
pub(super) struct Svd {
    rows: usize,
    columns: usize,
    pub(super) sigma: Vec<f64>,
    /// Left vectors, one after another.
    u: Vec<Vec<f64>>,
    /// Right vectors.
    v: Vec<Vec<f64>>,
}

impl Svd {
    /// `U Σ Vᵀ`, row-major.
    pub(super) fn product(&self) -> Vec<f64> {
        let mut x = vec![0.0; self.rows * self.columns];
        for ((s, u), v) in self.sigma.iter().zip(&self.u).zip(&self.v) {
            for (i, u) in u.iter().enumerate() {
                for (j, v) in v.iter().enumerate() {
                    x[i * self.columns + j] += s * u * v;
                }
            }
        }
        x
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn rotate(pair: (&mut [f64], &mut [f64]), c: f64, s: f64) {
    for (a, b) in pair.0.iter_mut().zip(pair.1) {
        (*a, *b) = (c * *a - s * *b, s * *a + c * *b);
    }
}

/// Two entries of a list.
fn two(list: &mut [Vec<f64>], i: usize, j: usize) -> (&mut [f64], &mut [f64]) {
    let (head, tail) = list.split_at_mut(j);
    (&mut head[i], &mut tail[0])
}

pub(super) fn svd(x: &[f32], rows: usize, columns: usize) -> Svd {
    let (m, n) = (rows.min(columns), rows.max(columns));
    // Vectors of the long side, one for each of the short side, are rotated until they are orthogonal.
    let at =
        |i: usize, j: usize| f64::from(if rows <= columns { x[i * columns + j] } else { x[j * columns + i] });
    let mut long: Vec<Vec<f64>> = (0..m).map(|i| (0..n).map(|j| at(i, j)).collect()).collect();
    let mut short: Vec<Vec<f64>> =
        (0..m).map(|i| (0..m).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect();
    for _ in 0..60 {
        let mut worst = 0.0_f64;
        for i in 0..m {
            for j in i + 1..m {
                let (a, b) = (dot(&long[i], &long[i]), dot(&long[j], &long[j]));
                let g = dot(&long[i], &long[j]);
                if g.abs() <= 1e-15 * (a * b).sqrt() {
                    continue;
                }
                worst = worst.max(g.abs() / (a * b).sqrt());
                let zeta = (b - a) / (2.0 * g);
                let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let c = 1.0 / (1.0 + t * t).sqrt();
                rotate(two(&mut long, i, j), c, c * t);
                rotate(two(&mut short, i, j), c, c * t);
            }
        }
        if worst < 1e-13 {
            break;
        }
    }
    let mut order: Vec<(f64, usize)> = long.iter().enumerate().map(|(i, l)| (dot(l, l).sqrt(), i)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sigma: Vec<f64> = order.iter().map(|o| o.0).collect();
    let unit = |&(s, i): &(f64, usize)| long[i].iter().map(|x| if s > 0.0 { x / s } else { 0.0 }).collect();
    let long: Vec<Vec<f64>> = order.iter().map(unit).collect();
    let short: Vec<Vec<f64>> = order.iter().map(|o| short[o.1].clone()).collect();
    let (u, v) = if rows <= columns { (short, long) } else { (long, short) };
    Svd { rows, columns, sigma, u, v }
}

#[test]
fn decomposes() {
    for (rows, columns) in [(1, 1), (5, 9), (9, 5), (20, 20)] {
        let x = super::values(rows * columns, 2);
        let svd = svd(&x, rows, columns);
        let back = svd.product();
        assert!(x.iter().zip(&back).all(|(x, b)| (f64::from(*x) - b).abs() < 1e-12));
        for vectors in [&svd.u, &svd.v] {
            for (i, a) in vectors.iter().enumerate() {
                for (j, b) in vectors.iter().enumerate() {
                    let want = if i == j { 1.0 } else { 0.0 };
                    assert!((dot(a, b) - want).abs() < 1e-11);
                }
            }
        }
        assert!(svd.sigma.is_sorted_by(|a, b| a >= b));
    }
}
