//! `chunked_nll` written out: the first generation of TRL's chunked cross-entropy, which the fused head is held to.
//!
//! TRL 1.4 to 1.14: ignored tokens sorted to the end, 256 tokens at a time, the full vocabulary per chunk, each chunk
//! recomputed in backward. In plain Burn operations inside a [`segment`](burnish_ops::segment()).

use std::sync::Arc;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burnish_ops::{AnyTensor, HeadOptions, NoWeights, OpsError, Run, apply, segment};

/// Tokens per chunk.
pub(crate) const CHUNK_TOKENS: usize = 256;

/// `-sum lp / denominator` over the rows whose label is not `None`.
///
/// # Shapes
/// - hidden: `[tokens, hidden]`, weight: `[vocab, hidden]`, bias: `[vocab]`, labels: `[tokens]`, output: `[1]`
///
/// # Errors
/// If a label is outside the vocabulary, or shapes do not fit.
pub(crate) fn chunked_nll(
    hidden: &AnyTensor,
    weight: &AnyTensor,
    bias: Option<&AnyTensor>,
    labels: &[Option<u32>],
    options: HeadOptions,
    denominator: f64,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "chunked_nll";
    let ([tokens, _], [limit, _]) = (hidden.rank::<2>()?.dims(), weight.rank::<2>()?.dims());
    if labels.len() != tokens {
        return Err(OpsError::Shape {
            op: OP,
            what: "labels",
            got: vec![labels.len()],
            expected: vec![tokens],
        });
    }
    if let Some(&got) = labels.iter().flatten().find(|&&l| l as usize >= limit) {
        return Err(OpsError::Index { op: OP, got: got as usize, limit });
    }
    let device = hidden.device();
    let rows: Vec<usize> = (0..labels.len()).filter(|&i| labels[i].is_some()).collect();
    if rows.is_empty() {
        return nothing(
            OP,
            &[Some(hidden), Some(weight), bias].into_iter().flatten().cloned().collect::<Vec<_>>(),
        );
    }
    let mut total: Option<Tensor<1>> = None;
    for chunk in rows.chunks(CHUNK_TOKENS) {
        let index = ints(chunk.iter().map(|&i| i as i32).collect(), &device);
        let rows = hidden.rank::<2>()?.select(0, index);
        let targets: Vec<i32> = chunk.iter().filter_map(|&i| labels[i]).map(|l| l as i32).collect();
        let mut inputs = vec![AnyTensor::new(rows), weight.clone()];
        inputs.extend(bias.cloned());
        let plain = device.clone().inner();
        let run: Run = Arc::new(move |inputs, _| {
            let logits = inputs[0].rank::<2>()?.matmul(inputs[1].rank::<2>()?.transpose());
            let mut logits = match inputs.get(2) {
                Some(bias) => logits + bias.rank::<1>()?.unsqueeze(),
                None => logits,
            };
            logits = logits * options.logit_scale;
            if let Some(cap) = options.softcap {
                logits = (logits / cap).tanh() * cap;
            }
            let log_probs = log_softmax(logits / options.temperature, 1);
            let n = targets.len();
            let index = ints(targets.clone(), &plain).reshape([n, 1]);
            Ok(AnyTensor::new(log_probs.gather(1, index).sum().neg()))
        });
        let part = segment(OP, &inputs, Arc::new(NoWeights), false, run)?.rank::<1>()?;
        total = Some(match total {
            Some(total) => total + part,
            None => part,
        });
    }
    let total = total.expect("invariant: at least one chunk");
    Ok(AnyTensor::new(total / denominator.max(1.0)))
}

/// Zero, with every input on the tape: its gradient is zero whatever its values are.
fn nothing(op: &'static str, inputs: &[AnyTensor]) -> Result<AnyTensor, OpsError> {
    apply(op, inputs, |inputs, wanted| {
        let zeros = |t: &AnyTensor| AnyTensor::from_data(TensorData::zeros::<f32, _>(t.shape()), &t.device());
        let gradients: Vec<_> = inputs.iter().zip(wanted).map(|(t, &w)| w.then(|| zeros(t))).collect();
        let zero = Tensor::<1>::zeros([1], &inputs[0].device());
        Ok((AnyTensor::new(zero), Box::new(move |_| gradients)))
    })
}

fn ints(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}
