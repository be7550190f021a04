//! `Matrix`: what merging computes with.

/// A matrix, row by row.
#[derive(Clone)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<f32>,
}

impl Matrix {
    pub(super) fn times(&self, other: &Self) -> Self {
        let mut values = vec![0.0_f32; self.rows * other.columns];
        let rows = values.chunks_exact_mut(other.columns.max(1)).zip(self.values.chunks_exact(self.columns));
        for (row, factors) in rows {
            for (&f, from) in factors.iter().zip(other.values.chunks_exact(other.columns.max(1))) {
                row.iter_mut().zip(from).for_each(|(y, &x)| *y += f * x);
            }
        }
        Self { rows: self.rows, columns: other.columns, values }
    }

    /// Each row times its factor.
    pub(super) fn with_rows_times(&self, factors: &[f32]) -> Self {
        let mut out = self.clone();
        for (row, f) in out.values.chunks_exact_mut(self.columns.max(1)).zip(factors) {
            row.iter_mut().for_each(|x| *x *= f);
        }
        out
    }

    pub(super) fn transposed(&self) -> Self {
        let at = |i: usize| self.values[i % self.rows * self.columns + i / self.rows];
        Self { rows: self.columns, columns: self.rows, values: (0..self.values.len()).map(at).collect() }
    }

    pub(super) fn first_rows(&self, rows: usize) -> Self {
        Self { rows, columns: self.columns, values: self.values[..rows * self.columns].to_vec() }
    }

    pub(super) fn first_columns(&self, columns: usize) -> Self {
        let rows = self.values.chunks_exact(self.columns.max(1));
        let values = rows.flat_map(|row| row[..columns].iter().copied()).collect();
        Self { rows: self.rows, columns, values }
    }
}
