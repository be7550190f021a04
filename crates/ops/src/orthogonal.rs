//! The nearest semi-orthogonal matrix by Newton–Schulz iteration, for Muon.

use std::ops::Range;

use burnish_core::{Compute, choices};

use crate::dispatch::dispatch;
use crate::{AnyTensor, OpsError};

choices! {
    /// The odd polynomials that the iteration applies to every singular value.
    #[derive(Default)]
    pub enum Polynomials: "muon_ns_coefficients", OpsError {
        /// Keller Jordan's quintic in every step: singular values end within [0.68, 1.21].
        #[default]
        Quintic = "quintic",
        /// Polar Express (Amsel et al., arXiv:2505.16932): another quintic in each step, the last one repeated after five;
        /// singular values from 0.001 of the norm end within [0.84, 1.15].
        PolarExpress = "polar_express",
    }
}

const QUINTIC: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// For singular values from 1e-3, with the safety factor 1.02.
const POLAR_EXPRESS: [[f64; 3]; 5] = [
    [8.156_554_524_902_461, -22.483_292_925_577_95, 15.878_769_915_207_462],
    [4.042_929_935_166_739, -2.808_917_465_908_714, 0.500_017_845_105_131_6],
    [3.891_667_802_292_660_7, -2.772_484_153_217_685, 0.506_064_817_850_339_3],
    [3.285_753_657_755_655, -2.368_129_493_342_537_6, 0.464_490_242_330_031_06],
    [2.346_541_325_859_637_7, -1.709_782_838_268_708_1, 0.423_235_511_693_053_23],
];

/// Where the steps run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// On the matrix `X`: `X ← (aI + bR + cR²) X` with `R = X Xᵀ`, of the short side.
    Standard,
    /// On `R` alone, made once: `R ← P R P` with `P = aI + bR + cR²`, then `X ← (P₅ ⋯ P₁) X`.
    Gram,
    /// [`Form::Gram`] where the long side is at least 5/4 of the short one.
    #[default]
    Auto,
}

/// A Newton–Schulz iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewtonSchulz {
    /// The polynomials.
    pub polynomials: Polynomials,
    /// How many steps.
    pub steps: usize,
    /// Where they run.
    pub form: Form,
    /// What products on the CPU multiply; bfloat16 ends nearer to exact arithmetic than an iteration held in bfloat16
    /// (`torch.optim.Muon`).
    pub compute: Compute,
}

impl Default for NewtonSchulz {
    fn default() -> Self {
        Self { polynomials: Polynomials::Quintic, steps: 5, form: Form::Auto, compute: Compute::Fp32 }
    }
}

/// How much steps on `R` may amplify an eigenvalue near zero, which rounding can have made negative.
const GROWTH: f64 = (1 << 18) as f64;

impl NewtonSchulz {
    /// The coefficients (a, b, c) of each step.
    #[must_use]
    pub fn triples(&self) -> Vec<[f64; 3]> {
        (0..self.steps)
            .map(|step| match self.polynomials {
                Polynomials::Quintic => QUINTIC,
                Polynomials::PolarExpress => POLAR_EXPRESS[step.min(POLAR_EXPRESS.len() - 1)],
            })
            .collect()
    }

    /// What the Frobenius norm is multiplied by before it divides.
    #[must_use]
    pub fn margin(&self) -> f64 {
        match self.polynomials {
            Polynomials::Quintic => 1.0,
            Polynomials::PolarExpress => 1.02,
        }
    }

    /// Ranges of steps that share one `R = X Xᵀ`.
    pub(crate) fn legs(&self, rows: usize, columns: usize) -> Vec<Range<usize>> {
        let gram = match self.form {
            Form::Standard => false,
            Form::Gram => true,
            Form::Auto => 4 * rows.max(columns) >= 5 * rows.min(columns),
        };
        let (mut legs, mut start, mut growth) = (Vec::new(), 0, 1.0);
        for (step, [a, ..]) in self.triples().into_iter().enumerate() {
            if step > start && (!gram || growth > GROWTH) {
                legs.push(start..step);
                (start, growth) = (step, 1.0);
            }
            growth *= a * a;
        }
        legs.extend((start < self.steps).then_some(start..self.steps));
        legs
    }
}

/// Matrices with as many columns, one above the other.
#[derive(Clone, Debug)]
pub struct Stacked {
    /// `[rows, columns]` or `[batch, rows, columns]`, f32; the last dimension are the columns, the others make the rows.
    pub tensor: AnyTensor,
    /// Rows of each matrix.
    pub blocks: Vec<usize>,
}

impl Stacked {
    /// Rows and columns of all together.
    pub(crate) fn size(&self) -> [usize; 2] {
        let shape = self.tensor.shape();
        let columns = shape.last().copied().unwrap_or(0);
        [shape.iter().rev().skip(1).product(), columns]
    }
}

/// Each matrix of each stack orthogonalised on its own: `U Σ Vᵀ` becomes about `U Vᵀ`, at any scale of `Σ` that f32
/// holds. A zero matrix stays zero; one with a value that is not finite becomes NaN. In place where nobody else holds the
/// tensors.
///
/// # Errors
/// If a tensor is not f32 (or f64, in which Burn's operations compute on any device), or its blocks do not make up its rows.
///
/// ```
/// use burn::tensor::Device;
/// use burnish_ops::{AnyTensor, NewtonSchulz, Stacked, orthogonalize};
/// // Two 2 x 2 matrices, one of them a million times smaller.
/// let tensor = AnyTensor::from_elements(vec![3.0_f32, 0.0, 0.0, 2.0, 3e-6, 0.0, 0.0, 2e-6], &[4, 2], &Device::flex());
/// let done = orthogonalize(vec![Stacked { tensor, blocks: vec![2, 2] }], &NewtonSchulz::default())?;
/// let values = done[0].to_f32();
/// assert!(values.iter().zip([1.0, 0.0, 0.0, 1.0].iter().cycle()).all(|(x, near)| (x - near).abs() < 0.35));
/// # Ok::<(), burnish_ops::OpsError>(())
/// ```
pub fn orthogonalize(stacks: Vec<Stacked>, iteration: &NewtonSchulz) -> Result<Vec<AnyTensor>, OpsError> {
    for stack in &stacks {
        let [rows, _] = stack.size();
        if stack.blocks.iter().sum::<usize>() != rows {
            return Err(OpsError::Shape {
                op: "orthogonalize",
                what: "rows of the blocks",
                got: stack.blocks.clone(),
                expected: vec![rows],
            });
        }
        let dtype = stack.tensor.dtype();
        if !matches!(dtype, Some(burnish_core::Dtype::F32 | burnish_core::Dtype::F64)) {
            return Err(OpsError::Dtype {
                op: "orthogonalize",
                what: "matrix",
                got: dtype,
                expected: "float32",
            });
        }
    }
    dispatch!(stacks.iter().map(|stack| &stack.tensor) => orthogonal::orthogonalize(stacks, iteration))
}
