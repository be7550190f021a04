//! Adafactor (Shazeer & Stern 2018), as Transformers' `Adafactor` without relative steps and parameter scales, which is
//! how its `Trainer` sets it.

use burnish_core::{OptionFaults, Parameter};

use super::{Kept, Rule, Slot, Step, elements};
use crate::arguments::ArgumentReader;

/// Added to squared gradients.
const EPS: f32 = 1e-30;
/// The largest root of the mean square of an update.
const CLIP: f64 = 1.0;
/// The power of the step that the decay of second moments follows.
const DECAY: f64 = -0.8;

/// `optim: adafactor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adafactor;

impl Adafactor {
    pub(crate) fn read(arguments: ArgumentReader<'_>) -> (Self, OptionFaults) {
        (Self, arguments.finish())
    }
}

impl Rule for Adafactor {
    fn slots(&self, parameter: &Parameter) -> Vec<Slot> {
        let statistic = |name, shape: Vec<usize>| Slot { name, kept: Kept::Statistic(shape) };
        match &parameter.shape[..] {
            [outer @ .., rows, columns] => {
                let of = |last: usize| outer.iter().copied().chain([last]).collect();
                vec![statistic("exp_avg_sq_row", of(*rows)), statistic("exp_avg_sq_col", of(*columns))]
            }
            _ => vec![elements("exp_avg_sq")],
        }
    }

    /// Means over rows and columns, and of the whole update.
    fn of_tensor(&self) -> bool {
        true
    }

    fn direction(&self, step: &Step, shape: &[usize], gradient: &mut [f32], state: &mut [&mut [f32]]) {
        let keep = 1.0 - (step.number as f64).powf(DECAY);
        let (keep, new) = (keep as f32, (1.0 - keep) as f32);
        match (shape, state) {
            ([.., rows, columns], [row, column]) => {
                let matrix = rows * columns;
                let matrices = gradient.chunks_mut(matrix.max(1));
                for ((g, row), column) in
                    matrices.zip(row.chunks_mut((*rows).max(1))).zip(column.chunks_mut((*columns).max(1)))
                {
                    factored(g, row, column, keep, new);
                }
            }
            (_, [second]) => {
                for (g, v) in gradient.iter_mut().zip(second.iter_mut()) {
                    *v = new.mul_add(*g * *g + EPS, *v * keep);
                    *g /= v.sqrt();
                }
            }
            _ => unreachable!("invariant: one slot of a vector, two of matrices"),
        }
        let squares: f64 = gradient.iter().map(|&u| f64::from(u) * f64::from(u)).sum();
        let rms = (squares / gradient.len().max(1) as f64).sqrt();
        let divisor = (rms / CLIP).max(1.0) as f32;
        gradient.iter_mut().for_each(|u| *u /= divisor);
    }
}

/// One matrix: `g` becomes `g` over the root of the outer product of its rows' and columns' second moments.
fn factored(g: &mut [f32], row: &mut [f32], column: &mut [f32], keep: f32, new: f32) {
    let (rows, columns) = (row.len(), column.len());
    let mut sums = vec![0.0_f64; columns];
    for (r, g) in row.iter_mut().zip(g.chunks(columns)) {
        let mut sum = 0.0_f64;
        for (total, g) in sums.iter_mut().zip(g) {
            let square = f64::from(*g * *g + EPS);
            sum += square;
            *total += square;
        }
        *r = new.mul_add((sum / columns as f64) as f32, *r * keep);
    }
    for (c, sum) in column.iter_mut().zip(sums) {
        *c = new.mul_add((sum / rows as f64) as f32, *c * keep);
    }
    let mean = (row.iter().map(|&r| f64::from(r)).sum::<f64>() / rows as f64) as f32;
    let by_column: Vec<f32> = column.iter().map(|c| 1.0 / c.sqrt()).collect();
    for (r, g) in row.iter().zip(g.chunks_mut(columns)) {
        let by_row = 1.0 / (r / mean).sqrt();
        for (g, by_column) in g.iter_mut().zip(&by_column) {
            *g *= by_row * by_column;
        }
    }
}
