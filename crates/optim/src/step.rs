//! The step as a pipeline of types.

use std::marker::PhantomData;

use burnish_ops::{AnyTensor, sums_of_squares};

/// Gradients of the whole batch, summed over micro-batches and ranks.
#[derive(Debug)]
pub struct Reduced;
/// Gradients without the loss scale, known to be finite.
#[derive(Debug)]
pub struct Unscaled;
/// Gradients within the norm.
#[derive(Debug)]
pub struct Clipped;

/// The gradients of the trained parameters in a stage of the step.
#[derive(Debug)]
pub struct Gradients<Stage> {
    entries: Vec<(usize, AnyTensor)>,
    /// Still to be multiplied in; the update does it in passing.
    factor: f32,
    norm: f64,
    stage: PhantomData<Stage>,
}

/// Whether the step goes on.
#[derive(Debug)]
pub enum Unscale {
    /// All gradients are finite.
    Finite(Gradients<Unscaled>),
    /// A gradient is infinite or NaN: nothing is changed, not even moments.
    Skipped {
        /// The global norm, not finite.
        norm: f64,
    },
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Applied {
    /// The global gradient norm before clipping.
    pub grad_norm: f64,
    /// How many parameters were updated.
    pub parameters: usize,
    /// How many matrices were orthogonalised on this rank.
    pub orthogonalised: usize,
}

/// Where an optimizer takes the values that it updates, by parameter index.
pub trait ParamStorage {
    /// Takes a value out, so that it may change in place.
    fn take(&self, index: usize) -> AnyTensor;
    /// Puts the updated value back.
    fn put(&self, index: usize, value: AnyTensor);
}

impl Gradients<Reduced> {
    /// f32 gradients by parameter index, whole or this rank's rows of each.
    #[must_use]
    pub fn summed(entries: Vec<(usize, AnyTensor)>) -> Self {
        Self { entries, factor: 1.0, norm: f64::NAN, stage: PhantomData }
    }

    /// The gradients, for sums over ranks of another kind.
    #[must_use]
    pub fn into_entries(self) -> Vec<(usize, AnyTensor)> {
        self.entries
    }

    /// Divides by the loss scale and measures the global norm, each logical element counted once: `sum` is given each
    /// entry's sum of squares by parameter index, leaves out what another rank counts, adds what other ranks hold, and
    /// gives all ranks the same number.
    ///
    /// # Errors
    /// Whatever `sum` returns.
    pub fn unscale<E>(
        self,
        loss_scale: f32,
        sum: impl FnOnce(&[(usize, f64)]) -> Result<f64, E>,
    ) -> Result<Unscale, E> {
        let factor = self.factor / loss_scale;
        let gradients: Vec<&AnyTensor> = self.entries.iter().map(|(_, g)| g).collect();
        let sums = sums_of_squares(&gradients);
        let squares: Vec<(usize, f64)> =
            self.entries.iter().zip(sums).map(|((index, _), sum)| (*index, sum)).collect();
        let squares = sum(&squares)?;
        let norm = squares.sqrt() * f64::from(factor);
        Ok(if norm.is_finite() {
            Unscale::Finite(Gradients { entries: self.entries, factor, norm, stage: PhantomData })
        } else {
            Unscale::Skipped { norm }
        })
    }
}

/// The sum of squares where this rank holds all that there is.
///
/// # Errors
/// None.
pub fn all_here<E>(squares: &[(usize, f64)]) -> Result<f64, E> {
    Ok(squares.iter().map(|(_, sum)| sum).sum())
}

impl Gradients<Unscaled> {
    /// The global norm.
    #[must_use]
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// Clips to a global norm as `torch.nn.utils.clip_grad_norm_`: times `min(1, max_norm / (norm + 1e-6))`.
    /// `None` or 0 leaves gradients as they are.
    #[must_use]
    pub fn clip(self, max_norm: Option<f64>) -> Gradients<Clipped> {
        let clip = match max_norm {
            Some(max) if max > 0.0 => (max / (self.norm + 1e-6)).min(1.0),
            _ => 1.0,
        };
        let factor = (f64::from(self.factor) * clip) as f32;
        Gradients { entries: self.entries, factor, norm: self.norm, stage: PhantomData }
    }
}

impl Gradients<Clipped> {
    /// The gradient of a parameter with which the optimizer will step: a tensor, and what it is multiplied by.
    #[must_use]
    pub fn of(&self, index: usize) -> Option<(&AnyTensor, f32)> {
        let (_, gradient) = self.entries.iter().find(|(own, _)| *own == index)?;
        Some((gradient, self.factor))
    }

    /// Those that `takes` is true of, and the others.
    pub(crate) fn split(self, takes: impl Fn(usize) -> bool) -> (Self, Self) {
        let Self { entries, factor, norm, stage } = self;
        let (taken, left) = entries.into_iter().partition(|&(index, _)| takes(index));
        (Self { entries: taken, factor, norm, stage }, Self { entries: left, factor, norm, stage })
    }

    pub(crate) fn into_parts(self) -> (Vec<(usize, AnyTensor)>, f32, f64) {
        (self.entries, self.factor, self.norm)
    }
}
