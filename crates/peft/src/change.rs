//! Changes that methods make of one module: their parameters, how fresh ones start, how ranks share them, and the merge.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::Dtype;
use burnish_core::random::Stream;
use burnish_weight_files::HostTensor;

use crate::merge::{Merged, expect_shape};
use crate::mersenne_twister::Mt19937;
use crate::{ModuleKind, PeftError};

/// What a method makes of a layer's weight `W` `[out, in]` and bias.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// `l (W x + b)` with `l` `[out, 1]` (IA3).
    ScaledOutputs,
    /// `W (l x) + b` with `l` `[1, in]` (IA3).
    ScaledInputs,
    /// These rows of the table are the parameter's rows `[ids, width]`.
    Rows(Vec<usize>),
    /// `W + s (A1 B1) * (A2 B2)`, the products multiplied by elements; parts: `A1` `[out, r]`, `B1` `[r, in]`, `A2`, `B2`
    /// (LoHa).
    Hadamard {
        /// `alpha / r`.
        scale: f64,
    },
    /// `W + s kron(M1, M2)`, where each is a part or a product of two; parts: `M1` or its factors, `M2` or its factors
    /// (LoKr).
    Kronecker {
        /// `alpha / r`.
        scale: f64,
        /// Which are products.
        factored: [bool; 2],
    },
    /// `W R^T` with `R` of orthogonal blocks along the diagonal, each from the upper triangle of a skew-symmetric `Q`, row by
    /// row; parts: `[blocks, b (b - 1) / 2]`, one row where all blocks are the same (OFT).
    Rotation {
        /// The size of a block.
        block: usize,
        /// `I + 2 Q + 2 Q^2 + ... + Q^(terms - 1)`; `(I - Q) (I + Q)^-1` where there is none.
        terms: Option<usize>,
    },
    /// `W + diag(b) B diag(d) A` with the first rows of `B` and the first columns of `A`, which all modules share; parts: `b`
    /// `[out]`, `d` `[r]`, `A` `[r, widest]`, `B` `[highest, r]` (VeRA).
    Projected,
    /// `W + s B diag(E) A`; parts: `A` `[r, in]`, `B` `[out, r]`, `E` `[r, 1]` (AdaLoRA).
    Singular {
        /// `alpha / r`, of the rank that the adapter began with.
        scale: f64,
    },
}

/// How a fresh parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Every element is this.
    Constant(f32),
    /// Normal with this standard deviation.
    Normal(f64),
    /// Uniform in `(-bound, bound)`.
    Uniform(f64),
    /// The rows of the base's table that it replaces.
    BaseRows,
    /// Uniform in `(-bound, bound)` as PyTorch draws on the CPU: a value that is never trained.
    Drawn {
        /// PyTorch's seed.
        seed: u64,
        /// How many are drawn before.
        skip: usize,
        /// The bound.
        bound: f32,
    },
}

impl Start {
    /// PyTorch's `kaiming_uniform_(a = sqrt 5)` of a matrix with so many columns.
    pub(crate) fn kaiming(columns: usize) -> Self {
        Self::Uniform(1.0 / (columns as f64).sqrt())
    }

    /// The values at `range` (indices into the row-major tensor): a function of the seed and the parameter's name. `None`
    /// where the base's values are needed.
    #[must_use]
    pub fn values(self, name: &str, seed: u64, range: Range<usize>) -> Option<Vec<f32>> {
        let stream = Stream::new(seed, name);
        Some(match self {
            Self::Constant(value) => vec![value; range.len()],
            Self::Normal(std) => range.map(|i| (f64::from(stream.normal(i as u64)) * std) as f32).collect(),
            Self::Uniform(bound) => {
                let of = |i: usize| ((2.0 * f64::from(stream.uniform(i as u64)) - 1.0) * bound) as f32;
                range.map(of).collect()
            }
            Self::BaseRows => return None,
            Self::Drawn { seed, skip, bound } => {
                let mut drawn = Mt19937::new(seed);
                for _ in 0..skip + range.start {
                    let _ = drawn.next();
                }
                // 24 bits of each word, as a float has.
                let unit = |word: u32| (word & 0x00ff_ffff) as f32 / 16_777_216.0;
                // Rounded once, as PyTorch's compiler does.
                range.map(|_| unit(drawn.next()).mul_add(bound + bound, -bound)).collect()
            }
        })
    }
}

