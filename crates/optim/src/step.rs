//! The step as a pipeline of types.

use std::marker::PhantomData;

use burnish_ops::{AnyTensor, sum_of_squares};

/// Gradients of this rank's micro-batches, accumulated.
#[derive(Debug)]
pub struct Local;
/// Gradients summed over ranks.
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
}

/// Where an optimizer takes the values that it updates, by parameter index.
pub trait Masters {
    /// Takes a value out, so that it may change in place.
    fn take(&self, index: usize) -> AnyTensor;
    /// Puts the updated value back.
    fn put(&self, index: usize, value: AnyTensor);
}

impl Gradients<Local> {
    /// Accumulated gradients, as (parameter index, gradient) with f32 gradients.
    #[must_use]
    pub fn local(entries: Vec<(usize, AnyTensor)>) -> Self {
        Self { entries, factor: 1.0, norm: f64::NAN, stage: PhantomData }
    }

    /// Sums over the ranks that hold other rows of the batch. `reduce` maps each gradient; on one rank it is the
    /// identity.
    ///
    /// # Errors
    /// Whatever `reduce` returns.
    pub fn reduce<E>(
        self,
        mut reduce: impl FnMut(usize, AnyTensor) -> Result<AnyTensor, E>,
    ) -> Result<Gradients<Reduced>, E> {
        let entries =
            self.entries.into_iter().map(|(i, g)| Ok((i, reduce(i, g)?))).collect::<Result<Vec<_>, E>>()?;
        Ok(Gradients { entries, factor: self.factor, norm: self.norm, stage: PhantomData })
    }
}

impl Gradients<Reduced> {
    /// Divides by the loss scale and measures the global norm, each logical element counted once.
    #[must_use]
    pub fn unscale(self, loss_scale: f32) -> Unscale {
        let factor = self.factor / loss_scale;
        let squares: f64 = self.entries.iter().map(|(_, g)| sum_of_squares(g)).sum();
        let norm = squares.sqrt() * f64::from(factor);
        if norm.is_finite() {
            Unscale::Finite(Gradients { entries: self.entries, factor, norm, stage: PhantomData })
        } else {
            Unscale::Skipped { norm }
        }
    }
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
    pub(crate) fn into_parts(self) -> (Vec<(usize, AnyTensor)>, f32, f64) {
        (self.entries, self.factor, self.norm)
    }
}
