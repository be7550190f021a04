//! A Burn `Linear` as the output projection of a loss.

use burn::nn;
use burnish_ops::{AnyTensor, Linear};

/// The projection `[vocab, hidden]` of a Burn `Linear`, which holds `[hidden, vocab]`, with its bias. Gradients flow back
/// into the layer's own parameters, those of a LoRA adapter that Burn's `apply_lora` attached included.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// let head = burnish_losses::head_from(&LinearConfig::new(4, 7).init(&Device::flex()));
/// assert_eq!(head.weight.shape(), [7, 4]);
/// assert_eq!(head.bias.unwrap().shape(), [7]);
/// ```
#[must_use]
pub fn head_from(linear: &nn::Linear) -> Linear {
    Linear {
        bias: linear.bias.as_ref().map(|bias| AnyTensor::new(bias.val())),
        ..Linear::new(AnyTensor::new(linear.weight.val().transpose()))
    }
}