/// What a parameter's rows or columns go with, by which ranks that share the layer share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Its rows are the layer's outputs: `[out, k]`.
    Outputs,
    /// Its columns are the layer's inputs: `[k, in]`.
    Inputs,
    /// Neither: every rank has it whole, and gives an addend of its gradient.
    Whole,
    /// Its layer cannot be shared.
    Nothing,
}

/// A parameter of a module.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangePart {
    /// Its name: the module's with PEFT's suffix.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How it starts.
    pub start: Start,
    /// How it lies over ranks.
    pub follows: Follows,
}

impl ChangePart {
    /// Whether it trains, and is its module's alone; otherwise all modules share it.
    #[must_use]
    pub fn trains(&self) -> bool {
        !matches!(self.start, Start::Drawn { .. })
    }

    /// The value that it has where nobody keeps one: of what is drawn, and of no elements.
    fn unkept(&self) -> Option<HostTensor> {
        let elements = self.shape.iter().product();
        let values = self.start.values(&self.name, 0, 0..elements)?;
        let known = !self.trains() || elements == 0;
        known.then(|| HostTensor::from_f32(&values, &self.shape, Dtype::F32).ok())?
    }
}

/// A module that a method changes.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeSite {
    /// The module's name in the base model.
    pub module: String,
    /// What the module is.
    pub kind: ModuleKind,
    /// The weight's dim 0.
    pub out: usize,
    /// The weight's dim 1.
    pub input: usize,
    /// Whether the base has a bias there.
    pub has_bias: bool,
    /// Probability of dropping an element of what the change reads, in training.
    pub dropout: f64,
    /// What is made of its weight.
    pub change: Change,
    /// Its parameters, in the order of [`Change`].
    pub parts: Vec<ChangePart>,
}

impl ChangeSite {
    /// The name of the base weight.
    #[must_use]
    pub fn base_weight(&self) -> String {
        format!("{}.weight", self.module)
    }

    /// The name of the module's bias.
    #[must_use]
    pub fn base_bias(&self) -> String {
        format!("{}.bias", self.module)
    }

    /// Whether the adapter starts as no change.
    #[must_use]
    pub fn starts_as_base(&self) -> bool {
        let starts = |start: Start| self.parts.iter().any(|part| part.start == start);
        match self.change {
            Change::ScaledOutputs | Change::ScaledInputs => starts(Start::Constant(1.0)),
            Change::Rows(_) => starts(Start::BaseRows),
            _ => starts(Start::Constant(0.0)),
        }
    }

