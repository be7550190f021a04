//! The encoder of virtual tokens on the tape: embeddings through an LSTM, where there is one, and linear layers.

use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Tensor, TensorData};
use burnish_core::random::Stream;
use burnish_ops::{AnyTensor, OpsError};
use burnish_peft::{Activation, Lstm, PromptEncoder};

use crate::DropoutStep;

/// The tensors of one direction of an LSTM's layer.
const PARTS: usize = 4;

/// What an encoder makes of its `parts`: `[tokens, width]`.
pub(crate) fn encoded(
    encoder: &PromptEncoder,
    parts: &[AnyTensor],
    dropout: Option<DropoutStep>,
) -> Result<AnyTensor, OpsError> {
    let mut x = parts[0].rank::<2>()?;
    let mut rest = &parts[1..];
    if let Some(lstm) = &encoder.lstm {
        let (own, linears) = rest.split_at(lstm.layers * 2 * PARTS);
        for (layer, both) in own.chunks_exact(2 * PARTS).enumerate() {
            let (forwards, backwards) = both.split_at(PARTS);
            let sides = vec![recurrent(&x, forwards, false)?, recurrent(&x, backwards, true)?];
            x = Tensor::cat(sides, 1);
            if let Some(step) = dropout.filter(|_| lstm.dropout > 0.0 && layer + 1 < lstm.layers) {
                x = dropped(x, layer, lstm, step);
            }
        }
        rest = linears;
    }
    for (at, layer) in rest.chunks_exact(2).enumerate() {
        if at > 0 {
            x = match encoder.activation {
                Activation::Relu => relu(x),
                Activation::Tanh => x.tanh(),
            };
        }
        x = x.matmul(layer[0].rank::<2>()?.transpose()) + layer[1].rank::<1>()?.unsqueeze();
    }
    Ok(AnyTensor::new(x))
}

/// One direction of an LSTM's layer over tokens `[tokens, in]`, of `weight_ih`, `weight_hh` and two biases, whose rows are of
/// input gate, forget gate, cell and output gate: `[tokens, h]`.
fn recurrent(x: &Tensor<2>, parts: &[AnyTensor], backwards: bool) -> Result<Tensor<2>, OpsError> {
    let bias = parts[2].rank::<1>()? + parts[3].rank::<1>()?;
    let of_inputs = x.clone().matmul(parts[0].rank::<2>()?.transpose()) + bias.unsqueeze();
    let of_state = parts[1].rank::<2>()?.transpose();
    let (tokens, hidden) = (x.dims()[0], of_state.dims()[0]);
    let mut state = Tensor::<2>::zeros([1, hidden], &x.device());
    let mut cell = state.clone();
    let mut outputs = Vec::with_capacity(tokens);
    for step in 0..tokens {
        let at = if backwards { tokens - 1 - step } else { step };
        let gates = of_inputs.clone().narrow(0, at, 1) + state.matmul(of_state.clone());
        let gate = |number: usize| gates.clone().narrow(1, number * hidden, hidden);
        cell = sigmoid(gate(1)) * cell + sigmoid(gate(0)) * gate(2).tanh();
        state = sigmoid(gate(3)) * cell.clone().tanh();
        outputs.push(state.clone());
    }
    if backwards {
        outputs.reverse();
    }
    Ok(Tensor::cat(outputs, 0))
}

/// The outputs of a layer of an LSTM, each dropped or over the probability that it stays: the same in every pass of a step.
fn dropped(x: Tensor<2>, layer: usize, lstm: &Lstm, step: DropoutStep) -> Tensor<2> {
    let stream = Stream::new(step.seed, &format!("prompt_encoder.lstm_head.l{layer}")).at(step.step);
    let (shape, kept) = (x.dims(), (1.0 / (1.0 - lstm.dropout)) as f32);
    let of = |i: usize| if f64::from(stream.uniform(i as u64)) < lstm.dropout { 0.0 } else { kept };
    let mask: Vec<f32> = (0..shape[0] * shape[1]).map(of).collect();
    let mask = Tensor::<2>::from_data(TensorData::new(mask, shape), &x.device());
    x * mask
}
