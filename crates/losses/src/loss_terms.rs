//! A micro-batch's part of a loss, and how it gets onto the tape.

use burn::tensor::{DType, Tensor, TensorData};
use burnish_ops::{AnyTensor, OpsError, apply};

use crate::{LossError, MetricSums};

/// A micro-batch's part of the step's loss: parts of all micro-batches and ranks add up to the loss and its gradient.
///
/// Losses here depend on few numbers, so value and gradient are computed on the host in f64, exactly once per formula;
/// [`LossTerms::on_tape`] makes the one node that carries them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossTerms {
    /// The value.
    pub value: f64,
    /// `d value / d score` of every element of what the loss is made from: `[2, targets]` (log-probabilities, then
    /// entropies, as [`burnish_ops::head_log_probs`] gives them) or `[rows]` (rewards).
    pub gradient: Vec<f32>,
    /// Metrics, under TRL's names.
    pub tally: MetricSums,
}

impl LossTerms {
    /// No part yet, of a loss on `[2, targets]`.
    pub(crate) fn of_targets(targets: usize) -> Self {
        Self { gradient: vec![0.0; 2 * targets], ..Self::default() }
    }

    /// The part of the gradient that belongs to the log-probabilities, `[targets]`.
    #[must_use]
    pub fn log_prob_gradient(&self) -> &[f32] {
        &self.gradient[..self.gradient.len() / 2]
    }

    /// The part of the gradient that belongs to the entropies, `[targets]`.
    #[must_use]
    pub fn entropy_gradient(&self) -> &[f32] {
        &self.gradient[self.gradient.len() / 2..]
    }

    /// The loss on the tape of `scores`: its value is [`LossTerms::value`], its gradient [`LossTerms::gradient`]. Without any
    /// element it is the value, with zero gradients.
    ///
    /// # Shapes
    /// - scores: as many elements as the gradient has, output: `[1]`
    ///
    /// # Errors
    /// If `scores` has another number of elements, or is not a float tensor of this device.
    pub fn on_tape(&self, scores: &AnyTensor) -> Result<AnyTensor, LossError> {
        const OP: &str = "loss";
        let shape = scores.shape();
        let elements: usize = shape.iter().product();
        if elements != self.gradient.len() {
            let expected = vec![self.gradient.len()];
            return Err(OpsError::Shape { op: OP, what: "scores", got: shape, expected }.into());
        }
        let device = scores.plain().device();
        let (value, gradient) = (self.value as f32, self.gradient.clone());
        let loss = apply(OP, std::slice::from_ref(scores), |_, _| {
            let out = Tensor::<1>::from_data(TensorData::new(vec![value], [1]), &device);
            let coefficients: Tensor<1> =
                Tensor::from_data(TensorData::new(gradient, [elements]), (&device, DType::F32));
            let back = move |upstream: AnyTensor| {
                let scale = upstream.rank::<1>().expect("invariant: the shape of the loss");
                vec![Some(AnyTensor::new(coefficients * scale).piece(0..elements, &shape))]
            };
            Ok((AnyTensor::new(out), Box::new(back)))
        })?;
        Ok(loss)
    }
}