    /// Folds the parameters into a pristine base weight and bias, each rounded once to its dtype; `part` gives a
    /// parameter's value.
    ///
    /// # Errors
    /// If a shape is not the site's, or the result is not finite.
    pub fn merge<'a>(
        &self,
        weight: &HostTensor,
        bias: Option<&HostTensor>,
        part: impl Fn(&ChangePart) -> Option<&'a HostTensor>,
    ) -> Result<Merged, PeftError> {
        expect_shape(&self.base_weight(), weight, &[self.out, self.input])?;
        let mut parts = Vec::with_capacity(self.parts.len());
        for own in &self.parts {
            let missing = || PeftError::MissingBase { name: own.name.clone() };
            let tensor = match part(own) {
                Some(tensor) => Cow::Borrowed(tensor),
                None => Cow::Owned(own.unkept().ok_or_else(missing)?),
            };
            expect_shape(&own.name, &tensor, &own.shape)?;
            let columns = own.shape.get(1).copied().unwrap_or(1);
            parts.push(Matrix { rows: own.shape[0], columns, values: tensor.to_f32() });
        }
        let mut values = weight.to_f32();
        self.fold(&mut values, &parts);
        let finite = |tensor: HostTensor| {
            if tensor.to_f32().iter().all(|x| x.is_finite()) {
                return Ok(tensor);
            }
            Err(PeftError::NotFinite { module: self.module.clone() })
        };
        let weight = finite(HostTensor::from_f32(&values, &weight.shape, weight.dtype)?)?;
        let bias = match bias {
            Some(bias) if self.change == Change::ScaledOutputs => {
                expect_shape(&self.base_bias(), bias, &[self.out])?;
                let vector = &parts[0].values;
                let values: Vec<f32> = bias.to_f32().iter().zip(vector).map(|(b, l)| b * l).collect();
                Some(finite(HostTensor::from_f32(&values, &bias.shape, bias.dtype)?)?)
            }
            other => other.cloned(),
        };
        Ok(Merged { weight, bias })
    }

    /// What the method makes of the weight's values.
    fn fold(&self, weight: &mut [f32], parts: &[Matrix]) {
        let width = self.input.max(1);
        match &self.change {
            Change::ScaledOutputs => {
                for (row, l) in weight.chunks_exact_mut(width).zip(&parts[0].values) {
                    row.iter_mut().for_each(|w| *w *= l);
                }
            }
            Change::ScaledInputs => {
                for row in weight.chunks_exact_mut(width) {
                    row.iter_mut().zip(&parts[0].values).for_each(|(w, l)| *w *= l);
                }
            }
            Change::Rows(ids) => {
                for (&id, row) in ids.iter().zip(parts[0].values.chunks_exact(width)) {
                    weight[id * width..(id + 1) * width].copy_from_slice(row);
                }
            }
            Change::Hadamard { scale } => {
                let (left, right) = (parts[0].times(&parts[1]), parts[2].times(&parts[3]));
                let products = left.values.iter().zip(&right.values);
                weight.iter_mut().zip(products).for_each(|(w, (a, b))| *w += *scale as f32 * a * b);
            }
            Change::Kronecker { scale, factored } => {
                let mut at = 0;
                let [one, two] = factored.map(|product| {
                    at += if product { 2 } else { 1 };
                    if product { parts[at - 2].times(&parts[at - 1]) } else { parts[at - 1].clone() }
                });
                for (row, values) in weight.chunks_exact_mut(width).enumerate() {
                    let (left, right) = (row / two.rows, row % two.rows);
                    for (column, w) in values.iter_mut().enumerate() {
                        let a = one.values[left * one.columns + column / two.columns];
                        let b = two.values[right * two.columns + column % two.columns];
                        *w += *scale as f32 * a * b;
                    }
                }
            }
            Change::Rotation { block, terms } => rotate(weight, width, *block, *terms, &parts[0]),
            Change::Projected => {
                let [gains, inner, a, b] = parts else { return };
                let delta =
                    b.first_rows(self.out).times(&a.first_columns(width).with_rows_times(&inner.values));
                let added = delta.with_rows_times(&gains.values);
                weight.iter_mut().zip(&added.values).for_each(|(w, d)| *w += d);
            }
            Change::Singular { scale } => {
                let [a, b, values] = parts else { return };
                if a.rows > 0 {
                    let delta = b.times(&a.with_rows_times(&values.values));
                    weight.iter_mut().zip(&delta.values).for_each(|(w, d)| *w += *scale as f32 * d);
                }
            }
        }
    }
}

#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn times(&self, other: &Self) -> Self {
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
    fn with_rows_times(&self, factors: &[f32]) -> Self {
        let mut out = self.clone();
        for (row, f) in out.values.chunks_exact_mut(self.columns.max(1)).zip(factors) {
            row.iter_mut().for_each(|x| *x *= f);
        }
        out
    }

    fn first_rows(&self, rows: usize) -> Self {
        Self { rows, columns: self.columns, values: self.values[..rows * self.columns].to_vec() }
    }

    fn first_columns(&self, columns: usize) -> Self {
        let rows = self.values.chunks_exact(self.columns.max(1));
        let values = rows.flat_map(|row| row[..columns].iter().copied()).collect();
        Self { rows: self.rows, columns, values }
    }
}

/// `W R^T`, block by block.
fn rotate(weight: &mut [f32], width: usize, block: usize, terms: Option<usize>, triangles: &Matrix) {
    let turns: Vec<Vec<f64>> =
        triangles.values.chunks_exact(triangles.columns).map(|t| rotation(t, block, terms)).collect();
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

/// The orthogonal matrix of a triangle: see [`Change::Rotation`].
fn rotation(triangle: &[f32], n: usize, terms: Option<usize>) -> Vec<f64> {
    let mut skew = vec![0.0_f64; n * n];
    let mut upper = triangle.iter();
    for row in 0..n {
        for column in row + 1..n {
            let value = upper.next().copied().map_or(0.0, f64::from);
            (skew[row * n + column], skew[column * n + row]) = (value, -value);
        }
    }
    let mut out: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    let Some(coefficients) = terms.map(neumann) else {
        // 2 (I + Q)^-1 - I.
        let one_and_skew: Vec<f64> = out.iter().zip(&skew).map(|(i, q)| i + q).collect();
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
