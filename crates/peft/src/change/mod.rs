//! Changes that methods make of one module: their parameters, how fresh ones start, how ranks share them, and the merge.

mod bank;
mod bases;
mod circulant;
mod drawn;
mod matrix;
mod rotation;
mod start;

use std::borrow::Cow;

use burnish_core::Dtype;
use burnish_weight_files::HostTensor;

use crate::merge::{Merged, expect_shape};
use crate::{ModuleKind, PeftError};

use bank::banked;
use bases::bases;
use circulant::add_circulants;
pub use circulant::circulant;
pub use drawn::{Drawn, DrawnLaw};
use matrix::Matrix;
pub use rotation::{butterfly, inverse, neumann};
use rotation::{of_matrices, of_triangles, rotate, rotate_among};
pub use start::Start;

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
    /// `W + C / in` with `C` of circulant blocks; part: their kernels `[out / b, in / b, b]` (C3A).
    Circulant {
        /// The size of a block.
        block: usize,
    },
    /// `W R^T` with `R` of orthogonal blocks along the diagonal, each from the upper triangle of a skew-symmetric `Q`, row by
    /// row; parts: `[blocks, b (b - 1) / 2]`, one row where all blocks are the same (OFT).
    Rotation {
        /// The size of a block.
        block: usize,
        /// `I + 2 Q + 2 Q^2 + ... + Q^(terms - 1)`; `(I - Q) (I + Q)^-1` where there is none.
        terms: Option<usize>,
    },
    /// `diag(s) W R^T` beside the bias, with a product `R` of factors; each has orthogonal blocks along the diagonal, among
    /// columns in the order of [`butterfly`], by Cayley's form of the skew-symmetric half of what trains; parts: those
    /// `[factors, blocks, b, b]`, `s` `[out, 1]` (BOFT).
    Butterfly {
        /// The size of a block.
        block: usize,
        /// How many rotations are multiplied.
        factors: usize,
    },
    /// `W + diag(b) B diag(d) A` with the first rows of `B` and the first columns of `A`, which all modules share; parts: `b`
    /// `[out]`, `d` `[r]`, `A` `[r, widest]`, `B` `[highest, r]` (VeRA).
    Projected,
    /// `W + s B A` with `n r` of them: of the shorter side `A = diag(lambda) A_j diag(gamma)` of each of `r` rows and `n`
    /// bases, of the longer one the first rows of `n` bases, turned where the shorter side is that of outputs; parts:
    /// `lambda` `[r, n]`, `gamma` `[n, shorter]`, and of all modules `A_j` `[r, 1, widest]`, `B` `[highest, most, r]`
    /// (RandLoRA).
    Bases {
        /// `alpha / r`.
        scale: f64,
    },
    /// `W + B A`, each row of `A` and each column of `B` of parts one after another, each a mean of the vectors of a bank with
    /// the largest logits, by their softmax; parts: the logits `[r, in / v, vectors]` and `[out / v, r, vectors]`, and of all
    /// modules the bank `[vectors, v]` (VB-LoRA).
    Banked {
        /// How many vectors a part is made of.
        chosen: usize,
    },
    /// `W + s B diag(E) A`; parts: `A` `[r, in]`, `B` `[out, r]`, `E` `[r, 1]` (AdaLoRA).
    Singular {
        /// `alpha / r`, of the rank that the adapter began with.
        scale: f64,
    },
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
    /// Whether it trains.
    #[must_use]
    pub fn trains(&self) -> bool {
        !matches!(self.start, Start::Drawn(_))
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

    /// Whether a parameter is one of all modules, which then has a name of its own.
    #[must_use]
    pub fn shares(&self, part: &ChangePart) -> bool {
        !part.name.starts_with(&self.module)
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
            let columns = own.shape[1..].iter().product();
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
            Change::ScaledOutputs => scale_rows(weight, width, &parts[0].values),
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
            Change::Circulant { block } => add_circulants(weight, width, *block, &parts[0]),
            Change::Rotation { block, terms } => {
                rotate(weight, width, *block, &of_triangles(&parts[0], *block, *terms));
            }
            Change::Butterfly { block, .. } => {
                for (factor, own) in parts[0].values.chunks_exact(width * block).enumerate() {
                    let turns = of_matrices(own, *block);
                    rotate_among(weight, width, *block, &butterfly(*block, factor), &turns);
                }
                scale_rows(weight, width, &parts[1].values);
            }
            Change::Projected => {
                let [gains, inner, a, b] = parts else { return };
                let delta =
                    b.first_rows(self.out).times(&a.first_columns(width).with_rows_times(&inner.values));
                let added = delta.with_rows_times(&gains.values);
                weight.iter_mut().zip(&added.values).for_each(|(w, d)| *w += d);
            }
            Change::Bases { scale } => {
                let delta = bases(parts, [self.out, width]);
                weight.iter_mut().zip(&delta.values).for_each(|(w, d)| *w += *scale as f32 * d);
            }
            Change::Banked { chosen } => {
                let Some(delta) = banked(parts, self.parts[0].shape[0], *chosen) else { return };
                weight.iter_mut().zip(&delta.values).for_each(|(w, d)| *w += d);
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

/// Each row, of that width, times its factor.
fn scale_rows(weight: &mut [f32], width: usize, factors: &[f32]) {
    for (row, factor) in weight.chunks_exact_mut(width).zip(factors) {
        row.iter_mut().for_each(|w| *w *= factor);
    }
}
