//! Coefficients of the steps, and how they are grouped in legs.

use burnish_core::Compute;
use std::ops::Range;

/// The steps' polynomials `p(x) = a x + b x³ + c x⁵`, one triple `(a, b, c)` a step.
///
/// With `σ` a singular value over the Frobenius norm, five steps of
/// * [`keller`](Self::keller) bring `σ` in `[0.003, 1]` into `[0.682, 1.202]`,
/// * [`polar_express`](Self::polar_express) bring `σ` in `[0.003, 1]` into `[0.859, 1.141]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Coefficients {
    triples: Vec<[f64; 3]>,
    margin: f64,
}

/// Five steps of Polar Express (arXiv 2505.16932), lower bound 1e-3, safety factor 1.02 folded in.
const POLAR_EXPRESS: [[f64; 3]; 5] = [
    [8.156_554_524_902_461, -22.483_292_925_577_95, 15.878_769_915_207_462],
    [4.042_929_935_166_739, -2.808_917_465_908_714, 0.500_017_845_105_131_6],
    [3.891_667_802_292_660_7, -2.772_484_153_217_685, 0.506_064_817_850_339_3],
    [3.285_753_657_755_655, -2.368_129_493_342_537_6, 0.464_490_242_330_031_06],
    [2.346_541_325_859_637_7, -1.709_782_838_268_708_1, 0.423_235_511_693_053_23],
];

impl Coefficients {
    /// `(3.4445, -4.7750, 2.0315)` at every step (Keller Jordan's Muon, `torch.optim.Muon`).
    #[must_use]
    pub fn keller(steps: usize) -> Self {
        Self::new(vec![[3.4445, -4.7750, 2.0315]; steps], 1.0)
    }

    /// The first `steps` of the five triples of Polar Express, the last one repeated beyond; the norm is taken
    /// 1.02 times as large, so that rounding never leaves the polynomials' interval.
    ///
    /// Published code adds 1e-6 to the norm too; here a zero matrix is told apart instead, so that no scale of
    /// the gradient changes the result.
    #[must_use]
    pub fn polar_express(steps: usize) -> Self {
        let last = POLAR_EXPRESS.len() - 1;
        Self::new((0..steps).map(|i| POLAR_EXPRESS[i.min(last)]).collect(), 1.02)
    }

    /// Triples of one's own; the Frobenius norm is multiplied by `margin` before it divides.
    ///
    /// # Panics
    /// When a coefficient is not finite, or the margin not finite and positive.
    #[must_use]
    pub fn new(triples: Vec<[f64; 3]>, margin: f64) -> Self {
        assert!(margin.is_finite() && margin > 0.0, "orthogonalize: margin {margin} must be positive");
        for (step, triple) in triples.iter().enumerate() {
            assert!(
                triple.iter().all(|c| c.is_finite()),
                "orthogonalize: step {step} has coefficients {triple:?}, expected finite ones"
            );
        }
        Self { triples, margin }
    }

    /// `(a, b, c)` of each step.
    #[must_use]
    pub fn triples(&self) -> &[[f64; 3]] {
        &self.triples
    }

    /// What the Frobenius norm is multiplied by.
    #[must_use]
    pub fn margin(&self) -> f64 {
        self.margin
    }

    /// The legs of the Gram form: as long as rounding in the Gram matrix stays at the level of the standard form's.
    ///
    /// Singular values near zero are the smallest of `R` twice over (their squares), and a step on `R` multiplies
    /// them, and the rounding beside them, by up to `a²`; below zero they would run away. A leg therefore ends once
    /// that growth passes 512: Keller's five steps are legs of 3 and 2, those of Polar Express of 2 and 3. Measured
    /// against exact arithmetic over six decades of singular values, up to 192 x 192, the largest error of an
    /// element is then 3e-6 (Keller) and 6e-5 (Polar Express), that of the standard form 4e-6 and 9e-6; in one leg
    /// of five it is 1.5e-4 and 6e-4, which a caller may still prefer where every leg is a sum over ranks.
    #[must_use]
    pub fn gram_legs(&self) -> Vec<Range<usize>> {
        self.legs_within(GROWTH, f64::INFINITY)
    }

    /// Legs that end once their growth passes `growth`, or after a step that makes as much as `steep` alone.
    fn legs_within(&self, most: f64, steep: f64) -> Vec<Range<usize>> {
        let mut legs = Vec::new();
        let (mut start, mut growth) = (0, 1.0);
        for (step, [a, ..]) in self.triples.iter().enumerate() {
            if growth > most || (start + 1 == step && growth >= steep) {
                legs.push(start..step);
                (start, growth) = (step, 1.0);
            }
            growth *= a * a;
        }
        if start < self.triples.len() {
            legs.push(start..self.triples.len());
        }
        legs
    }
}

/// How much the steps of a leg before its last may amplify an eigenvalue of the Gram matrix near zero.
const GROWTH: f64 = 512.0;

/// The same with operands of bfloat16, and the growth of a step that is a leg of its own: Keller's five steps are legs of 3
/// and 2 again, those of Polar Express, whose first step is steep, of 1, 2 and 2.
const GROWTH_BF16: [f64; 2] = [150.0, 64.0];

/// Where the steps run: on the matrix or on its Gram matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Every step on `X`: `15 n m² + 5 m³` operations for five steps.
    Standard,
    /// Steps on `R = X Xᵀ` in legs ([`Coefficients::gram_legs`]): `6 n m² + 14 m³` operations for five steps in two.
    Gram,
    /// [`Form::Gram`] where `4 n >= 5 m`, else [`Form::Standard`].
    ///
    /// With symmetric products at half cost `k` legs of `t` steps in all take `3 k n m² + (4 t - 3 k) m³`: equal for
    /// a square, and fewer legs the better the longer it is.
    #[default]
    Auto,
}

/// What [`orthogonalize`](super::orthogonalize) runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// The steps.
    pub coefficients: Coefficients,
    /// The form.
    pub form: Form,
    /// What products multiply. With bfloat16 the result is nearer to exact arithmetic's than that of an iteration on a
    /// matrix of bfloat16 (`torch.optim.Muon`), and about as fast again as fp32 where the processor has such products.
    pub compute: Compute,
}

impl Default for Iteration {
    /// Five steps of Keller's coefficients, the form by shape, in fp32.
    fn default() -> Self {
        Self { coefficients: Coefficients::keller(5), form: Form::Auto, compute: Compute::Fp32 }
    }
}

impl Iteration {
    /// The legs for a matrix of this shape: consecutive ranges of steps.
    #[must_use]
    pub fn legs(&self, rows: usize, columns: usize) -> Vec<Range<usize>> {
        let (short, long) = (rows.min(columns), rows.max(columns));
        let in_legs = || match self.compute {
            Compute::Fp32 => self.coefficients.gram_legs(),
            Compute::Bf16 => {
                let [most, steep] = GROWTH_BF16;
                self.coefficients.legs_within(most, steep)
            }
        };
        match self.form {
            Form::Gram => in_legs(),
            Form::Auto if 4 * long >= 5 * short => in_legs(),
            _ => (0..self.coefficients.triples.len()).map(|step| step..step + 1).collect(),
        }
    }

    /// Floating-point operations for a matrix of this shape (a multiplication and an addition are two), symmetric
    /// products at half cost: what owners are balanced by.
    #[must_use]
    pub fn flops(&self, rows: usize, columns: usize) -> u64 {
        let (m, n) = (rows.min(columns) as u64, rows.max(columns) as u64);
        let legs = self.legs(rows, columns);
        let inner: u64 = legs.iter().map(|leg| 4 * leg.len() as u64 - 3).sum();
        legs.len() as u64 * 3 * n * m * m + inner * m * m * m
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_cover_the_steps_and_bound_the_growth() {
        for (c, lengths) in [
            (Coefficients::keller(5), vec![3, 2]),
            (Coefficients::polar_express(5), vec![2, 3]),
            (Coefficients::keller(10), vec![3, 3, 3, 1]),
            (Coefficients::keller(1), vec![1]),
            (Coefficients::keller(0), vec![]),
            (Coefficients::new(vec![[1e6, 0.0, 0.0]; 3], 1.0), vec![1, 1, 1]),
        ] {
            let legs = c.gram_legs();
            assert_eq!(legs.iter().map(Range::len).collect::<Vec<_>>(), lengths);
            let of_bf16 = Iteration { coefficients: c.clone(), form: Form::Gram, compute: Compute::Bf16 };
            assert!(of_bf16.legs(1, 1).len() >= legs.len());
            assert_eq!(
                legs.into_iter().flatten().collect::<Vec<_>>(),
                (0..c.triples.len()).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn a_steep_step_is_a_leg_of_its_own_in_bfloat16() {
        for (c, lengths) in [
            (Coefficients::keller(5), vec![3, 2]),
            (Coefficients::polar_express(5), vec![1, 2, 2]),
            (Coefficients::polar_express(1), vec![1]),
            (Coefficients::keller(0), vec![]),
        ] {
            let iteration = Iteration { coefficients: c, form: Form::Gram, compute: Compute::Bf16 };
            let got: Vec<usize> = iteration.legs(4, 8).iter().map(Range::len).collect();
            assert_eq!(got, lengths);
        }
    }

    #[test]
    fn flops_are_those_of_the_forms() {
        let mut it = Iteration::default();
        let (m, n) = (10, 40);
        it.form = Form::Standard;
        assert_eq!(it.flops(m, n), 5 * (3 * 40 * 100 + 1000));
        it.form = Form::Gram;
        assert_eq!(it.flops(m, n), 6 * 40 * 100 + 14 * 1000);
        assert_eq!(it.flops(n, m), it.flops(m, n));
        assert_eq!(it.flops(m, m), 20 * 1000);
        it.form = Form::Auto;
        assert_eq!((it.legs(8, 10).len(), it.legs(9, 8).len()), (2, 5));
    }

    #[test]
    fn polar_express_repeats_its_last_triple() {
        let c = Coefficients::polar_express(7);
        assert_eq!(c.triples()[4], c.triples()[6]);
        assert_eq!(c.triples()[0][0], 8.156_554_524_902_461);
    }
}
